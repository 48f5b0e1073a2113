# Arguments of kernels have no types that a type checker would know.
# pyright: basic
# ruff: noqa: RUF005  Triton cannot unpack a tuple into another
"""Top-k attention of short rows in one kernel, which selects keys and sums their values.

`attend_resident` takes rows that fit into one tile. The scores of a block of queries stay on chip.
The largest value of each row is removed until `keep` scores are counted; the last one removed is
the bound, and the rest is softmax over kept scores. No row is in doubt.

`attend_merged` takes rows of some hundred keys. Buckets hold their four largest scores as in
`selection`, the last only as a bound on the scores that were dropped. Scores are inserted in sorted
pairs, which takes six maxima and minima per score instead of seven. Then lists are merged, all
within a thread, until four per row are left, in which the eight largest scores of the row are
found; a list too full to be certain raises doubt. Sixteen queries with one in doubt get a flag, and
are computed again by other kernels.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import (
    Call,
    Tile,
    load_rows,
    load_shown,
    padded,
    place,
    score_tile,
    strides,
    with_rows,
)
from headwise.ops.topk.selection import (
    ANY,
    Selection,
    above_of,
    between,
    blocks,
    keys_seen,
    launch_arguments,
    pull,
    set_flags,
    store_bounds,
    whole_tiles,
)
from headwise.ops.topk.weights import drop_tile, weights_of, widths

# Keys that fit the registers, by the bytes of a number.
MOST_KEYS = {2: 128, 4: 32}
# Triton 3.6 multiplies narrower values wrongly on Hopper if no loop reads them.
LEAST_WIDTH = 64


def attend_resident(
    call: Call, v: Tensor, keep: int, first_ties: bool, dropout: float, seed: Tensor | None,
    chosen: Selection, *, out: Tensor, log_sum: Tensor,
) -> None:  # fmt: skip
    """Write the output and the inputs of the backward pass. A row has at most MOST_KEYS keys."""
    batch, heads, n_queries = log_sum.shape
    v, rows = with_rows(v), 64 if v.element_size() == 2 else 16
    n_blocks = -(-n_queries // rows)
    low, high, last, peak = chosen
    given = call.arguments() | strides("v", v) | widths(call, v)
    if v.element_size() == 2:
        given["PADDED_VALUES"] = max(given["PADDED_VALUES"], LEAST_WIDTH)
    given["KEY_MASK"] = given["MASKED"]
    given["MASKED"] = min(given["MASKED"], 1)  # fewer registers spill if it is read for every score
    if programs := batch * heads * n_blocks:
        _resident_kernel[(programs,)](
            **given, v=v, low=low, high=high, last=last, peak=peak, out=out, log_sum=log_sum,
            seed=seed, dropout=dropout, keep=keep, n_blocks=n_blocks, FIRST=first_ties, ROWS=rows,
            KEYS=padded(call.k.shape[2]),
        )  # fmt: skip


@triton.jit(do_not_specialize=[*ANY, "keep"])
@no_type_check
def _resident_kernel(
    q, k, v, lengths, mask, low, high, last, peak, out, log_sum, seed, scale, dropout,
    first, heads, groups, n_queries, n_keys, n_blocks, keep, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, KEY_MASK: tl.constexpr, FIRST: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    keys = tl.arange(0, KEYS)
    inside = rows < n_queries
    line = batch * heads + head
    at = line * n_queries + rows
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    k_KD = load_rows(k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED)
    score_QK = score_tile(
        q_QD, k_KD, rows, keys, tl.load(lengths + batch), n_queries, scale, first,
        mask + batch * mask_batch + head * mask_head, mask_row, mask_key, CAUSAL, MASKED,
    )  # fmt: skip

    left_QK = score_QK
    tau = tl.full((ROWS,), float("inf"), tl.float32)
    above = tau
    counted = tl.full((ROWS,), 0, tl.int32)
    for _ in range(keep):  # one value per turn, from all keys that have it
        value = tl.where(counted < keep, tl.max(left_QK, axis=1), float("inf"))
        taken_QK = left_QK == value[:, None]
        counted += tl.sum(taken_QK.to(tl.int32), axis=1)
        above = tl.where(value < tau, tau, above)
        tau = tl.minimum(tau, value)
        left_QK = tl.where(taken_QK, float("-inf"), left_QK)
    below = tl.max(tl.where(score_QK < tau[:, None], score_QK, float("-inf")), axis=1)
    last_key = tl.full((ROWS,), 0, tl.int32) + n_keys
    if FIRST:
        larger = tl.sum((score_QK > tau[:, None]).to(tl.int32), axis=1)
        ties_QK = (score_QK == tau[:, None]).to(tl.int32)
        fits_QK = (tl.cumsum(ties_QK, axis=1) <= (keep - larger)[:, None]) & (ties_QK > 0)
        last_tied = tl.max(tl.where(fits_QK, keys[None, :], -1), axis=1)
        last_key = tl.where(tau > float("-inf"), last_tied, last_key)
    store_bounds(low, high, last, tau, below, above, last_key, at, inside, FIRST)

    largest = tl.max(score_QK, axis=1)
    weight_QK = weights_of(
        score_QK, keys[None, :], largest[:, None], between(tau, below)[:, None],
        above_of(tau, above)[:, None], last_key[:, None], FIRST,
    )  # fmt: skip
    total = tl.sum(weight_QK, axis=1)
    if seed is not None:
        weight_QK = drop_tile(weight_QK, line, rows, 0, dropout, seed)
    last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
    v_KE = load_shown(
        v + batch * v_batch + group * v_head, keys, v_row,
        keys_seen(tl.load(lengths + batch), n_keys, last_row, first, CAUSAL),
        mask + batch * mask_batch + head * mask_head, mask_key, VALUES, PADDED_VALUES, KEY_MASK,
    )  # fmt: skip
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    out_QE = tl.dot(weight_QK.to(v_KE.dtype), v_KE, input_precision="ieee") / total[:, None]
    column = tl.arange(0, PADDED_VALUES)
    to_QE = out + at[:, None] * VALUES + column[None, :]
    tl.store(to_QE, out_QE, mask=inside[:, None] & (column < VALUES)[None, :])
    tl.store(peak + at, largest, mask=inside)
    tl.store(log_sum + at, tl.log2(total), mask=inside)


TILE = Tile(rows=64, keys=128, warps=4, stages=2)
MOST_KEEP = 8
LIST = tl.constexpr(MOST_KEEP)


def attend_merged(
    call: Call, v: Tensor, keep: int, first_ties: bool, dropout: float, seed: Tensor | None,
    chosen: Selection, flags: Tensor, *, out: Tensor, log_sum: Tensor,
) -> None:  # fmt: skip
    """Write the output and the inputs of the backward pass, and flag queries in doubt.

    The scale must be above 0, and `keep` at most MOST_KEEP.
    """
    v = with_rows(v)
    given = launch_arguments(call, chosen, flags, keep, first_ties, TILE)
    if programs := blocks(call, TILE):
        _merged_kernel[(programs,)](
            **(given | strides("v", v) | widths(call, v)), v=v, peak=chosen.peak, out=out,
            log_sum=log_sum, seed=seed, dropout=dropout,
        )  # fmt: skip


@triton.jit
@no_type_check
def _halves(x_QK):
    """Split every row into two halves; no number changes its thread."""
    rows: tl.constexpr = x_QK.shape[0]
    half: tl.constexpr = x_QK.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(x_QK, (rows, 2, half)), (0, 2, 1)))


@triton.jit
@no_type_check
def _neighbours(x_QK):
    """Split every row into its even and its odd columns."""
    rows: tl.constexpr = x_QK.shape[0]
    half: tl.constexpr = x_QK.shape[1] // 2
    return tl.split(tl.reshape(x_QK, (rows, half, 2)))


@triton.jit
@no_type_check
def _ordered(one, other):
    """Return the larger and the smaller of two, element by element."""
    return tl.maximum(one, other), tl.minimum(one, other)


@triton.jit
@no_type_check
def _push_pair(levels, score_QK):
    """Insert the two scores of each bucket into its four sorted levels; drop the smallest."""
    one, other = _halves(score_QK)
    high, low = _ordered(one, other)
    a, c = _ordered(levels[0], tl.maximum(levels[2], low))
    b, d = _ordered(levels[1], tl.maximum(levels[3], high))
    a, b = _ordered(a, b)
    c, d = _ordered(c, d)
    return a, b, c, d


@triton.jit
@no_type_check
def _merge_threes(one, other):
    """Merge two sorted lists of three into one of six."""
    a, f = _ordered(one[0], other[0])
    b, g = _ordered(one[1], other[1])
    c, h = _ordered(one[2], other[2])
    b, f = _ordered(b, f)
    c, g = _ordered(c, g)
    c, f = _ordered(c, f)
    return a, b, c, f, g, h


@triton.jit
@no_type_check
def _sorted_eight(a, b, c, d, e, f, g, h):
    """Sort a list of eight that falls and then rises."""
    a, e = _ordered(a, e)
    b, f = _ordered(b, f)
    c, g = _ordered(c, g)
    d, h = _ordered(d, h)
    a, c = _ordered(a, c)
    b, d = _ordered(b, d)
    e, g = _ordered(e, g)
    f, h = _ordered(f, h)
    a, b = _ordered(a, b)
    c, d = _ordered(c, d)
    e, f = _ordered(e, f)
    g, h = _ordered(g, h)
    return a, b, c, d, e, f, g, h


@triton.jit
@no_type_check
def _merge_sixes(one, other):
    """Merge two sorted lists of six into their eight largest, sorted."""
    c = tl.maximum(one[2], other[5])
    d = tl.maximum(one[3], other[4])
    e = tl.maximum(one[4], other[3])
    f = tl.maximum(one[5], other[2])
    return _sorted_eight(one[0], one[1], c, d, e, f, other[1], other[0])


@triton.jit
@no_type_check
def _merge_eights(one, other):
    """Merge two sorted lists of eight into their eight largest, sorted."""
    best = ()
    for rank in tl.static_range(LIST):
        best = best + (tl.maximum(one[rank], other[LIST - 1 - rank]),)
    return _sorted_eight(best[0], best[1], best[2], best[3], best[4], best[5], best[6], best[7])


@triton.jit
@no_type_check
def _parted(lists, RANKS: tl.constexpr, NEIGHBOURS: tl.constexpr):
    """Split the first RANKS places of the lists of every row into two parts to merge."""
    one, other = (), ()
    for rank in tl.static_range(RANKS):
        parts = _neighbours(lists[rank]) if NEIGHBOURS else _halves(lists[rank])
        one, other = one + (parts[0],), other + (parts[1],)
    return one, other


@triton.jit
@no_type_check
def _lists(levels):
    """Find the eight largest scores of every sixteen buckets of a row, sorted."""
    one, other = _parted(levels, 3, False)  # the last level only bounds dropped scores
    six = _merge_threes(one, other)
    one, other = _parted(six, 6, False)
    eight = _merge_sixes(one, other)
    one, other = _parted(eight, LIST, False)
    eight = _merge_eights(one, other)
    one, other = _parted(eight, LIST, True)  # a thread has two neighbours left
    return _merge_eights(one, other)


@triton.jit
@no_type_check
def _search(lists, keep):
    """Find the largest score of each row, and the keep-th unless two lists share a larger one."""
    largest = tl.max(lists[0], axis=1)
    tau = largest
    for turn in tl.static_range(LIST):
        value = tl.max(lists[0], axis=1)
        tau = tl.where(turn < keep, value, tau)
        lists = pull(lists, lists[0] == value[:, None], LIST - turn)
    return largest, tau


@triton.jit
@no_type_check
def _around(lists, largest, tau, unit):
    """Count scores above tau and those that reach it, and find the next larger and smaller one.

    Also sums exp2(unit (score - largest)) of those that reach it: once rounded as in the second
    sweep, and once as in the backward pass.
    """
    nothing = tl.full(lists[0].shape, float("-inf"), tl.float32)
    below_QL, above_QL = nothing, -nothing
    total_QL = tl.full(lists[0].shape, 0.0, tl.float32)
    larger_QL, reach_QL, exact_QL = total_QL, total_QL, total_QL
    top = tl.where(largest == float("-inf"), 0.0, largest)
    norm = top * unit
    for rank in tl.static_range(LIST):
        reaches_QL, above_it_QL = lists[rank] >= tau[:, None], lists[rank] > tau[:, None]
        reach_QL += tl.where(reaches_QL, 1.0, 0.0)
        larger_QL += tl.where(above_it_QL, 1.0, 0.0)
        below_QL = tl.maximum(below_QL, tl.where(reaches_QL, float("-inf"), lists[rank]))
        above_QL = tl.minimum(above_QL, tl.where(above_it_QL, lists[rank], float("inf")))
        weight_QL = tl.exp2(lists[rank] * unit - norm[:, None])
        total_QL += tl.where(reaches_QL, weight_QL, 0.0)
        weight_QL = tl.exp2((lists[rank] - top[:, None]) * unit)
        exact_QL += tl.where(reaches_QL, weight_QL, 0.0)
    return (
        tl.sum(larger_QL, axis=1), tl.sum(reach_QL, axis=1), tl.min(above_QL, axis=1),
        tl.max(below_QL, axis=1), tl.sum(total_QL, axis=1), tl.sum(exact_QL, axis=1),
    )  # fmt: skip


@triton.jit
@no_type_check
def _load_tile(start, keys, stride, n_keys, whole, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows of keys or values; no row of a whole tile is beyond the last."""
    if whole and WIDTH == PADDED:
        return tl.load(start + keys[:, None].to(tl.int64) * stride + tl.arange(0, PADDED)[None, :])
    return load_rows(start, keys, stride, n_keys, WIDTH, PADDED)


@triton.jit
@no_type_check
def _unscaled(
    q_QD, k, k_row, rows, keys, length, n_queries, n_keys, first, mask, mask_row, mask_key,
    whole, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Compute a tile of scores without the scale; all keys of a whole tile are visible."""
    k_KD = _load_tile(k, keys, k_row, n_keys, whole, WIDTH, PADDED)
    if whole:
        score_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee")
    else:
        score_QK = score_tile(
            q_QD, k_KD, rows, keys, length, n_queries, 1.0, first, mask, mask_row, mask_key,
            CAUSAL, MASKED,
        )  # fmt: skip
    return score_QK


@triton.jit(do_not_specialize=[*ANY, "keep"])
@no_type_check
def _merged_kernel(
    q, k, v, lengths, mask, low, high, last, peak, flags, out, log_sum, seed, scale, dropout,
    first, heads, groups, n_queries, n_keys, n_blocks, keep, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FIRST: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    line = batch * heads + head
    at = line * n_queries + rows
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    k += batch * k_batch + group * k_head
    v += batch * v_batch + group * v_head
    mask += batch * mask_batch + head * mask_head
    last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
    seen = keys_seen(length, n_keys, last_row, first, CAUSAL)
    whole = whole_tiles(length, n_keys, block * ROWS, first, CAUSAL, MASKED, KEYS) * KEYS

    nothing_QB = tl.full((ROWS, KEYS // 2), float("-inf"), tl.float32)
    levels = (nothing_QB, nothing_QB, nothing_QB, nothing_QB)
    for masking in tl.static_range(2):  # tiles that every row sees, then the others
        for start in range(whole if masking else 0, seen if masking else whole, KEYS):
            keys = start + tl.arange(0, KEYS)
            score_QK = _unscaled(
                q_QD, k, k_row, rows, keys, length, n_queries, n_keys, first,
                mask, mask_row, mask_key, masking == 0, WIDTH, PADDED, CAUSAL, MASKED,
            )  # fmt: skip
            levels = _push_pair(levels, score_QK)

    unit = scale * 1.4426950408889634
    lists = _lists(levels)
    # No score that was dropped, or had no place in its list, is above this.
    hidden = tl.maximum(tl.max(levels[3], axis=1), tl.max(lists[LIST - 1], axis=1))
    largest, tau = _search(lists, keep)
    larger, reach, above, below, total, exact = _around(lists, largest, tau, unit)
    below = tl.maximum(below, hidden)
    # Also if the scale makes two scores equal. tau is -inf if fewer keys are seen than kept, but
    # also if lists that share scores ran out of them.
    doubtful = ((hidden >= tau) | (below * scale >= tau * scale)) & (below > float("-inf"))
    doubtful = doubtful | (larger >= keep)
    if FIRST:
        doubtful = doubtful | ((reach > keep) & (tau > float("-inf")))
    set_flags(flags, line, rows, n_queries, doubtful & inside)
    tl.store(peak + at, largest * scale, mask=inside)
    below = tl.where(doubtful, tau, below)  # then low is tau itself, where the rescue starts
    store_bounds(
        low, high, last, tau * scale, below * scale, above * scale, n_keys, at, inside, FIRST
    )

    least = between(tau, below)
    norm = tl.where(largest == float("-inf"), 0.0, largest * unit)
    out_QE = tl.full((ROWS, PADDED_VALUES), 0.0, tl.float32)
    for masking in tl.static_range(2):
        for start in range(whole if masking else 0, seen if masking else whole, KEYS):
            keys = start + tl.arange(0, KEYS)
            score_QK = _unscaled(
                q_QD, k, k_row, rows, keys, length, n_queries, n_keys, first,
                mask, mask_row, mask_key, masking == 0, WIDTH, PADDED, CAUSAL, MASKED,
            )  # fmt: skip
            # A NaN score stays.
            weight_QK = tl.exp2(score_QK * unit - norm[:, None])
            weight_QK = tl.where(score_QK < least[:, None], 0.0, weight_QK)
            if seed is not None:
                weight_QK = drop_tile(weight_QK, line, rows, start, dropout, seed)
            if masking:
                v_KE = load_shown(
                    v, keys, v_row, seen, mask, mask_key, VALUES, PADDED_VALUES, MASKED
                )
            else:
                v_KE = _load_tile(v, keys, v_row, n_keys, True, VALUES, PADDED_VALUES)
            out_QE = tl.dot(weight_QK.to(v_KE.dtype), v_KE, out_QE, input_precision="ieee")

    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    column = tl.arange(0, PADDED_VALUES)
    to = out + at[:, None] * VALUES + column[None, :]
    tl.store(to, out_QE / total[:, None], mask=inside[:, None] & (column[None, :] < VALUES))
    tl.store(log_sum + at, tl.log2(tl.where(empty, 1.0, exact)), mask=inside)
