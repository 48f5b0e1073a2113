"""Small tiles, options and interpreted bfloat16, which tests of sweeping kernels share."""

import numpy
import pytest
import torch
from torch import Tensor

OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "lengths": {"lengths": torch.tensor([7, 0])},
    "padding mask": {"mask": "keys"},
    "causal mask lengths": {"causal": True, "mask": "full", "lengths": torch.tensor([15, 9])},
    "scale": {"scale": 0.3},
}


def options(name: str, n_queries: int, n_keys: int) -> dict[str, object]:
    """Draw the options of a case for these sizes; two batch items."""
    given = dict(OPTIONS[name])
    if "lengths" in given:
        given["lengths"] = given["lengths"].clamp(max=n_keys)
    if given.get("mask") == "keys":
        given["mask"] = torch.rand(2, 1, 1, n_keys) > 0.4
    elif given.get("mask") == "full":
        given["mask"] = torch.rand(2, 1, n_queries, n_keys) > 0.4
    return given


def use_tiles(monkeypatch: pytest.MonkeyPatch, rows: int, keys: int) -> None:
    """Use tiles of this size in every pass."""
    sweeps = pytest.importorskip("headwise.ops.row_sweep.sweeps", reason="Triton is not installed")
    tiles = {(8, 128): sweeps.Tile(rows, keys, 4, 1)}
    monkeypatch.setattr(sweeps, "TILES", dict.fromkeys(("forward", "queries", "keys"), tiles))


def interpret_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Triton's interpreter multiply bfloat16 numbers, not their bit patterns."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    tl = pytest.importorskip("triton.language")
    builder = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def numbers(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(numpy.uint32) << 16
        return interpreter.TensorHandle(bits.view(numpy.float32), tl.float32)

    def create_dot(self, a, b, *others):
        return multiply(self, numbers(a), numbers(b), *others)

    monkeypatch.setattr(builder, "create_dot", create_dot)
    monkeypatch.setattr("headwise.ops._impl.NOT_INTERPRETED", None)


def draw(
    n_queries: int,
    n_keys: int,
    *,
    heads: int = 2,
    groups: int = 2,
    width: int = 5,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Draw q, with heads and rows interleaved in memory, and k; two batch items."""
    q = 2 * torch.randn(2, n_queries, heads, width, device=device)
    k = torch.randn(2, groups, n_keys, width, device=device)
    return q.to(dtype).transpose(1, 2).requires_grad_(), k.to(dtype).requires_grad_()


def assert_no_worse(
    name: str, got: Tensor, reference: Tensor, exact: Tensor, *, slack: float
) -> None:
    """Hold a kernel to the accuracy its reference reaches in the same dtype.

    Kernels take exp(score - lse), each rounded: `slack` is how large those are.
    """

    def worst(x: Tensor) -> float:
        return (x.double() - exact).abs().max().item() if x.numel() else 0.0

    assert got.dtype == reference.dtype
    largest = exact.abs().max().item() if exact.numel() else 0.0
    allowed = 2 * worst(reference) + 4 * torch.finfo(got.dtype).eps * max(1.0, largest) * slack
    assert worst(got) <= allowed, f"{name}: off by {worst(got):.2e}, allowed {allowed:.2e}"
