"""Checks of input. A message is one sentence: what was wanted, what came, what to do."""

import math

import torch
from torch import Tensor

from headwise.ops._impl import Number, readable


def check_whole_number(name: str, given: object) -> None:
    """Raise unless given an int; True and 2.0 are none."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise ValueError(f"{name} must be a whole number, an int, got {given!r}.")


def check_queries_and_keys(q: Tensor, k: Tensor) -> None:
    """Raise unless q and k have four axes, one dtype, and heads that can be grouped."""
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(
            "q, k and v must have the axes (batch, heads, positions, width), "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}."
        )
    if not q.is_floating_point() or q.dtype != k.dtype:
        raise ValueError(
            f"q, k and v must share one floating-point dtype, got {q.dtype} and {k.dtype}."
        )
    if 0 in (q.shape[1], k.shape[1], q.shape[3]):
        raise ValueError(
            "q and k must have at least one head and a width of at least 1, "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}."
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise ValueError(
            "q and k must agree in batch and width, and the heads of q be a multiple of those "
            f"of k; got q {tuple(q.shape)} and k {tuple(k.shape)}."
        )
    if k.shape[2] == 0:
        raise ValueError(
            "k must have at least one position, got 0: there are no keys to attend to."
        )


def check_values(k: Tensor, v: Tensor) -> None:
    """Raise unless values match the keys in all but width."""
    if v.dim() != 4 or v.shape[:3] != k.shape[:3] or v.dtype != k.dtype:
        raise ValueError(
            "k and v must agree in batch, heads, positions and dtype, "
            f"got k {tuple(k.shape)} {k.dtype} and v {tuple(v.shape)} {v.dtype}."
        )
    if v.shape[3] == 0:
        raise ValueError(f"v must have a width of at least 1, got v {tuple(v.shape)}.")


def check_dropout(dropout: Number) -> None:
    """Raise unless dropout is a probability below 1."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}.")


def check_mask(mask: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless the mask is None, or boolean and broadcastable."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean, True where a query may attend, got {mask.dtype}. "
            "Give an additive mask as bias=, or compare it: mask=(additive == 0)."
        )
    check_broadcast("mask", mask, shape)


def check_bias(bias: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless the bias is None, or floating-point and broadcastable."""
    if bias is None:
        return
    if not bias.is_floating_point():
        raise ValueError(f"bias must be floating-point, got {bias.dtype}. A boolean is a mask=.")
    check_broadcast("bias", bias, shape)


def check_cap(cap: object) -> None:
    """Raise unless the cap of scores is None or a finite number above 0."""
    if cap is None:
        return
    if isinstance(cap, bool) or not isinstance(cap, Number) or not 0 < cap < math.inf:
        raise ValueError(f"cap must be a finite number above 0, or None, got {cap!r}.")


def check_sink(sink: Tensor | None, heads: int) -> None:
    """Raise unless the sink is None or holds one floating-point logit per head."""
    if sink is None:
        return
    if sink.shape != (heads,) or not sink.is_floating_point():
        raise ValueError(
            f"sink must hold one floating-point logit for each of the {heads} heads, shape "
            f"({heads},), got {tuple(sink.shape)} of {sink.dtype}."
        )


def check_chosen_keys(keys: object, shape: tuple[int, ...]) -> None:
    """Raise unless keys are boolean, and (B, K), (1, K) or broadcastable."""
    if not isinstance(keys, Tensor) or keys.dtype != torch.bool:
        kind = keys.dtype if isinstance(keys, Tensor) else type(keys).__name__
        raise ValueError(
            f"keys must be boolean, a tensor that is True where weight counts, got {kind}."
        )
    if keys.dim() != 2:
        check_broadcast("keys", keys, shape)
    elif keys.shape[0] not in (1, shape[0]) or keys.shape[1] != shape[3]:
        raise ValueError(
            f"keys with two axes must be (batch, keys) = {(shape[0], shape[3])}, "
            f"got {tuple(keys.shape)}. For (queries, keys) give keys[None, None]."
        )


def check_rows(scores: Tensor, mask: Tensor | None) -> None:
    """Raise unless scores are floating-point rows of keys, and the mask is boolean and fits."""
    if not scores.is_floating_point():
        raise ValueError(f"scores must be floating-point, got {scores.dtype}. Use scores.float().")
    if scores.dim() == 0 or scores.shape[-1] == 0:
        raise ValueError(
            "scores must have a last axis of at least one key, "
            f"got a tensor of shape {tuple(scores.shape)}."
        )
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True where a query may attend, got {mask.dtype}.")
    check_broadcast("mask", mask, tuple(scores.shape), axes="the shape of scores")


def check_broadcast(
    name: str,
    given: Tensor,
    shape: tuple[int, ...],
    *,
    axes: str = "(batch, heads, queries, keys)",
) -> None:
    """Raise unless a tensor broadcasts to the shape without enlarging it."""
    sizes = (1,) * (len(shape) - given.dim()) + tuple(given.shape)
    if len(sizes) > len(shape) or any(
        size not in (1, full) for size, full in zip(sizes, shape, strict=True)
    ):
        raise ValueError(f"{name} must broadcast to {axes} = {shape}, got {tuple(given.shape)}.")


def check_lengths(lengths: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless lengths are None, or one integer per batch item, 0 to all keys."""
    if lengths is None:
        return
    if lengths.shape != shape[:1] or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths must hold one integer per batch item, shape ({shape[0]},), "
            f"got {tuple(lengths.shape)} of {lengths.dtype}."
        )
    if readable(lengths) and bool(((lengths < 0) | (lengths > shape[3])).any()):
        raise ValueError(
            f"lengths must be at least 0 and at most the {shape[3]} keys there are, "
            f"got {lengths.tolist()}."
        )
