"""The benchmark of a guided training step compiles once, and keeps what it has."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import guided_step
from headwise_papers.attention_guidance import _masked_steps
from headwise_papers.models import EncoderConfig

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
CONFIG = EncoderConfig.tiny(30, width=16, feed_forward=16, max_length=20)
SETTINGS = _masked_steps.Settings(CONFIG, batch=2, length=8)


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
    compiled = [f"{who}, compiled" for who in (plain[0], "plain", "adopted", "guided")]
    assert kept == [[], [], [], *[plain] * 5, plain + compiled]
    ratios = {row["who"]: row["ratio"] for row in measured.rows}
    assert ratios["plain"] == 1
    assert min(ratios["plain, compiled"], ratios["adopted, compiled"]) == 1
    assert measured.wrong == 0


def test_all_ways_have_one_guidance_loss(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call: call)
    ways = (_masked_steps.from_matrices, _masked_steps.guided)
    losses = [way(SETTINGS, CPU).guidance for way in ways]
    assert losses == pytest.approx([losses[0]] * 2, rel=0.02)
