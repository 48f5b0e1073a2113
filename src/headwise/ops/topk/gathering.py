# Arguments of kernels have no types that a type checker would know.
# pyright: basic
# ruff: noqa: RUF005  Triton cannot unpack a tuple into another
"""Which keys each query of a long row keeps, as a list: one sweep, then a look at a few candidates.

The sweep is that of `selection`, but remembers cells of a few keys by their largest score, whose
last bits give way to the name of the cell. The keep best keys lie in the keep best cells. A few
more than these are named, the scores of all their keys computed anew from q and k, and the best
taken. A row is certain if its keep-th score is above all other candidates, and above anything a
bucket may have forgotten or a missing bit may hide, by more than rounding; and if its numbers are
finite and not so large that bits could be lost at the other end. Blocks of queries in which a row
is not certain get a flag and go the way of short rows, forward and backward.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import Call, load_rows, place, score_tile
from headwise.ops.topk.selection import (
    MASK_STRIDES,
    SIZES,
    Selection,
    Sweep,
    fill_levels,
    keys_seen,
    launch_arguments,
    levels_for,
    padded,
    pull,
    rescue,
    room,
    store_bounds,
)

__all__ = ["Listed", "list_flagged", "list_keys"]

EXTRA = 2  # cells more than wanted: so many may differ by less than the missing bits
# Rows of so many keys -> keys of a cell: the fewer cells, the less there is to remember while
# sweeping, and the more to compute at the end.
CELLS = {8192: 4, 2048: 2, 0: 1}
REACH_KEYS = 128  # a program of the kernel that looks how large keys are
CHOOSE_NUMBERS = 4096  # of candidates, a program of the kernel that chooses


class Listed(NamedTuple):
    """The kept keys of every query. In flagged blocks only bounds are right."""

    chosen: Selection
    lse: Tensor  # (B, H, Q)
    keys: Tensor  # (B, H, Q, keep) int32, -1 where a query sees fewer keys
    weights: Tensor  # (B, H, Q, keep), before dropout
    flags: Tensor  # one a block of queries, of as many as the sweep's tiles have


def list_keys(call: Call, keep: int, first_ties: bool, sweep: Sweep) -> Listed:
    """Find the kept keys of every query and their weights."""
    if levels_for(keep) > 4:  # or they would not fit the registers
        sweep = sweep._replace(warps=8)
    chosen, flags = room(call, first_ties, sweep)
    new = chosen.low.new_empty
    shape = chosen.low.shape
    keys, weights = new((*shape, keep), dtype=torch.int32), new((*shape, keep))
    listed = Listed(chosen, new(shape), keys, weights, flags)
    if len(flags):
        _list(call, listed, keep, first_ties, sweep)
        rescue(call, chosen, flags, keep, first_ties, sweep)
    return listed


def _list(call: Call, listed: Listed, keep: int, first_ties: bool, sweep: Sweep) -> None:
    n_keys, cell = call.k.shape[2], cell_for(call.k.shape[2])
    n_turns = -(-n_keys // (sweep.keys * cell))
    candidates = keep + EXTRA
    names = listed.keys.new_empty(*listed.lse.shape, candidates)
    low_bits = (1 << (n_turns - 1).bit_length()) * sweep.keys - 1
    given = launch_arguments(call, listed.chosen, listed.flags, keep, first_ties, sweep)
    given |= {"names": names, "candidates": candidates, "low_bits": low_bits, "CELL": cell}
    unused = ("low", "high", "last", "keep", "FIRST")
    _sweep_kernel[(len(listed.flags),)](
        **{name: argument for name, argument in given.items() if name not in unused},
        LEVELS=levels_for(keep), CANDIDATES=1 << (candidates - 1).bit_length(),
    )  # fmt: skip
    slots = (1 << (candidates - 1).bit_length()) * cell
    rows = max(1, CHOOSE_NUMBERS // (slots * given["PADDED"]))
    batch, heads, n_queries = listed.lse.shape
    n_blocks = -(-n_queries // rows)
    given |= {"n_blocks": n_blocks, "n_flags": -(-n_queries // sweep.rows), "ROWS": rows}
    _choose_kernel[(batch * heads * n_blocks,)](
        **given | {"num_warps": 4, "num_stages": 1},
        reach=_reach(call), lse=listed.lse, picked=listed.keys, weights=listed.weights,
        FLAG_ROWS=sweep.rows, SLOTS=slots,
    )  # fmt: skip


def cell_for(n_keys: int) -> int:
    """How many keys a cell has."""
    return next(cell for least, cell in CELLS.items() if n_keys >= least)


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


def list_flagged(call: Call, listed: Listed, sweep: Sweep) -> None:
    """Write keys and weights of flagged blocks, whose lse is right by now; of ties the first."""
    common = launch_arguments(call, listed.chosen, listed.flags, listed.keys.shape[3], True, sweep)
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


@triton.jit(do_not_specialize=[*SIZES, *MASK_STRIDES, "candidates", "low_bits"])
@no_type_check
def _sweep_kernel(
    q, k, lengths, mask, peak, flags, names, scale, first, heads, groups, n_queries, n_keys,
    n_blocks, candidates, low_bits, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, LEVELS: tl.constexpr, CELL: tl.constexpr,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Names of the best cells, -1 where there are fewer; in `peak` what no other may exceed."""
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
    place_1C = tl.arange(0, CANDIDATES)[None, :]
    name_QC = tl.full((ROWS, CANDIDATES), -1, tl.int32)
    for candidate in range(candidates):
        top = tl.max(named[0], axis=1)
        named = pull(named, named[0] == top[:, None], LEVELS)
        name = tl.where(top > -9e37, top.to(tl.int32, bitcast=True) & low_bits, -1)
        name_QC = tl.where(place_1C == candidate, name[:, None], name_QC)
    bound = tl.maximum(bound, tl.max(named[0], axis=1))

    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    to_QC = names + at[:, None] * candidates + place_1C
    tl.store(to_QC, name_QC, mask=inside[:, None] & (place_1C < candidates))
    tl.store(peak + at, bound, mask=inside)
    tl.store(flags + tl.program_id(0), 0)


@triton.jit(do_not_specialize=[*SIZES, *MASK_STRIDES, "n_flags", "keep", "candidates", "low_bits"])
@no_type_check
def _choose_kernel(
    q, k, lengths, mask, low, high, last, peak, flags, names, reach, lse, picked, weights,
    scale, first, heads, groups, n_queries, n_keys, n_blocks, n_flags, keep, candidates, low_bits,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    FIRST: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CELL: tl.constexpr,
    FLAG_ROWS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    slot = tl.arange(0, SLOTS)
    name_QS = tl.load(
        names + at[:, None] * candidates + (slot // CELL)[None, :],
        mask=inside[:, None] & (slot // CELL < candidates)[None, :], other=-1,
    )  # fmt: skip
    key_QS = (name_QS // KEYS * CELL + (slot % CELL)[None, :]) * KEYS + name_QS % KEYS
    seen_QS = (name_QS >= 0) & (key_QS < tl.load(lengths + batch))
    if CAUSAL:
        seen_QS = seen_QS & (key_QS <= rows[:, None] + first)
    if MASKED:
        mask += batch * mask_batch + head * mask_head
        spot = mask + rows[:, None].to(tl.int64) * mask_row + key_QS.to(tl.int64) * mask_key
        seen_QS = seen_QS & (tl.load(spot, mask=seen_QS, other=0) != 0)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    q_QD = q_QD.to(tl.float32)
    column = tl.arange(0, PADDED)[None, None, :]
    k_at = k + batch * k_batch + group * k_head + key_QS[:, :, None].to(tl.int64) * k_row + column
    k_QSD = tl.load(k_at, mask=seen_QS[:, :, None] & (column < WIDTH), other=0.0)
    score_QS = tl.sum(q_QD[:, None, :] * k_QSD.to(tl.float32), axis=2) * scale
    score_QS = tl.where(seen_QS, score_QS, float("-inf"))
    before = score_QS[:, None, :] > score_QS[:, :, None]
    equal = (score_QS[:, None, :] == score_QS[:, :, None]) & (slot[None, :] < slot[:, None])[None]
    rank_QS = tl.sum((before | equal).to(tl.int32), axis=2)

    # Is the keep-th score above all others, wherever they are?
    kept_QS = rank_QS < keep
    tau = tl.min(tl.where(kept_QS, score_QS, float("inf")), axis=1)
    largest = tl.max(score_QS, axis=1)
    empty = largest == float("-inf")
    bound = tl.load(peak + at, mask=inside, other=0.0)
    some = bound > -9e37
    highest = tl.where(some, bound * scale, 0.0)
    highest += tl.abs(highest) * (low_bits + 1).to(tl.float32) * 2.4e-7
    below = tl.max(tl.where(kept_QS, float("-inf"), score_QS), axis=1)
    below = tl.maximum(below, tl.where(some, highest, float("-inf")))
    rounding = 4e-6 * tl.where(empty, 0.0, tl.abs(largest))
    reach_q = tl.max(_size(q_QD), axis=1).to(tl.float32, bitcast=True)
    reach_k = tl.load(reach + batch * groups + group).to(tl.float32, bitcast=True)
    known = reach_q * reach_k * WIDTH < 1e37
    doubtful = inside & (~known | ((below > float("-inf")) & (below + rounding >= tau)))
    flag_at = flags + (batch * heads + head) * n_flags + rows // FLAG_ROWS
    tl.atomic_max(flag_at, 1, mask=doubtful, sem="relaxed")
    tl.store(peak + at, largest, mask=inside)
    above = tl.full((ROWS,), float("inf"), tl.float32)
    # Where there is a flag `low` must not be above the keep-th score: there the rescue starts.
    below = tl.where(doubtful, tau, below)
    store_bounds(low, high, last, tau, below, above, n_keys, at, inside, FIRST)

    norm = tl.where(empty, 0.0, largest)
    weight_QS = tl.where(kept_QS & seen_QS, tl.exp(score_QS - norm[:, None]), 0.0)
    total = tl.where(empty, 1.0, tl.sum(weight_QS, axis=1))
    tl.store(lse + at, tl.where(empty, float("-inf"), norm + tl.log(total)), mask=inside)
    to_QS = at[:, None] * keep + rank_QS
    stored_QS = kept_QS & inside[:, None]
    tl.store(picked + to_QS, tl.where(seen_QS, key_QS, -1), mask=stored_QS)
    tl.store(weights + to_QS, weight_QS / total[:, None], mask=stored_QS)


@triton.jit(do_not_specialize=[*SIZES, *MASK_STRIDES, "keep"])
@no_type_check
def _list_kernel(
    q, k, lengths, mask, low, high, last, peak, flags, lse, picked, weights, scale, first, heads,
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
