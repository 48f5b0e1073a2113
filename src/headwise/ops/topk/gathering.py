# Arguments of kernels have no types that a type checker would know.
# pyright: basic
# ruff: noqa: RUF005  Triton cannot unpack a tuple into another
"""Which keys each query of a long row keeps, as a list: one sweep, then a look at a few candidates.

The sweep is that of `selection`, but remembers cells of a few keys by their largest score, whose
last bits give way to the name of the cell. The keep best keys lie in the keep best cells. A few
more than these are named, the scores of all their keys computed anew from q and k, and the best
taken. A row is certain if its keep-th score is above all other candidates, and above anything a
bucket may have forgotten or a missing bit may hide, by more than rounding; and if its numbers are
finite and not so large that bits could be lost at the other end. Queries of which one is not
certain get a flag and go the way of short rows, forward and backward.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.launching import Tile, padded
from headwise.ops.tiles import Call, load_rows, place, score_tile
from headwise.ops.topk.selection import (
    ANY,
    Selection,
    blocks,
    fill_levels,
    flagged_tile,
    keys_seen,
    launch_arguments,
    levels_for,
    pull,
    rescue,
    room,
    set_flags,
    store_bounds,
)

__all__ = ["Listed", "gather_rows", "list_flagged", "list_keys"]

CELL = 2  # keys of a cell: the more, the less to remember while sweeping, but the more to score
# Keys of a row -> cells more than wanted: so many may differ by less than the missing bits.
EXTRA = {8192: 2, 1 << 62: 4}
REACH_KEYS = 128  # a program of the kernel that looks how large keys are
SCORE_ROWS = 32  # queries, of a program of the kernel that scores candidates
RANK_ROWS = 32  # of the kernel that chooses among them


# Arguments of kernels that decide which keys are kept.
CHOOSING = ("flags", "low", "high", "last", "keep", "FIRST")


class Listed(NamedTuple):
    """The kept keys of every query. Of flagged queries only bounds are right."""

    chosen: Selection
    lse: Tensor  # (B, H, Q)
    keys: Tensor  # (B, H, Q, keep) int32, -1 where a query sees fewer keys
    weights: Tensor  # (B, H, Q, keep), before dropout
    flags: Tensor  # one for every sixteen queries


def list_keys(call: Call, keep: int, first_ties: bool, sweep: Tile) -> Listed:
    """Find the kept keys of every query and their weights."""
    if levels_for(keep) > 4 or call.masked:  # or they would not fit the registers
        sweep = sweep._replace(warps=8)
    if call.masked and call.q.dtype == torch.float32 and call.q.shape[3] > 64:
        sweep = sweep._replace(rows=16, keys=16)
    chosen, flags = room(call, first_ties)
    new = chosen.low.new_empty
    shape = chosen.low.shape
    keys, weights = new((*shape, keep), dtype=torch.int32), new((*shape, keep))
    listed = Listed(chosen, new(shape), keys, weights, flags)
    if len(flags):
        _list(call, listed, keep, first_ties, sweep)
        rescue(call, chosen, flags, keep, first_ties)
    return listed


def _list(call: Call, listed: Listed, keep: int, first_ties: bool, sweep: Tile) -> None:
    batch, heads, n_queries = listed.lse.shape
    n_keys = call.k.shape[2]
    n_turns = -(-n_keys // (sweep.keys * CELL))
    low_bits = (1 << (n_turns - 1).bit_length()) * sweep.keys - 1
    candidates = keep + next(extra for most, extra in EXTRA.items() if n_keys < most)
    slots = 1 << (candidates * CELL - 1).bit_length()
    keys = listed.keys.new_empty(batch, heads, n_queries, candidates * CELL)
    scores = listed.lse.new_empty(keys.shape)
    given = launch_arguments(call, listed.chosen, listed.flags, keep, first_ties, sweep)
    given = {x: argument for x, argument in given.items() if x not in CHOOSING}
    given |= {"keys": keys, "low_bits": low_bits}
    _sweep_kernel[(blocks(call, sweep),)](
        **given, peak=listed.chosen.peak, candidates=candidates, CELL=CELL, LEVELS=levels_for(keep),
        CANDIDATES=1 << (candidates - 1).bit_length(),
    )  # fmt: skip
    n_blocks = -(-n_queries // SCORE_ROWS)
    given |= {"n_blocks": n_blocks, "ROWS": SCORE_ROWS, "num_warps": 4, "num_stages": 1}
    unused = ("KEYS", "low_bits")
    _score_kernel[(batch * heads * n_blocks,)](
        **{x: argument for x, argument in given.items() if x not in unused},
        scores=scores, reach=_reach(call), doubts=listed.lse, slots=candidates * CELL, CELL=CELL,
    )  # fmt: skip
    _rank_kernel[(-(-listed.lse.numel() // RANK_ROWS),)](
        keys, scores, *listed.chosen, listed.flags, listed.lse, listed.keys, listed.weights,
        call.scale, listed.lse.numel(), n_queries, n_keys, keep, candidates * CELL, low_bits,
        FIRST=first_ties, ROWS=RANK_ROWS, SLOTS=slots,
    )  # fmt: skip


def _reach(call: Call) -> Tensor:
    """The largest size of a number in the keys of each head, (B * G,), as the bits of a float."""
    batch, groups, n_keys, width = call.k.shape
    reach = torch.zeros(batch * groups, dtype=torch.int32, device=call.k.device)
    n_blocks = -(-n_keys // REACH_KEYS)
    _reach_kernel[(batch * groups * n_blocks,)](
        call.k, reach, groups, n_keys, n_blocks, *call.k.stride()[:3],
        WIDTH=width, PADDED=padded(width), KEYS=REACH_KEYS,
    )  # fmt: skip
    return reach


def list_flagged(call: Call, listed: Listed) -> None:
    """Write keys and weights of flagged queries, whose lse is right by now; of ties the first."""
    keep = listed.keys.shape[3]
    common = launch_arguments(call, listed.chosen, listed.flags, keep, True, flagged_tile(call))
    if len(listed.flags):
        _list_kernel[(len(listed.flags),)](
            **common, lse=listed.lse, picked=listed.keys, weights=listed.weights
        )


@triton.jit
@no_type_check
def _size(x):
    """The size of numbers as bits, which compare like the sizes; NaN is the largest."""
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


@triton.jit(do_not_specialize=[*ANY, "candidates", "low_bits"])
@no_type_check
def _sweep_kernel(
    q, k, lengths, mask, peak, keys, scale, first, heads, groups, n_queries, n_keys,
    n_blocks, candidates, low_bits, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, LEVELS: tl.constexpr, CELL: tl.constexpr,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Keys of the best cells, -1 where there are fewer; in `peak` what no other may exceed."""
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    levels = fill_levels(
        q_QD, k + batch * k_batch + group * k_head, k_row,
        mask + batch * mask_batch + head * mask_head, mask_row, mask_key, block,
        tl.load(lengths + batch), 1.0, first, n_queries, n_keys, low_bits,
        WIDTH, PADDED, CAUSAL, MASKED, ROWS, KEYS, LEVELS, CELL,
    )  # fmt: skip

    bound = tl.max(levels[LEVELS - 1], axis=1)  # no forgotten cell is larger
    named = ()  # by their last bits, no two alike
    for level in tl.static_range(LEVELS):
        bits_QK = levels[level].to(tl.int32, bitcast=True) | tl.arange(0, KEYS)[None, :]
        name_QK = bits_QK.to(tl.float32, bitcast=True)
        named = named + (tl.where(levels[level] > -9e37, name_QK, float("-inf")),)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    place_1C = tl.arange(0, CANDIDATES)[None, :]
    name_QC = tl.full((ROWS, CANDIDATES), -1, tl.int32)
    for candidate in range(candidates):
        top = tl.max(named[0], axis=1)
        named = pull(named, named[0] == top[:, None], LEVELS)
        name = tl.where(top > -9e37, top.to(tl.int32, bitcast=True) & low_bits, -1)
        name_QC = tl.where(place_1C == candidate, name[:, None], name_QC)
    bound = tl.maximum(bound, tl.max(named[0], axis=1))

    stored_QC = inside[:, None] & (place_1C < candidates)
    for member in tl.static_range(CELL):
        key_QC = (name_QC // KEYS * CELL + member) * KEYS + name_QC % KEYS
        to_QC = keys + (at[:, None] * candidates + place_1C) * CELL + member
        tl.store(to_QC, tl.where(name_QC >= 0, key_QC, -1), mask=stored_QC)
    tl.store(peak + at, bound, mask=inside)


@triton.jit
@no_type_check
def gather_rows(start, keys, stride, real, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A row of the matrix for each query, (len(keys), PADDED) in float32; zeros where not real."""
    column = tl.arange(0, PADDED)
    at = start + keys[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(at, mask=real[:, None] & (column[None, :] < WIDTH), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=[*ANY, "slots"])
@no_type_check
def _score_kernel(
    q, k, lengths, mask, keys, scores, reach, doubts, scale, first, heads, groups, n_queries,
    n_keys, n_blocks, slots, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, CELL: tl.constexpr,
):  # fmt: skip
    """Scores of candidates, -inf where they may not be attended; whether a row's are in doubt."""
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    q_QD = q_QD.to(tl.float32)
    k += batch * k_batch + group * k_head
    mask += batch * mask_batch + head * mask_head
    for cell in range(slots // CELL):
        for member in tl.static_range(CELL):  # their loads do not wait for each other
            slot = cell * CELL + member
            key = tl.load(keys + at * slots + slot, mask=inside, other=-1)
            seen = (key >= 0) & (key < length)
            if CAUSAL:
                seen = seen & (key <= rows + first)
            if MASKED:
                spot = mask + rows.to(tl.int64) * mask_row + key.to(tl.int64) * mask_key
                seen = seen & (tl.load(spot, mask=seen, other=0) != 0)
            score = tl.sum(q_QD * gather_rows(k, key, k_row, seen, WIDTH, PADDED), axis=1) * scale
            real = seen & (score == score)  # what is not a number has no rank; its row is in doubt
            tl.store(scores + at * slots + slot, tl.where(real, score, float("-inf")), mask=inside)
    reach_q = tl.max(_size(q_QD), axis=1).to(tl.float32, bitcast=True)
    reach_k = tl.load(reach + batch * groups + group).to(tl.float32, bitcast=True)
    known = reach_q * reach_k * WIDTH < 1e37
    tl.store(doubts + at, tl.where(known, 0.0, 1.0), mask=inside)


@triton.jit(do_not_specialize=["n_rows", "n_queries", "n_keys", "keep", "slots", "low_bits"])
@no_type_check
def _rank_kernel(
    keys, scores, low, high, last, peak, flags, lse, picked, weights, scale, n_rows, n_queries,
    n_keys, keep, slots, low_bits,
    FIRST: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Choose the best candidates and weigh them; a flag where they may not be the best of all."""
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = at < n_rows
    slot = tl.arange(0, SLOTS)
    there_QS = inside[:, None] & (slot < slots)[None, :]
    from_QS = at[:, None] * slots + slot[None, :]
    score_QS = tl.load(scores + from_QS, mask=there_QS, other=float("-inf"))
    key_QS = tl.load(keys + from_QS, mask=there_QS, other=-1)
    largest = tl.max(score_QS, axis=1)
    empty = largest == float("-inf")
    rank_QS = tl.full((ROWS, SLOTS), 0, tl.int32)
    for other in range(slots):
        from_Q1 = at[:, None] * slots + other
        score_Q1 = tl.load(scores + from_Q1, mask=inside[:, None], other=float("-inf"))
        before_QS = (score_Q1 > score_QS) | ((score_Q1 == score_QS) & (slot[None, :] > other))
        rank_QS += before_QS.to(tl.int32)
    kept_QS = there_QS & (rank_QS < keep)
    tau = tl.min(tl.where(kept_QS, score_QS, float("inf")), axis=1)

    # Is the keep-th score above all others, wherever they are?
    bound = tl.load(peak + at, mask=inside, other=0.0)
    some = bound > -9e37
    highest = tl.where(some, bound * scale, 0.0)
    highest += tl.abs(highest) * (low_bits + 1).to(tl.float32) * 1.2e-7
    highest += 4e-6 * tl.where(empty, 0.0, tl.abs(largest))
    highest = tl.where(some, highest, float("-inf"))
    below = tl.max(tl.where(kept_QS, float("-inf"), score_QS), axis=1)
    below = tl.maximum(below, highest)
    doubt = tl.load(lse + at, mask=inside, other=0.0)
    doubtful = inside & ((doubt != 0.0) | ((below > float("-inf")) & (below >= tau)))
    set_flags(flags, at // n_queries, at % n_queries, n_queries, doubtful)
    tl.store(peak + at, largest, mask=inside)
    above = tl.full((ROWS,), float("inf"), tl.float32)
    # Where there is a flag `low` must not be above the keep-th score: there the rescue starts.
    below = tl.where(doubtful, tau, below)
    store_bounds(low, high, last, tau, below, above, n_keys, at, inside, FIRST)

    norm = tl.where(empty, 0.0, largest)
    weight_QS = tl.where(kept_QS, tl.exp(score_QS - norm[:, None]), 0.0)
    total = tl.where(empty, 1.0, tl.sum(weight_QS, axis=1))
    tl.store(lse + at, tl.where(empty, float("-inf"), norm + tl.log(total)), mask=inside)
    to_QS = at[:, None] * keep + rank_QS
    real_QS = score_QS > float("-inf")
    tl.store(picked + to_QS, tl.where(real_QS, key_QS, -1), mask=kept_QS)
    tl.store(weights + to_QS, weight_QS / total[:, None], mask=kept_QS)


@triton.jit(do_not_specialize=[*ANY, "keep"])
@no_type_check
def _list_kernel(
    q, k, lengths, mask, low, high, last, flags, lse, picked, weights, scale, first, heads,
    groups, n_queries, n_keys, n_blocks, keep, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    FIRST: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    if tl.load(flags + tl.program_id(0)) == 0:
        return
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    least = tl.load(low + at, mask=inside, other=float("inf"))
    norm = tl.load(lse + at, mask=inside, other=0.0)
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
        to_QK = at[:, None] * keep + place_QK
        tl.store(picked + to_QK, keys[None, :] + rows[:, None] * 0, mask=fits_QK)
        tl.store(weights + to_QK, tl.exp(score_QK - norm[:, None]), mask=fits_QK)
    for slot in range(keep):
        vacant = inside & (slot >= listed)
        tl.store(picked + at * keep + slot, -1, mask=vacant)
        tl.store(weights + at * keep + slot, 0.0, mask=vacant)
