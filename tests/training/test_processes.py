"""Two processes train as one does with twice the batches, and go on when killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.recording import Run
from headwise.training import BEST, CHECKPOINT, fit
from tests.training.noise import CONFIG, batch, make_model, mean_loss

ROOT = Path(__file__).parents[2]
EXACT = {"step", "loss", "gradient_norm", "learning_rate", "valid_loss", "accuracy"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "tests.training.processes", str(folder)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {name: Run.open(folder / name) for name in ("one", "two", "mixed", "whole", "again")}


def measured(run):
    return [{name: entry[name] for name in EXACT & entry.keys()} for entry in run.metrics()]


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_with_twice_the_batches(runs):
    for one, two in zip(measured(runs["one"]), measured(runs["two"]), strict=True):
        assert two == pytest.approx(one, rel=1e-5)
    for name in (CHECKPOINT, BEST):
        one, two = (runs[which].load_tensors(name) for which in ("one", "two"))
        for key, tensor in one.items():
            if not key.startswith("random"):
                torch.testing.assert_close(two[key], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_launchers_mixed_precision_changes_nothing(runs):
    assert measured(runs["mixed"]) == measured(runs["two"])


@pytest.mark.slow
def test_only_the_first_process_writes(runs):
    lines = runs["two"].path("metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 4 + 6  # logs and evaluations


@pytest.mark.slow
def test_two_processes_that_were_killed_end_the_same_to_the_last_bit(runs):
    assert measured(runs["again"]) == measured(runs["whole"])
    whole, again = (runs[name].load_tensors(CHECKPOINT) for name in ("whole", "again"))
    seeds = whole["random.cpu"][:, :8].contiguous().view(torch.int64)  # a state begins with it
    assert seeds.tolist() == [[0], [1]]  # so that the processes drop different things
    for name, tensor in whole.items():
        assert torch.equal(again[name], tensor), name


@pytest.mark.slow
def test_one_process_does_not_go_on_from_the_checkpoint_of_two(runs):
    with pytest.raises(ValueError, match="written by 2 processes, but 1 resume"):
        fit(make_model(), mean_loss, batch, run=runs["two"], config=CONFIG, evaluate=dict)


def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        Run.create(tmp_path / "run", CONFIG) as run,
        pytest.raises(ValueError, match="2 processes were started, but Accelerate found 1"),
    ):
        fit(make_model(), mean_loss, batch, run=run, config=CONFIG, evaluate=dict)
