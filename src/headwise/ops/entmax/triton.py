# torch.library's decorators and Triton's kernels have no types that a type checker would know.
# pyright: basic
"""Sparsemax and entmax attention as two custom operators over Triton kernels.

`headwise::entmax` and `headwise::entmax_backward` take plain tensors, numbers and None, launch
kernels without waiting for the device, and have fake implementations: torch.compile, CUDA graphs
and gradient checkpointing see two opaque operators. Saved for the gradient: q, k, v, a tensor like
out, and two numbers per row.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from headwise.ops._impl import Number
from headwise.ops.entmax import kernels
from headwise.ops.scores import Scores
from headwise.ops.tiles import Call, Tile, padded, strides, with_rows


class Tiles(NamedTuple):
    """Tiles of each kernel."""

    resident: tuple[Tile, ...]  # the first that holds all keys is used; if none does, streaming
    streaming: Tile
    for_queries: Tile
    for_keys: Tile


# Chosen so that compiled kernels spill little (a thread has at most 255 registers), and all keys of
# a resident tile fit into shared memory.
NARROW = Tiles(  # 16-bit numbers, widths up to 64
    resident=(
        Tile(rows=64, keys=64, warps=4, stages=1),
        Tile(rows=64, keys=128, warps=4, stages=1),
        Tile(rows=64, keys=256, warps=4, stages=1),
    ),
    streaming=Tile(rows=64, keys=64, warps=4, stages=3),
    for_queries=Tile(rows=128, keys=64, warps=8, stages=3),
    for_keys=Tile(rows=64, keys=64, warps=4, stages=3),
)
WIDE = Tiles(  # 16-bit numbers, widths up to 128
    resident=(
        Tile(rows=64, keys=64, warps=4, stages=1),
        Tile(rows=64, keys=128, warps=8, stages=1),
        Tile(rows=32, keys=256, warps=8, stages=1),
        Tile(rows=16, keys=512, warps=8, stages=1),
    ),
    streaming=Tile(rows=128, keys=64, warps=8, stages=2),
    for_queries=Tile(rows=64, keys=64, warps=4, stages=2),
    for_keys=Tile(rows=32, keys=64, warps=4, stages=2),
)
FULL = Tiles(  # float32, whose exact products take no tensor cores but many registers
    resident=(),
    streaming=Tile(rows=32, keys=32, warps=8, stages=2),
    for_queries=Tile(rows=32, keys=16, warps=8, stages=2),
    for_keys=Tile(rows=32, keys=32, warps=8, stages=2),
)

LEAST_RESIDENT_WIDTH = 64
POWERS = {2: 1, 1.5: 2}  # alphas with their own kernels, which need no exponentials


def attend(scores: Scores, v: Tensor, alpha: Number | Tensor, *, dropout: Number) -> Tensor:
    """Attend with entmax weights; differentiable once in q, k, v and a tensor of alphas.

    Args:
        alpha: A number from 1.1 to 2, or a tensor of one value or one per head. Rows of a head
            whose alpha is not in (1, 2] are NaN, because a check would make the host wait.
    """
    batch, heads, _, n_keys = scores.shape
    lengths = scores.lengths
    if lengths is None:  # made here, once for both passes
        lengths = torch.full((batch,), n_keys, dtype=torch.int32, device=v.device)
    power = 0 if isinstance(alpha, Tensor) else POWERS.get(alpha, 0)
    alphas = None
    if isinstance(alpha, Tensor):
        alphas = alpha.to(v.device, torch.float32).expand(heads).contiguous()
    elif power == 0:
        alphas = torch.full((heads,), float(alpha), device=v.device)
    seed = torch.randint(2**62, (1,), device=v.device) if dropout else None
    needed = any(x is not None and x.requires_grad for x in (scores.q, scores.k, v, alphas))
    return _entmax(
        scores.q,
        scores.k,
        v,
        alphas,
        scores.mask,
        lengths,
        seed,
        float(scores.multiplier),
        scores.first_position,
        scores.causal,
        power,
        float(dropout),
        torch.is_grad_enabled() and needed,
    )[0]


@torch.library.custom_op("headwise::entmax", mutates_args=())
def _entmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor,
    seed: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    power: int,
    dropout: float,
    training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute out, and for the gradient mean, top and tau as kernels write them."""
    results = _empty_results(q, v, training)
    if results[0].numel():
        call = Call.rebuilt(q, k, mask, lengths, scale, first, causal)
        options = _options(call, with_rows(v), alpha, seed, power, dropout)
        with torch.cuda.device_of(q):
            _launch_forward(options, results, training)
    return results


@_entmax.register_fake
def _(q, k, v, alpha, mask, lengths, seed, scale, first, causal, power, dropout, training):
    return _empty_results(q, v, training)


@torch.library.custom_op("headwise::entmax_backward", mutates_args=())
def _entmax_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor,
    seed: Tensor | None,
    mean: Tensor,
    top: Tensor,
    tau: Tensor,
    scale: float,
    first: int,
    causal: bool,
    power: int,
    dropout: float,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of q, k, v, and of every row's alpha (empty unless it is learned)."""
    gradients = _empty_gradients(q, k, v, learned)
    if grad.numel() == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    call = Call.rebuilt(q, k, mask, lengths, scale, first, causal)
    options = _options(call, with_rows(v), alpha, seed, power, dropout)
    with torch.cuda.device_of(q):
        _launch_backward(options, with_rows(grad), (mean, top, tau), gradients, learned)
    return gradients


@_entmax_backward.register_fake
def _(
    grad, q, k, v, alpha, mask, lengths, seed, mean, top, tau,
    scale, first, causal, power, dropout, learned,
):  # fmt: skip
    return _empty_gradients(q, k, v, learned)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, alpha, mask, lengths, seed, *ctx.settings, _ = inputs
    _, mean, top, tau = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, alpha, mask, lengths, seed, mean, top, tau)


def _differentiate(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 9
    if grad is None:
        return None, None, None, None, *nothing
    tensors = ctx.saved_tensors
    learned = tensors[3] is not None and ctx.needs_input_grad[3]
    dq, dk, dv, dalpha_BHQ = _entmax_backward(grad, *tensors, *ctx.settings, learned)
    return dq, dk, dv, dalpha_BHQ.sum((0, 2)) if learned else None, *nothing


_entmax.register_autograd(_differentiate, setup_context=_keep)


def _empty_results(q: Tensor, v: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, n_queries, _ = q.shape
    shape = batch, heads, n_queries, v.shape[3]
    kept = shape if training else (0,)
    return (
        v.new_empty(shape),
        v.new_empty(kept),
        v.new_empty(kept[:3], dtype=torch.float32),
        v.new_empty(kept[:3], dtype=torch.float32),
    )


def _empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = q.shape[:3] if learned else (0,)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    return dq, dk, dv, q.new_empty(rows, dtype=torch.float32)


def _options(
    call: Call, v: Tensor, alpha: Tensor | None, seed: Tensor | None, power: int, dropout: float
) -> dict[str, Any]:
    """Build the arguments of all kernels; missing tensors are replaced by one that is not read."""
    return {
        **call.arguments(),
        "v": v,
        "alpha": call.lengths if alpha is None else alpha,
        "seed": call.lengths if seed is None else seed,
        "dropout": dropout,
        **strides("v", v),
        "PADDED": padded(call.q.shape[3]),
        "VALUE": v.shape[3],
        "VALUE_PADDED": padded(v.shape[3]),
        "POWER": power,
        "DROPOUT": seed is not None,
    }


def _tiles(options: dict[str, Any]) -> Tiles:
    if options["v"].element_size() > 2:
        return FULL
    return NARROW if max(options["PADDED"], options["VALUE_PADDED"]) <= 64 else WIDE


def _needs(options: dict[str, Any]) -> int:
    """Count how many of mask, dropout and powers a kernel has; each needs registers."""
    return bool(options["MASKED"]) + options["DROPOUT"] + (options["POWER"] == 0)


def _forward_tile(options: dict[str, Any]) -> tuple[Tile, bool]:
    """Choose the tile of a program, and return whether it holds all keys."""
    tiles, needs = _tiles(options), _needs(options)
    tile = next((tile for tile in tiles.resident if tile.keys >= options["n_keys"]), None)
    if tile is None:
        tile = tiles.streaming
        if needs and tiles is not FULL:
            most = 32 if tiles is WIDE and options["MASKED"] else 64
            tile = tile._replace(rows=min(tile.rows, most))
        return tile, False
    crowded = needs > 1 or (needs and tile.rows * tile.keys // tile.warps > 2048)
    return tile._replace(rows=max(16, tile.rows // 2)) if crowded else tile, True


def _backward_tile(tile: Tile, options: dict[str, Any]) -> Tile:
    """Adapt the tile of a program, with more threads if it needs more registers."""
    tiles, needs = _tiles(options), _needs(options)
    crowded = tiles is not FULL and needs + (tiles is WIDE) > 1
    return tile._replace(warps=8) if crowded else tile


def _near(element_size: int, power: int) -> float:
    """Return how far sums of weights may be from 1 before the last step.

    At best the step squares that distance. At worst, with many keys about to leave the support, it
    removes most of it; or, where p = 1, nearly nothing. The rest must be lost in rounding.
    """
    if power == 1:
        return 2.0**-20 if element_size > 2 else 2.0**-14
    return 2.0**-14 if element_size > 2 else 2.0**-10


def _near_and_enough(element_size: int, power: int) -> dict[str, float]:
    """Return how far sums may be from 1 before the second last step of `streaming`, and at its end.

    With random scores and alpha = 1.5, an estimated step leaves at most 0.05 e^2 of e, Newton's
    0.15: mostly less than ENOUGH. With alpha = 2 the last sweep is not checked.
    """
    if element_size > 2:
        return {"NEAR": _near(element_size, power), "ENOUGH": 2.0**-18}
    return {"NEAR": {1: 2.0**-14, 2: 0.1, 0: 2.0**-5}[power], "ENOUGH": 2.0**-11}


def _launch_forward(
    options: dict[str, Any], results: tuple[Tensor, Tensor, Tensor, Tensor], training: bool
) -> None:
    batch, heads, n_queries, _ = options["q"].shape
    tile, resident = _forward_tile(options)
    kernel = kernels.resident if resident else kernels.streaming
    element_size, power = options["v"].element_size(), options["POWER"]
    if resident:  # Triton 3.6 multiplies narrower values, read in no loop, wrongly on Hopper
        width = max(options["VALUE_PADDED"], LEAST_RESIDENT_WIDTH)
        options = {**options, "VALUE_PADDED": width, "NEAR": _near(element_size, power)}
    else:
        options = {**options, **_near_and_enough(element_size, power)}
    n_blocks = triton.cdiv(n_queries, tile.rows)
    kernel[(n_blocks * batch * heads,)](
        **options,
        **dict(zip(("out", "mean", "top", "tau"), results, strict=True)),
        n_blocks=n_blocks,
        TRAINING=training,
        **tile.arguments(),
    )


def _launch_backward(
    options: dict[str, Any],
    grad: Tensor,
    saved: tuple[Tensor, Tensor, Tensor],
    gradients: tuple[Tensor, Tensor, Tensor, Tensor],
    learned: bool,
) -> None:
    batch, heads, n_queries, _ = options["q"].shape
    groups, n_keys = options["k"].shape[1:3]
    mean, top, tau = saved
    dq, dk, dv, dalpha = gradients
    of_rows = tau.new_empty(*tau.shape, 4)  # written by the first kernel for the second
    options = {**options, **strides("grad", grad), "grad": grad, "of_rows": of_rows}
    by_queries, by_keys = (
        _backward_tile(tile, options)
        for tile in (_tiles(options).for_queries, _tiles(options).for_keys)
    )
    if learned and _needs(options) > 1:  # sums for alpha need registers too
        by_queries = by_queries._replace(rows=max(16, by_queries.rows // 2))
    n_blocks = triton.cdiv(n_queries, by_queries.rows)
    kernels.for_queries[(n_blocks * batch * heads,)](
        **options,
        mean=mean,
        top=top,
        tau=tau,
        dq=dq,
        dalpha=dalpha,
        n_blocks=n_blocks,
        LEARNED=learned,
        **by_queries.arguments(),
    )
    n_blocks = triton.cdiv(n_keys, by_keys.keys)
    kernels.for_keys[(n_blocks * batch * groups,)](
        **options, dk=dk, dv=dv, n_blocks=n_blocks, **by_keys.arguments()
    )
