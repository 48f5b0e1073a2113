"""Sweeping ops in training: checkpointing, compiled graphs, captured graphs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.ops.guidance import FIRST, NEXT, guidance_loss, guided_heads
from headwise.ops.row_sweep import row_sweep
from headwise.ops.scores import Scores

pytest.importorskip("triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="there is no CUDA device")
interpreted = pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled on a GPU")
GUIDED = guided_heads({0: NEXT, 2: FIRST}, num_heads=3, device=DEVICE)

Loss = Callable[[Tensor, Tensor], Tensor]


def statistics(q: Tensor, k: Tensor) -> Tensor:
    rows = row_sweep(Scores(q, k, causal=True), offset=-1, impl="triton")
    return (rows.entropy + rows.mass_at - rows.sum_squares).sum()


def guidance(q: Tensor, k: Tensor) -> Tensor:
    return guidance_loss(q, k, GUIDED, reduction="mean", impl="triton").sum()


LOSSES = pytest.mark.parametrize("loss", [statistics, guidance])


def leaves() -> tuple[Tensor, Tensor]:
    """Draw q and k."""
    q, k = (torch.randn(2, 3, n, 16, device=DEVICE, requires_grad=True) for n in (17, 20))
    return q, k


@LOSSES
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_are_the_same_with_checkpointing(loss: Loss, use_reentrant):
    q, k = leaves()
    forward_passes = []

    def layer(q: Tensor, k: Tensor) -> Tensor:
        forward_passes.append(1)
        return loss(2 * q.tanh(), k.tanh())

    once = checkpoint(layer, q, k, use_reentrant=use_reentrant)
    got = torch.autograd.grad(once, (q, k)) if not use_reentrant else _by_backward(once, q, k)
    assert len(forward_passes) == 2
    again = layer(q, k)
    torch.testing.assert_close(once, again, rtol=0, atol=0)
    torch.testing.assert_close(tuple(got), torch.autograd.grad(again, (q, k)))


def _by_backward(total: Tensor, *given: Tensor) -> tuple[Tensor | None, ...]:
    """Compute gradients with backward(), which reentrant checkpointing needs."""
    total.backward()
    return tuple(x.grad for x in given)


def compile_in_a_process_of_its_own() -> None:
    script = Path(__file__).with_name("compiling.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@interpreted
def test_sweeps_are_compiled_in_one_graph():
    compile_in_a_process_of_its_own()


@pytest.mark.gpu
@on_gpu
def test_sweeps_are_compiled_in_one_graph_on_the_device():
    compile_in_a_process_of_its_own()


@LOSSES
@pytest.mark.gpu
@on_gpu
def test_a_captured_graph_gives_the_same_and_reads_its_inputs_anew(loss: Loss):
    q, k = leaves()

    def step() -> list[Tensor]:
        total = loss(q, k)
        return [total.detach(), *torch.autograd.grad(total, (q, k))]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()  # compiled before it is captured
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        with torch.no_grad():
            q.normal_()
        graph.replay()
        torch.testing.assert_close(captured, step())
