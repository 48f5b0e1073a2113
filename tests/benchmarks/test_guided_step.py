"""The benchmark of a guided training step compiles once, and keeps what it has."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import RobertaConfig

from benchmarks import guided_models, guided_step

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
CONFIG = RobertaConfig(
    vocab_size=30,
    max_position_embeddings=20,
    type_vocab_size=1,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=16,
)
SETTINGS = guided_models.Settings(CONFIG, batch=2, length=8)


@pytest.mark.slow
def test_a_guided_step_is_compiled_once():
    command = [sys.executable, "-m", "tests.benchmarks.compiling_step"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_compiled_steps_take_turns_among_themselves_after_the_others_are_kept(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call: call)  # takes its time
    kept: list[list[str]] = []

    def keep(rows):
        kept.append([row["who"] for row in rows if "step_ms" in row])

    measured = guided_step.measure(1, CPU, keep=keep, settings=SETTINGS)
    plain = ["eager, loss from the matrices", "plain", "guided"]
    compiled = ["plain, compiled", "guided, compiled"]
    assert kept == [[], [], [], plain, plain, plain, plain + compiled]
    assert [row["ratio"] for row in measured.rows if row["who"].startswith("plain")] == [1, 1]
    assert measured.wrong == 0


def test_all_ways_have_one_guidance_loss(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call: call)
    losses = [
        way(SETTINGS, CPU).guidance for way in (guided_models.from_matrices, guided_models.guided)
    ]
    assert losses == pytest.approx([losses[0]] * 2, rel=0.02)
