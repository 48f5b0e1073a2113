"""Killed without warning anywhere, a training ends as if it had not been, to the last bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.recording import Run
from headwise.training import BEST, CHECKPOINT, average_checkpoints, kept_checkpoints
from tests.training.killing import PLACES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killing")
    command = [sys.executable, "-m", "tests.training.killing", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def files_of(run):
    names = [CHECKPOINT, BEST, *kept_checkpoints(run)]
    return {name: (run.load_tensors(name), run.note(name)) for name in names}


def test_the_undisturbed_training_stops_by_patience(runs):
    whole = Run.open(runs / "whole")
    assert whole.note(BEST)["step"] == "8"
    assert whole.note(CHECKPOINT)["step"] == "18"
    assert [whole.note(name)["step"] for name in kept_checkpoints(whole)] == ["10", "15", "18"]


@pytest.mark.parametrize("place", ["from-outside", *PLACES])
def test_a_killed_training_ends_the_same_to_the_last_bit(runs, place):
    whole, killed = Run.open(runs / "whole"), Run.open(runs / place)
    assert len(killed.read_json("environment.json")["resumed"]) == 1
    assert killed.metrics() == whole.metrics()  # of losses, norms, and evaluations
    wanted, got = files_of(whole), files_of(killed)
    assert got.keys() == wanted.keys()
    for name, (tensors, note) in wanted.items():
        assert got[name][1] == note
        assert got[name][0].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert torch.equal(got[name][0][key], tensor), (name, key)
    means = average_checkpoints(killed), average_checkpoints(whole)
    assert all(torch.equal(means[0][name], mean) for name, mean in means[1].items())
