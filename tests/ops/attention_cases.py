"""Ops, small inputs and tolerances that the tests of all ops share."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from headwise.ops import (
    Attended,
    entmax,
    entmax_attention,
    gaussian_attention,
    softmax_attention,
    sparsemax,
    sparsemax_attention,
    topk_attention,
    uniform_attention,
)
from headwise.ops import rows as rows_module
from headwise.ops import scores as scores_module

Attend = Callable[..., Attended]

SIZES = (1, 7, 63, 65)
LEARNED: dict[str, Attend] = {
    "softmax": softmax_attention,
    "topk": partial(topk_attention, keep=3),
    "topk-first": partial(topk_attention, keep=3, ties="first"),
    "sparsemax": sparsemax_attention,
    "entmax": entmax_attention,
    "entmax-1.3": partial(entmax_attention, alpha=1.3),
}
WITH_KERNELS = ("topk", "topk-first", "sparsemax", "entmax", "entmax-1.3")
# Weights of rows of scores, by definition; softmax for ops that are not listed.
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparsemax": sparsemax,
    "entmax": entmax,
    "entmax-1.3": partial(entmax, alpha=1.3),
}
ALL: dict[str, Attend] = LEARNED | {
    "uniform": uniform_attention,
    "gaussian": partial(gaussian_attention, offset=-1.0, std=1.5),
}


def inputs(
    n_queries: int,
    n_keys: int | None = None,
    *,
    batch: int = 2,
    heads: int = 2,
    groups: int | None = None,
    width: int = 4,
    value_width: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw random q, k, v. Queries are scaled up, so that sparse ops give zeros."""
    n_keys, groups = n_keys or n_queries, groups or heads
    q = 2 * torch.randn(batch, heads, n_queries, width, dtype=torch.float64)
    k = torch.randn(batch, groups, n_keys, width, dtype=torch.float64)
    v = torch.randn(batch, groups, n_keys, value_width or width, dtype=torch.float64)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def make_blocks_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit blocks to one or two queries."""
    monkeypatch.setattr(scores_module, "BLOCK_ELEMENTS", 60)
    monkeypatch.setattr(rows_module, "PLAIN_ELEMENTS", 60)


def out_and_grads(attend: Attend, *tensors: Tensor, **options: object) -> list[Tensor]:
    """Compute the output for q, k, v and the gradients of a fixed random sum of it."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = attend(*leaves, **options).out
    rng = torch.Generator().manual_seed(1)
    upstream = torch.randn(out.shape, generator=rng, dtype=torch.float64)
    (out * upstream.to(out.dtype)).sum().backward()
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return [out.detach(), *grads]


def assert_no_worse(name: str, got: Tensor, reference: Tensor, exact: Tensor) -> None:
    """Hold an implementation to the accuracy its reference reaches in the same dtype."""

    def worst(x: Tensor) -> float:
        return (x.double() - exact).abs().max().item()

    assert got.dtype == reference.dtype
    # Inputs are of order one: where the exact answer is 0, rounding may still leave a trace.
    rounding = torch.finfo(got.dtype).eps * max(1.0, exact.abs().max().item())
    # What cancels in a gradient is a sum of products, larger than what is left of it.
    cancelled = 16 * torch.finfo(torch.float32).eps
    allowed = 2 * worst(reference) + 4 * rounding + cancelled * (got.dtype != torch.float64)
    assert worst(got) <= allowed, f"{name}: off by {worst(got):.2e}, allowed {allowed:.2e}"


def masks(n_queries: int, n_keys: int) -> dict[str, Tensor]:
    """Draw a mask of every shape that broadcasts to (2, 2, Q, K); each query sees some key."""
    shapes = {
        "keys": (n_keys,),
        "queries-keys": (n_queries, n_keys),
        "heads": (2, n_queries, n_keys),
        "padding": (2, 1, 1, n_keys),
        "full": (2, 2, n_queries, n_keys),
    }
    drawn = {name: torch.rand(shape) > 0.4 for name, shape in shapes.items()}
    for mask in drawn.values():
        mask[..., 0] = True
    return drawn
