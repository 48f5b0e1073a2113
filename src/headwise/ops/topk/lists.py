# Arguments of kernels have no types that a type checker would know.
# pyright: basic
# ruff: noqa: RUF005  Triton cannot unpack a tuple into another
"""Top-k attention of long rows: lists of the keys that queries keep, and sums over these pairs.

`list_keys` finds the keys in one sweep. The sweep is that of `selection`, but it holds cells of a
few keys by their largest score, whose last bits give way to the name of the cell. The `keep` best
keys lie in the `keep` best cells. A few more than these are named, the scores of all their keys
computed again from q and k, and the best taken (`ranking`). A row is certain if its keep-th score
is above all other candidates, and above anything that a bucket may have dropped or a missing bit
may hide, by more than rounding; and if its numbers are finite and not so large that bits could be
lost at the other end. Queries of which one is not certain are searched again, and where that does
not help, as with many ties, are computed like short rows, forward and backward.

`pair_values` and `pair_gradients` visit kept pairs only; spare places of a list only in blocks of
queries that have the flag TIED. The backward pass adds to dk and dv by atomics, in no fixed order,
and skips queries in doubt, which are left to `weights`.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import (
    SIZES,
    Call,
    Tile,
    load_rows,
    padded,
    place,
    score_tile,
    strides,
    with_rows,
)
from headwise.ops.topk.ranking import Candidates, Listed, choose, doubtful_tile, spare_places
from headwise.ops.topk.selection import (
    ANY,
    IN_DOUBT,
    TIED,
    allocate,
    blocks,
    fill_levels,
    keys_seen,
    launch_arguments,
    levels_for,
    pull,
    rescue,
)
from headwise.ops.topk.weights import drop_pairs

CELL = 2  # keys per cell: more of them means less to hold while sweeping, but more to score
# Keys per row -> extra cells: that many may differ by less than the missing bits.
EXTRA = {8191: 2, 1 << 62: 4}
REACH_KEYS = 128  # keys per program of the kernel that finds how large keys are
SCORE_ROWS = 32  # queries per program of the kernel that scores candidates


# Arguments of kernels that decide which keys are kept.
CHOOSING = ("flags", "low", "high", "last", "keep", "FIRST")


def list_keys(call: Call, keep: int, first_ties: bool, sweep: Tile) -> Listed:
    """Find the kept keys of every query and their weights."""
    chosen, flags = allocate(call, first_ties, doubtful_tile(call.q).rows)
    new = chosen.low.new_empty
    shape = chosen.low.shape
    spare = spare_places(first_ties)
    keys, weights = (new((keep + spare, *shape), dtype=x) for x in (torch.int32, torch.float32))
    listed = Listed(chosen, new(shape), keys, weights, flags, spare)
    if len(flags):
        choose(call, listed, _candidates(call, listed, keep, sweep), keep, first_ties)
        rescue(call, chosen, flags, keep, first_ties, doubtful_tile(call.q))
    return listed


def _candidates(call: Call, listed: Listed, keep: int, sweep: Tile) -> Candidates:
    """Find the keys of the best cells; `peak` and `log_sum` become the inputs of `choose`."""
    batch, heads, n_queries = listed.log_sum.shape
    n_keys = call.k.shape[2]
    sweep = _fitting(sweep, call, keep)
    n_turns = -(-n_keys // (sweep.keys * CELL))
    low_bits = (1 << (n_turns - 1).bit_length()) * sweep.keys - 1
    cells = keep + next(extra for most, extra in EXTRA.items() if n_keys <= most)
    slots = cells * CELL
    keys = listed.keys.new_empty(slots, batch, heads, n_queries)
    scores = listed.log_sum.new_empty(keys.shape)
    given = launch_arguments(call, listed.chosen, listed.flags, keep, True, sweep)
    given = {x: argument for x, argument in given.items() if x not in CHOOSING}
    given |= {"keys": keys, "low_bits": low_bits, "n_rows": listed.log_sum.numel()}
    _sweep_kernel[(blocks(call, sweep),)](
        **given, peak=listed.chosen.peak, cells=cells, CELL=CELL, LEVELS=levels_for(keep),
        CELLS=1 << (cells - 1).bit_length(),
    )  # fmt: skip
    n_blocks = -(-n_queries // SCORE_ROWS)
    given |= {"n_blocks": n_blocks, "ROWS": SCORE_ROWS, "num_warps": 4, "num_stages": 1}
    unused = ("KEYS", "low_bits")
    _score_kernel[(batch * heads * n_blocks,)](
        **{x: argument for x, argument in given.items() if x not in unused},
        scores=scores, reach=_reach(call), doubts=listed.log_sum, slots=slots,
    )  # fmt: skip
    return Candidates(keys, scores, low_bits)


def _fitting(sweep: Tile, call: Call, keep: int) -> Tile:
    """Adapt the tile so that the levels of all buckets fit the registers."""
    if call.q.dtype == torch.float32 and call.masked:
        return sweep._replace(rows=16, keys=16, warps=8)
    if call.q.dtype == torch.float32 and call.causal and call.q.shape[3] <= 64:
        return sweep._replace(rows=16, keys=32, warps=8)
    crowded = levels_for(keep) > 4 or call.masked == 1
    if levels_for(keep) > 6 and call.masked == 1:
        sweep = sweep._replace(rows=min(sweep.rows, 32))
    return sweep._replace(warps=8) if crowded else sweep


def _reach(call: Call) -> Tensor:
    """Find the largest absolute number in the keys of each head, (B * G,), as bits of a float."""
    batch, groups, n_keys, width = call.k.shape
    reach = torch.zeros(batch * groups, dtype=torch.int32, device=call.k.device)
    n_blocks = -(-n_keys // REACH_KEYS)
    _reach_kernel[(batch * groups * n_blocks,)](
        call.k, reach, groups, n_keys, n_blocks, *call.k.stride()[:3],
        WIDTH=width, PADDED=padded(width), KEYS=REACH_KEYS,
    )  # fmt: skip
    return reach


def list_flagged(call: Call, listed: Listed) -> None:
    """Write keys and weights of flagged queries, whose sums are final; of ties the first."""
    keep = len(listed.keys) - listed.spare
    common = launch_arguments(call, listed.chosen, listed.flags, keep, True, doubtful_tile(call.q))
    if len(listed.flags):
        _list_kernel[(len(listed.flags),)](
            **common, peak=listed.chosen.peak, log_sum=listed.log_sum, picked=listed.keys,
            weights=listed.weights, n_rows=listed.log_sum.numel(),
        )  # fmt: skip


@triton.jit
@no_type_check
def _size(x):
    """Return absolute numbers as bits, which compare in the same order; NaN is the largest."""
    return x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit(do_not_specialize=["groups", "n_keys", "n_blocks"])
@no_type_check
def _reach_kernel(
    k, reach, groups, n_keys, n_blocks, k_batch, k_head, k_row,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, group, _ = place(n_blocks, groups, groups)
    keys = block * KEYS + tl.arange(0, KEYS)
    k_KD = load_rows(k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED)
    largest = tl.max(tl.max(_size(k_KD), axis=1), axis=0)
    tl.atomic_max(reach + batch * groups + group, largest, sem="relaxed")


@triton.jit(do_not_specialize=[*ANY, "n_rows", "cells", "low_bits"])
@no_type_check
def _sweep_kernel(
    q, k, lengths, mask, peak, keys, scale, first, heads, groups, n_queries, n_keys,
    n_rows, n_blocks, cells, low_bits, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, LEVELS: tl.constexpr, CELL: tl.constexpr,
    CELLS: tl.constexpr,
):  # fmt: skip
    """Write the keys of the best cells, -1 if fewer, and in `peak` a bound on all other keys."""
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    levels = fill_levels(
        q_QD, k + batch * k_batch + group * k_head, k_row,
        mask + batch * mask_batch + head * mask_head, mask_row, mask_key, block,
        tl.load(lengths + batch), 1.0, first, n_queries, n_keys, low_bits,
        WIDTH, PADDED, CAUSAL, MASKED, ROWS, KEYS, LEVELS, CELL,
    )  # fmt: skip

    bound = tl.max(levels[LEVELS - 1], axis=1)  # no dropped or unnamed cell is larger
    named = ()  # by their last bits, no two alike
    for level in tl.static_range(LEVELS - 1):
        bits_QK = levels[level].to(tl.int32, bitcast=True) | tl.arange(0, KEYS)[None, :]
        name_QK = bits_QK.to(tl.float32, bitcast=True)
        named = named + (tl.where(levels[level] > -9e37, name_QK, float("-inf")),)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    place_1C = tl.arange(0, CELLS)[None, :]
    name_QC = tl.full((ROWS, CELLS), -1, tl.int32)
    for cell in range(cells):
        top = tl.max(named[0], axis=1)
        named = pull(named, named[0] == top[:, None], LEVELS - 1)
        name = tl.where(top > -9e37, top.to(tl.int32, bitcast=True) & low_bits, -1)
        name_QC = tl.where(place_1C == cell, name[:, None], name_QC)
    bound = tl.maximum(bound, tl.max(named[0], axis=1))

    stored_QC = inside[:, None] & (place_1C < cells)
    for member in tl.static_range(CELL):
        key_QC = (name_QC // KEYS * CELL + member) * KEYS + name_QC % KEYS
        to_QC = keys + (place_1C * CELL + member) * n_rows.to(tl.int64) + at[:, None]
        tl.store(to_QC, tl.where(name_QC >= 0, key_QC, -1), mask=stored_QC)
    tl.store(peak + at, bound, mask=inside)


@triton.jit
@no_type_check
def gather_rows(start, keys, stride, real, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load one row of a matrix per query, (len(keys), PADDED) in float32; zeros if not real."""
    column = tl.arange(0, PADDED)
    at = start + keys[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(at, mask=real[:, None] & (column[None, :] < WIDTH), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=[*ANY, "n_rows", "slots"])
@no_type_check
def _score_kernel(
    q, k, lengths, mask, keys, scores, reach, doubts, scale, first, heads, groups, n_queries,
    n_keys, n_rows, n_blocks, slots, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Write scores of candidates, -inf where hidden, and whether those of a row are in doubt."""
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    q_QD = q_QD.to(tl.float32)
    k += batch * k_batch + group * k_head
    mask += batch * mask_batch + head * mask_head
    n_rows = n_rows.to(tl.int64)
    pair = (tl.load(keys + at, inside, other=-1), tl.load(keys + n_rows + at, inside, other=-1))
    for slot in range(0, slots, 2):  # the loads of two do not wait for each other
        later = inside & (slot + 2 < slots)  # keys are prefetched
        next_keys = keys + (slot + 2) * n_rows + at
        next_key = tl.load(next_keys, later, other=-1)
        next_pair = (next_key, tl.load(next_keys + n_rows, later, other=-1))
        for member in tl.static_range(2):
            key = pair[member]
            seen = (key >= 0) & (key < length)
            if CAUSAL:
                seen = seen & (key <= rows + first)
            if MASKED:
                spot = mask + rows.to(tl.int64) * mask_row + key.to(tl.int64) * mask_key
                seen = seen & (tl.load(spot, mask=seen, other=0) != 0)
            score = tl.sum(q_QD * gather_rows(k, key, k_row, seen, WIDTH, PADDED), axis=1) * scale
            real = seen & (score == score)  # NaN has no rank; its row is in doubt
            to_slot = (slot + member) * n_rows + at
            tl.store(scores + to_slot, tl.where(real, score, float("-inf")), mask=inside)
        pair = next_pair
    reach_q = tl.max(_size(q_QD), axis=1).to(tl.float32, bitcast=True)
    reach_k = tl.load(reach + batch * groups + group).to(tl.float32, bitcast=True)
    known = reach_q * reach_k * WIDTH * tl.maximum(scale, 1.0) < 1e37
    tl.store(doubts + at, tl.where(known, 0.0, 1.0), mask=inside)


@triton.jit(do_not_specialize=[*ANY, "n_rows", "keep"])
@no_type_check
def _list_kernel(
    q, k, lengths, mask, low, high, last, flags, peak, log_sum, picked, weights, scale, first,
    heads, groups, n_queries, n_keys, n_rows, n_blocks, keep, q_batch, q_head, q_row,
    k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    FIRST: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    if tl.load(flags + tl.program_id(0)) != IN_DOUBT:
        return
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    least = tl.load(low + at, mask=inside, other=float("inf"))
    divisor = tl.load(log_sum + at, mask=inside, other=0.0)
    norm = tl.load(peak + at, mask=inside, other=0.0)
    norm = tl.where(norm == float("-inf"), 0.0, norm)
    listed = tl.full((ROWS,), 0, tl.int32)
    last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
    for start in range(0, keys_seen(length, n_keys, last_row, first, CAUSAL), KEYS):
        keys = start + tl.arange(0, KEYS)
        k_KD = load_rows(
            k + batch * k_batch + group.to(tl.int64) * k_head, keys, k_row, n_keys, WIDTH, PADDED
        )
        score_QK = score_tile(
            q_QD, k_KD, rows, keys, length, n_queries, scale, first,
            mask + batch * mask_batch + head * mask_head, mask_row, mask_key, CAUSAL, MASKED,
        )  # fmt: skip
        kept_QK = score_QK >= least[:, None]
        if FIRST:
            sure = tl.load(high + at, mask=inside, other=float("inf"))
            end = tl.load(last + at, mask=inside, other=-1)
            kept_QK = kept_QK & ((score_QK >= sure[:, None]) | (keys[None, :] <= end[:, None]))
        place_QK = listed[:, None] + tl.cumsum(kept_QK.to(tl.int32), axis=1) - 1
        listed += tl.sum(kept_QK.to(tl.int32), axis=1)
        fits_QK = kept_QK & (place_QK < keep) & inside[:, None]
        to_QK = place_QK.to(tl.int64) * n_rows + at[:, None]
        tl.store(picked + to_QK, keys[None, :] + rows[:, None] * 0, mask=fits_QK)
        log_QK = (score_QK - norm[:, None]) * 1.4426950408889634 - divisor[:, None]
        tl.store(weights + to_QK, tl.exp2(log_QK), mask=fits_QK)
    for slot in range(keep):
        vacant = inside & (slot >= listed)
        to_slot = slot * n_rows.to(tl.int64) + at
        tl.store(picked + to_slot, -1, mask=vacant)
        tl.store(weights + to_slot, 0.0, mask=vacant)


VALUE_ROWS = 16  # queries per program of the kernel that sums values
PAIR_ROWS = 16  # queries per program of the kernel that computes gradients


def pair_values(
    listed: Listed, v: Tensor, dropout: float, seed: Tensor | None, flag_rows: int
) -> Tensor:
    """Sum the values of listed keys by their weights, (B, H, Q, E)."""
    batch, heads, n_queries = listed.log_sum.shape
    v = with_rows(v)
    out = v.new_empty(batch, heads, n_queries, v.shape[3])
    n_blocks = -(-n_queries // VALUE_ROWS)
    if programs := batch * heads * n_blocks:
        _values_kernel[(programs,)](
            v, listed.keys, listed.weights, listed.flags, out, seed, dropout, heads, v.shape[1],
            n_queries, listed.log_sum.numel(), n_blocks, len(listed.keys) - listed.spare,
            *v.stride()[:3], VALUES=v.shape[3], PADDED_VALUES=padded(v.shape[3]), ROWS=VALUE_ROWS,
            FLAG_ROWS=flag_rows, SPARE=listed.spare,
        )  # fmt: skip
    return out


def pair_gradients(
    call: Call, v: Tensor, listed: Listed, out: Tensor, dropout: float, seed: Tensor | None,
    dout: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute gradients of q, and in float32 of k and v, from the pairs of queries not in doubt."""
    batch, heads, n_queries, width = call.q.shape
    v, dout = with_rows(v), with_rows(dout)
    dq = call.q.new_empty(call.q.shape)
    dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (call.k, v))
    n_blocks = -(-n_queries // PAIR_ROWS)
    if programs := batch * heads * n_blocks:
        unused = ("mask", "MASKED", "lengths", "first", "CAUSAL")  # the pairs are known
        used = {x: given for x, given in call.arguments().items() if not x.startswith(unused)}
        _pairs_kernel[(programs,)](
            **used, **strides("v", v), **strides("dout", dout), v=v, dout=dout, out=out,
            picked=listed.keys, weights=listed.weights, flags=listed.flags, dq=dq, dk=dk, dv=dv,
            seed=seed, dropout=dropout, keep=len(listed.keys) - listed.spare, n_blocks=n_blocks,
            n_rows=listed.log_sum.numel(), PADDED=padded(width), VALUES=v.shape[3],
            PADDED_VALUES=padded(v.shape[3]), ROWS=PAIR_ROWS,
            FLAG_ROWS=doubtful_tile(call.q).rows, SPARE=listed.spare,
            num_warps=2,  # pyright: ignore[reportCallIssue]
        )  # fmt: skip
    return dq, dk, dv


@triton.jit(do_not_specialize=["heads", "groups", "n_queries", "n_rows", "n_blocks", "keep"])
@no_type_check
def _values_kernel(
    v, picked, weights, flags, out, seed, dropout, heads, groups, n_queries, n_rows, n_blocks, keep,
    v_batch, v_head, v_row,
    VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr, ROWS: tl.constexpr, FLAG_ROWS: tl.constexpr,
    SPARE: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    at = (batch * heads + head) * n_queries + rows
    inside = rows < n_queries
    places = keep
    if SPARE:
        flag = (batch * heads + head) * tl.cdiv(n_queries, FLAG_ROWS) + block * ROWS // FLAG_ROWS
        places += tl.where(tl.load(flags + flag) == TIED, SPARE, 0)
    v += batch * v_batch + group * v_head
    out_QE = tl.full((ROWS, PADDED_VALUES), 0.0, tl.float32)
    n_rows = n_rows.to(tl.int64)
    key = tl.load(picked + at, mask=inside, other=-1)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    for slot in range(places):
        later = inside & (slot + 1 < places)  # prefetched, because much depends on it
        next_key = tl.load(picked + (slot + 1) * n_rows + at, mask=later, other=-1)
        next_weight = tl.load(weights + (slot + 1) * n_rows + at, mask=later, other=0.0)
        dropped = weight
        if seed is not None:
            dropped = drop_pairs(weight, batch * heads + head, rows, key, dropout, seed)
        v_QE = gather_rows(v, key, v_row, key >= 0, VALUES, PADDED_VALUES)
        out_QE += dropped[:, None] * v_QE
        key, weight = next_key, next_weight
    column = tl.arange(0, PADDED_VALUES)
    to_QE = out + at[:, None] * VALUES + column[None, :]
    tl.store(to_QE, out_QE, mask=inside[:, None] & (column < VALUES)[None, :])


@triton.jit(do_not_specialize=[*SIZES, "n_rows", "keep"])
@no_type_check
def _pairs_kernel(
    q, k, v, out, dout, picked, weights, flags, dq, dk, dv, seed, scale, dropout,
    heads, groups, n_queries, n_keys, n_rows, n_blocks, keep, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, dout_batch, dout_head, dout_row,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    ROWS: tl.constexpr, FLAG_ROWS: tl.constexpr, SPARE: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    flag = (batch * heads + head) * tl.cdiv(n_queries, FLAG_ROWS) + block * ROWS // FLAG_ROWS
    flag = tl.load(flags + flag)
    if flag == IN_DOUBT:
        return
    places = keep + tl.where(flag == TIED, SPARE, 0)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    dout_QE = load_rows(
        dout + batch * dout_batch + head * dout_head, rows, dout_row, n_queries,
        VALUES, PADDED_VALUES,
    )  # fmt: skip
    out_QE = load_rows(
        out + (batch * heads + head) * n_queries * VALUES, rows, VALUES, n_queries,
        VALUES, PADDED_VALUES,
    )  # fmt: skip
    q_QD, dout_QE = q_QD.to(tl.float32), dout_QE.to(tl.float32)
    mean = tl.sum(dout_QE * out_QE.to(tl.float32), axis=1)
    dq_QD = tl.full((ROWS, PADDED), 0.0, tl.float32)
    column_1D = tl.arange(0, PADDED)[None, :]
    column_1E = tl.arange(0, PADDED_VALUES)[None, :]
    n_rows = n_rows.to(tl.int64)
    key = tl.load(picked + at, mask=inside, other=-1)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    for slot in range(places):
        later = inside & (slot + 1 < places)  # prefetched, because much depends on it
        next_key = tl.load(picked + (slot + 1) * n_rows + at, mask=later, other=-1)
        next_weight = tl.load(weights + (slot + 1) * n_rows + at, mask=later, other=0.0)
        real = weight != 0.0
        dropped = weight
        if seed is not None:
            dropped = drop_pairs(weight, batch * heads + head, rows, key, dropout, seed)
        k_QD = gather_rows(k + batch * k_batch + group * k_head, key, k_row, real, WIDTH, PADDED)
        v_QE = gather_rows(
            v + batch * v_batch + group * v_head, key, v_row, real, VALUES, PADDED_VALUES
        )
        dscore = dropped * tl.sum(dout_QE * v_QE, axis=1) - weight * mean
        dq_QD += dscore[:, None] * k_QD
        key_at = ((batch * groups + group) * n_keys + key)[:, None]
        tl.atomic_add(
            dk + key_at * WIDTH + column_1D, dscore[:, None] * q_QD * scale,
            mask=real[:, None] & (column_1D < WIDTH), sem="relaxed",
        )  # fmt: skip
        tl.atomic_add(
            dv + key_at * VALUES + column_1E, dropped[:, None] * dout_QE,
            mask=real[:, None] & (column_1E < VALUES), sem="relaxed",
        )  # fmt: skip
        key, weight = next_key, next_weight
    to = dq + at[:, None] * WIDTH + column_1D
    tl.store(to, dq_QD * scale, mask=inside[:, None] & (column_1D < WIDTH))
