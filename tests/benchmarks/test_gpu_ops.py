"""The benchmark of ops on a GPU does nothing twice, and its peers can be compiled."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from benchmarks import __main__ as command
from benchmarks import gpu_ops, guided_step
from benchmarks.gpu_cases import Shape, cases
from benchmarks.judging import Contestant

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
SHAPES = [Shape(1, 2, length, 8) for length in (4, 8)]


@pytest.fixture
def measure(monkeypatch):
    """With one op, whose only peer is given; who was called follows, in order."""
    called: list[str] = []

    def run(call):
        def peer(q, k, v):
            called.append("peer")
            return call(q, k, v)

        def ours(q, k, v):
            called.append("headwise")
            return case.yardstick(q, k, v)

        case = cases(SHAPES[0], CPU, ("softmax",))[0]
        monkeypatch.setattr(type(case), "contestant", Contestant("headwise", ours))
        monkeypatch.setattr(gpu_ops, "cases", lambda *given: [case])
        contestant = Contestant("peer", peer, compiles=True)
        monkeypatch.setattr(gpu_ops, "peers_of", lambda *given, **options: [contestant])
        settings = gpu_ops.Settings(SHAPES, torch.float32, train=untrained)
        return gpu_ops.measure(1, CPU, settings=settings).rows, called

    def untrained(device):
        raise ValueError("There is no text.")

    return run


def peers_of(rows):
    return [row for row in rows if row["who"] == "peer"]


def test_peers_that_are_compiled_take_turns_with_sdpa_alone(measure):
    rows, called = measure(lambda q, k, v: (torch.softmax(q @ k.mT / 8**0.5, -1) @ v,))
    assert [row["n"] for row in peers_of(rows)] == [8, 4]
    assert all(row["both_ratio"] > 0 for row in peers_of(rows))
    assert called == sorted(called)  # we are done before the first peer
    assert len(rows) == len({(row["inputs"], row.get("n"), row["who"]) for row in rows})


def test_a_peer_that_cannot_be_compiled_is_tried_once(measure):
    def fail(q, k, v):
        raise BackendCompilerFailed(fail, RuntimeError("no such kernel"), None)

    rows, called = measure(fail)
    first, second = (row["reason"] for row in peers_of(rows))
    assert called.count("peer") == 1
    assert "no such kernel" in first
    assert second == gpu_ops.UNCOMPILED


def test_a_peer_that_fails_otherwise_is_tried_at_every_length(measure):
    def fail(q, k, v):
        raise torch.OutOfMemoryError("too long")

    rows, called = measure(fail)
    assert called.count("peer") == 2
    assert all("too long" in row["reason"] for row in peers_of(rows))


@pytest.mark.parametrize(("only", "compiled"), [((), True), (("usual",), False)])
def test_a_guided_step_may_be_had_without_compiling(monkeypatch, only, compiled):
    asked = []
    monkeypatch.setattr(guided_step, "measure", lambda *_, **options: asked.append(options))
    command._measure("guided_step", 1, CPU, only, list)
    assert asked == [{"keep": list, "compiled": compiled}]


@pytest.mark.slow
def test_gradients_of_flex_attention_come_from_its_output_too():
    script = [sys.executable, "-m", "tests.benchmarks.compiling_peers"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
