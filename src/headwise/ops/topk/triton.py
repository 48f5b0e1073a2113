"""Top-k attention by Triton kernels, as custom operators that torch.compile can trace.

- Rows that fit a tile: one kernel (`fused.attend_resident`).
- Short rows: scores are swept twice, to select keys and to sum values, by two kernels (`selection`,
  `weights`) or, if it fits and is faster, by one (`fused.attend_merged`).
- Long rows: scores are swept once for candidates (`lists`), of which the best are listed
  (`ranking`). From then on only kept pairs are visited.

The backward pass sweeps twice, or visits only the kept pairs of long rows unless
torch.use_deterministic_algorithms is set. Memory is O(B H Q keep). The choice of keys is a constant
in the backward pass.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.ops._impl import Number
from headwise.ops.scores import Scores
from headwise.ops.tiles import Call, Tile
from headwise.ops.topk.fused import MOST_KEEP, MOST_KEYS, attend_merged, attend_resident
from headwise.ops.topk.lists import list_flagged, list_keys, pair_gradients, pair_values
from headwise.ops.topk.ranking import Listed, doubtful_tile, spare_places
from headwise.ops.topk.selection import Selection, allocate, flagged_tile, rescue, select
from headwise.ops.topk.weights import Kept, Sums, attend_kept, flagged_gradients, gradients

GATHER_KEYS = 1024  # rows of at least this many keys are long
GATHER_KEEP = 16  # if they keep at most this many
LARGEST = 2**31 - 1  # of 32 bits


class Sweeps(NamedTuple):
    """Tiles of each kernel that sweeps over scores."""

    select: Tile
    attend: Tile
    queries: Tile  # backward
    keys: Tile
    gather: Tile


HALF = Sweeps(  # float16 and bfloat16
    select=Tile(64, 64, warps=4, stages=3),
    attend=Tile(128, 64, warps=4, stages=3),
    queries=Tile(64, 64, warps=4, stages=3),
    keys=Tile(64, 64, warps=4, stages=3),
    gather=Tile(64, 64, warps=4, stages=3),
)
WIDE = Sweeps(  # float16 and bfloat16, heads wider than 64
    select=Tile(64, 64, warps=4, stages=3),
    attend=Tile(64, 64, warps=4, stages=3),
    queries=Tile(64, 64, warps=4, stages=2),
    keys=Tile(32, 64, warps=4, stages=2),
    gather=Tile(64, 64, warps=8, stages=3),
)
SINGLE = Sweeps(  # float32
    select=Tile(32, 64, warps=4, stages=2),
    attend=Tile(32, 32, warps=4, stages=2),
    queries=Tile(32, 32, warps=4, stages=2),
    keys=Tile(32, 32, warps=8, stages=1),
    gather=Tile(32, 64, warps=8, stages=2),
)
# 16 bits with a mask and dropout, or one of them with wide heads, which need more registers.
ROOMY = WIDE._replace(
    queries=Tile(64, 64, warps=8, stages=2),
    keys=Tile(32, 64, warps=8, stages=2),
)
WIDE_SINGLE = SINGLE._replace(  # float32, heads wider than 64
    attend=Tile(16, 32, warps=8, stages=2),
    keys=Tile(16, 32, warps=8, stages=1),
)


def topk_values(scores: Scores, v: Tensor, *, keep: int, ties: str, dropout: Number) -> Tensor:
    """Sum the values of the kept keys of every query, (B, H, Q, E). Differentiable once."""
    seed = None
    if dropout:
        seed = torch.randint(2**62, (1,), device=v.device)
    return _forward(
        scores.q,
        scores.k,
        v,
        scores.mask,
        scores.lengths,
        seed,
        float(scores.multiplier),
        scores.first_position,
        scores.causal,
        min(keep, scores.shape[3]),
        ties == "first",
        float(dropout),
    )[0]


def topk_selected(scores: Scores, *, keep: int) -> tuple[Tensor, Tensor]:
    """List the keys that each query keeps, (B, H, Q, keep), -1 if fewer, and their weights.

    They are sorted by weight, of equal ones the first key first. No gradient.
    """
    given = (scores.q, scores.k, scores.mask, scores.lengths, float(scores.multiplier))
    keep = min(keep, scores.shape[3])
    return _selected(*given, scores.first_position, scores.causal, keep)


@torch.library.custom_op("headwise::topk_selected", mutates_args=())
def _selected(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    keep: int,
) -> tuple[Tensor, Tensor]:
    call = Call.rebuilt(q, k, mask, lengths, scale, first, causal)
    with torch.cuda.device_of(q):
        listed = list_keys(call, keep, True, _sweeps(q, k).gather)
        kept = Kept(*listed.chosen[:3], True, 0.0, None)
        _attend_flagged(call, k, kept, listed, out=k.new_empty(q.shape))  # for their log_sum
        list_flagged(call, listed)
    keys, weights = _by_weight(*(x.permute(1, 2, 3, 0) for x in (listed.keys, listed.weights)))
    return keys, weights.masked_fill(listed.log_sum.isnan()[..., None], torch.nan)


def _by_weight(keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by weight, of equal ones the first key first; empty places, whose key is -1, last.

    Both are sorted as one integer: the bits of numbers that are not negative sort like them.
    """
    vacant = keys < 0
    bits = weights.masked_fill(vacant, 0).view(torch.int32).long()
    both = ((LARGEST - bits) << 32) | keys.masked_fill(vacant, LARGEST).long()
    both = both.sort(dim=-1).values
    keys, bits = (both & LARGEST).int(), LARGEST - (both >> 32)
    return keys.masked_fill(keys == LARGEST, -1), bits.int().view(torch.float32)


@_selected.register_fake
def _(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:3], others[-1])
    return q.new_empty(shape, dtype=torch.int32), q.new_empty(shape, dtype=torch.float32)


def _sweeps(q: Tensor, v: Tensor, *, masked: bool = False, dropout: float = 0.0) -> Sweeps:
    wide = max(q.shape[3], v.shape[3]) > 64
    if q.dtype == torch.float32:
        return WIDE_SINGLE if wide else SINGLE
    if masked + (dropout > 0) + wide > 1:
        return ROOMY
    return WIDE if wide else HALF


def _gathers(k: Tensor, keep: int, scale: float) -> bool:
    """Return whether rows are long. Their scores come unscaled, so the scale must be above 0."""
    return k.shape[2] >= GATHER_KEYS and keep <= GATHER_KEEP and scale > 0


@torch.library.custom_op("headwise::topk_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    keep: int,
    first_ties: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the output and, for the backward pass, the kept keys and sums of weights."""
    call = Call.rebuilt(q, k, mask, lengths, scale, first, causal)
    sweeps = _sweeps(q, v, masked=bool(call.masked), dropout=dropout)
    with torch.cuda.device_of(q):
        if _gathers(k, keep, scale):
            out, listed = _gather(call, v, keep, first_ties, dropout, seed, sweeps.gather)
        else:
            out, listed = _sweep(call, v, keep, first_ties, dropout, seed, sweeps)
    low, high, last, peak = listed.chosen
    lists = (listed.keys, listed.weights, peak, listed.flags)
    return out, listed.log_sum, low, high, last, *lists


def _sweep(
    call: Call,
    v: Tensor,
    keep: int,
    first_ties: bool,
    dropout: float,
    seed: Tensor | None,
    sweeps: Sweeps,
) -> tuple[Tensor, Listed]:
    """Attend with short rows, without lists of keys."""
    out = v.new_empty(*call.q.shape[:3], v.shape[3])
    log_sum = v.new_empty(call.q.shape[:3], dtype=torch.float32)
    if call.k.shape[2] <= MOST_KEYS[v.element_size()]:
        chosen, flags = allocate(call, first_ties, flagged_tile(call.q).rows)
        attend_resident(call, v, keep, first_ties, dropout, seed, chosen, out=out, log_sum=log_sum)
    elif _merges(call, v, keep):
        chosen, flags = allocate(call, first_ties, flagged_tile(call.q).rows)
        results = {"out": out, "log_sum": log_sum, "flags": flags}
        attend_merged(call, v, keep, first_ties, dropout, seed, chosen, **results)
        rescue(call, chosen, flags, keep, first_ties, flagged_tile(call.q))
        kept = Kept(*chosen[:3], first_ties, dropout, seed)
        attend_kept(call, v, kept, chosen.peak, flagged_tile(call.q), **results)
    else:
        chosen, flags = select(call, keep, first_ties, sweeps.select)
        kept = Kept(*chosen[:3], first_ties, dropout, seed)
        attend_kept(call, v, kept, chosen.peak, sweeps.attend, out=out, log_sum=log_sum)
    return out, Listed(chosen, log_sum, flags.new_empty(0), log_sum.new_empty(0), flags)


def _merges(call: Call, v: Tensor, keep: int) -> bool:
    """Return whether one kernel fits short rows and is faster: not if causal.

    It compares scores before scaling, so the scale must be above 0.
    """
    narrow = v.element_size() == 2 and max(call.q.shape[3], v.shape[3]) <= 64
    return narrow and keep <= MOST_KEEP and call.scale > 0 and not call.causal


def _gather(
    call: Call,
    v: Tensor,
    keep: int,
    first_ties: bool,
    dropout: float,
    seed: Tensor | None,
    sweep: Tile,
) -> tuple[Tensor, Listed]:
    """Attend with long rows; flagged blocks are computed like short ones."""
    listed = list_keys(call, keep, first_ties, sweep)
    out = pair_values(listed, v, dropout, seed, doubtful_tile(call.q).rows)
    _attend_flagged(call, v, Kept(*listed.chosen[:3], first_ties, dropout, seed), listed, out=out)
    return out, listed


def _attend_flagged(call: Call, v: Tensor, kept: Kept, listed: Listed, *, out: Tensor) -> None:
    """Write the output and log_sum of flagged blocks, for which only bounds are known."""
    results = {"out": out, "log_sum": listed.log_sum, "flags": listed.flags}
    attend_kept(call, v, kept, listed.chosen.peak, doubtful_tile(call.q), **results)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    scale, _, _, keep, first_ties, _ = others[3:]
    shape = q.shape[:3]
    ties = shape if first_ties else (0,)
    gathers = _gathers(k, keep, scale)
    listed = (keep + spare_places(first_ties), *shape) if gathers else (0,)
    flag_rows = (doubtful_tile(q) if gathers else flagged_tile(q)).rows
    n_flags = shape[0] * shape[1] * -(-shape[2] // flag_rows)
    return (
        v.new_empty(*shape, v.shape[3]),
        q.new_empty(shape, dtype=torch.float32),
        q.new_empty(shape, dtype=torch.float32),
        q.new_empty(ties, dtype=torch.float32),
        q.new_empty(ties, dtype=torch.int32),
        q.new_empty(listed, dtype=torch.int32),
        q.new_empty(listed, dtype=torch.float32),
        q.new_empty(shape, dtype=torch.float32),
        q.new_empty(n_flags, dtype=torch.int32),
    )


@torch.library.custom_op("headwise::topk_attention_backward", mutates_args=())
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    log_sum: Tensor,
    low: Tensor,
    high: Tensor,
    last: Tensor,
    keys: Tensor,
    weights: Tensor,
    peak: Tensor,
    flags: Tensor,
    dout: Tensor,
    scale: float,
    first: int,
    causal: bool,
    first_ties: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of q, k and v."""
    call = Call.rebuilt(q, k, mask, lengths, scale, first, causal)
    sweeps = _sweeps(q, v, masked=bool(call.masked), dropout=dropout)
    kept, sums = Kept(low, high, last, first_ties, dropout, seed), Sums(peak, log_sum)
    with torch.cuda.device_of(q):
        if not keys.numel() or torch.are_deterministic_algorithms_enabled():
            return gradients(call, v, kept, sums, out, dout, (sweeps.queries, sweeps.keys))
        chosen, spare = Selection(low, high, last, peak), spare_places(first_ties)
        listed = Listed(chosen, log_sum, keys, weights, flags, spare)
        dq, dk, dv = pair_gradients(call, v, listed, out, dropout, seed, dout)
        tile = doubtful_tile(call.q)
        if sweeps is ROOMY:  # the rows that share a flag stay the same
            tile = tile._replace(warps=8)
        flagged_gradients(call, v, kept, sums, out, dout, flags, dq, dk, dv, tile)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


@_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, ctx.first, ctx.causal, _, ctx.first_ties, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, dout: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    grads = _backward(
        *ctx.saved_tensors, dout, ctx.scale, ctx.first, ctx.causal, ctx.first_ties, ctx.dropout
    )
    return (*grads, *(None,) * 9)


_forward.register_autograd(_differentiate, setup_context=_save)
