"""Bad input gets one sentence: what was wanted, what came, what to do."""

import torch
from torch import Tensor

from headwise.ops._impl import Number


def check_queries_and_keys(q: Tensor, k: Tensor) -> None:
    """Four axes, one dtype, and heads that can be grouped."""
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(
            "q, k and v must have the axes (batch, heads, positions, width), "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}."
        )
    if not q.is_floating_point() or q.dtype != k.dtype:
        raise ValueError(
            f"q, k and v must share one floating-point dtype, got {q.dtype} and {k.dtype}."
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % max(1, k.shape[1]):
        raise ValueError(
            "q and k must agree in batch and width, and the heads of q be a multiple of those "
            f"of k; got q {tuple(q.shape)} and k {tuple(k.shape)}."
        )
    if k.shape[2] == 0:
        raise ValueError("There are no keys to attend to: k has 0 positions.")


def check_values(k: Tensor, v: Tensor) -> None:
    """Values must match the keys in all but width."""
    if v.dim() != 4 or v.shape[:3] != k.shape[:3] or v.dtype != k.dtype:
        raise ValueError(
            "k and v must agree in batch, heads, positions and dtype, "
            f"got k {tuple(k.shape)} {k.dtype} and v {tuple(v.shape)} {v.dtype}."
        )


def check_dropout(dropout: Number) -> None:
    """A probability below one."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}.")


def check_mask(mask: Tensor | None, shape: tuple[int, ...]) -> None:
    """Boolean, and broadcastable."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean, True where a query may attend, got {mask.dtype}. "
            "Give an additive mask as bias=, or compare it: mask=(additive == 0)."
        )
    _check_broadcast("mask", mask, shape)


def check_bias(bias: Tensor | None, shape: tuple[int, ...]) -> None:
    """Floating-point, and broadcastable."""
    if bias is None:
        return
    if not bias.is_floating_point():
        raise ValueError(f"bias must be floating-point, got {bias.dtype}. A boolean is a mask=.")
    _check_broadcast("bias", bias, shape)


def _check_broadcast(name: str, given: Tensor, shape: tuple[int, ...]) -> None:
    sizes = (1,) * (4 - given.dim()) + tuple(given.shape)
    if given.dim() > 4 or any(
        size not in (1, full) for size, full in zip(sizes, shape, strict=True)
    ):
        raise ValueError(
            f"{name} must broadcast to (batch, heads, queries, keys) = {shape}, "
            f"got {tuple(given.shape)}."
        )


def check_lengths(lengths: Tensor | None, shape: tuple[int, ...]) -> None:
    """One integer a batch item."""
    if lengths is None:
        return
    if lengths.shape != shape[:1] or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths must hold one integer a batch item, shape ({shape[0]},), "
            f"got {tuple(lengths.shape)} of {lengths.dtype}."
        )
