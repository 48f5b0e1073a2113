# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Top-k attention for long rows: find the kept keys themselves in one sweep, then gather.

The sweep is that of `selection`, but remembers cells of a few keys by their largest score, whose
last bits give way to the name of the cell. The keep best keys lie in the keep best cells. A few
more than these are retrieved, the scores of all their keys computed anew from q and k, and the best
taken. A row is certain if its keep-th score is above all other candidates, and above anything a
bucket may have forgotten or a missing bit may hide, by more than rounding; and if its numbers are
finite and not so large that bits could be lost at the other end. Blocks of queries in which a row
is not certain go the way of short rows, forward and backward.

The backward pass visits kept pairs only and adds to dk and dv by atomics, in no certain order.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import Call, load_rows, place, score_tile, with_rows
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
from headwise.ops.topk.weighing import drop_pairs, strides

__all__ = ["Picked", "gather", "list_kept", "pair_gradients"]

EXTRA = 2  # cells more than wanted: so many may differ by less than the missing bits
# Rows of so many keys -> keys of a cell: the fewer cells, the less there is to remember while
# sweeping, and the more to compute at the end.
CELLS = {8192: 4, 2048: 2, 0: 1}
REACH_KEYS = 128  # a program of the kernel that looks how large keys are


class Picked(NamedTuple):
    """What was gathered. In flagged blocks weights are 0, and bounds but not out are right."""

    chosen: Selection
    out: Tensor  # (B, H, Q, E)
    lse: Tensor  # (B, H, Q)
    keys: Tensor  # (B, H, Q, keep) int32, -1 where a query sees fewer keys
    weights: Tensor  # (B, H, Q, keep), before dropout
    flags: Tensor  # one a block of queries


def gather(
    call: Call, v: Tensor, keep: int, first_ties: bool, dropout: float, seed: Tensor | None,
    sweep: Sweep,
) -> Picked:  # fmt: skip
    """Find the kept keys of every query, weigh them and sum their values."""
    if levels_for(keep) > 4:  # or they would not fit the registers
        sweep = sweep._replace(warps=8)
    chosen, flags = room(call, first_ties, sweep)
    shape, v = chosen.low.shape, with_rows(v)
    new = chosen.low.new_empty
    keys, weights = new((*shape, keep), dtype=torch.int32), new((*shape, keep))
    picked = Picked(chosen, v.new_empty(*shape, v.shape[3]), new(shape), keys, weights, flags)
    if not len(flags):
        return picked
    cell = cell_for(call.k.shape[2])
    n_turns = -(-call.k.shape[2] // (sweep.keys * cell))
    candidates = keep + EXTRA
    _gather_kernel[(len(flags),)](
        **launch_arguments(call, chosen, flags, keep, first_ties, sweep), **strides("v", v),
        v=v, out=picked.out, lse=picked.lse, picked=keys, weights=weights, seed=seed,
        reach=_reach(call), dropout=dropout, candidates=candidates,
        low_bits=(1 << (n_turns - 1).bit_length()) * sweep.keys - 1,
        VALUES=v.shape[3], PADDED_VALUES=padded(v.shape[3]), LEVELS=levels_for(keep), CELL=cell,
        SLOTS=1 << (candidates * cell - 1).bit_length(), KEPT=1 << (keep - 1).bit_length(),
    )  # fmt: skip
    rescue(call, chosen, flags, keep, first_ties, sweep)
    return picked


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


def list_kept(call: Call, picked: Picked, sweep: Sweep) -> None:
    """Write keys and weights of flagged blocks, whose lse is right by now; of ties the first."""
    common = launch_arguments(call, picked.chosen, picked.flags, picked.keys.shape[3], True, sweep)
    if len(picked.flags):
        _list_kernel[(len(picked.flags),)](
            **common, lse=picked.lse, picked=picked.keys, weights=picked.weights
        )


def pair_gradients(
    call: Call, v: Tensor, picked: Picked, dropout: float, seed: Tensor | None,
    dout: Tensor, sweep: Sweep,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, and in float32 of k and v, from the pairs of blocks without a flag."""
    batch, heads, n_queries, width = call.q.shape
    v, dout = with_rows(v), with_rows(dout)
    dq = call.q.new_empty(call.q.shape)
    dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (call.k, v))
    n_blocks = -(-n_queries // sweep.rows)
    options = {name: given for name, given in sweep.arguments().items() if name != "KEYS"}
    if programs := batch * heads * n_blocks:
        unused = ("mask", "MASKED", "lengths", "first", "CAUSAL")  # the pairs are known
        used = {x: given for x, given in call.arguments().items() if not x.startswith(unused)}
        _pairs_kernel[(programs,)](
            **used, **strides("v", v), **strides("dout", dout), v=v, dout=dout,
            out=picked.out, picked=picked.keys, weights=picked.weights, dq=dq, dk=dk, dv=dv,
            seed=seed, dropout=dropout, keep=picked.keys.shape[3], n_blocks=n_blocks,
            PADDED=padded(width), VALUES=v.shape[3], PADDED_VALUES=padded(v.shape[3]),
            **options,
        )  # fmt: skip
    return dq, dk, dv


@triton.jit
@no_type_check
def _gather_rows(start, keys, stride, real, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A row of the matrix for each query, (len(keys), PADDED) in float32; zeros where not real."""
    column = tl.arange(0, PADDED)
    at = start + keys[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(at, mask=real[:, None] & (column[None, :] < WIDTH), other=0.0).to(tl.float32)


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


@triton.jit
@no_type_check
def _cell_score(
    q_QD, k, k_row, key, found, rows, length, n_queries, scale, first, mask, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The score of each row with a key of its own, -inf where it may not be attended."""
    seen = found & (key < length) & (rows < n_queries)
    if CAUSAL:
        seen = seen & (key <= rows + first)
    if MASKED:
        at = mask + rows.to(tl.int64) * mask_row + key.to(tl.int64) * mask_key
        seen = seen & (tl.load(at, mask=seen, other=0) != 0)
    k_QD = _gather_rows(k, key, k_row, seen, WIDTH, PADDED)
    return tl.where(seen, tl.sum(q_QD * k_QD, axis=1) * scale, float("-inf"))


@triton.jit(do_not_specialize=[*SIZES, *MASK_STRIDES, "keep", "candidates", "low_bits"])
@no_type_check
def _gather_kernel(
    q, k, v, lengths, mask, low, high, last, peak, flags, reach, out, lse, picked, weights, seed,
    scale, dropout, first, heads, groups, n_queries, n_keys, n_blocks, keep, candidates, low_bits,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FIRST: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, LEVELS: tl.constexpr, CELL: tl.constexpr,
    SLOTS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    k += batch * k_batch + group * k_head
    v += batch * v_batch + group * v_head
    mask += batch * mask_batch + head * mask_head
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    levels = fill_levels(
        q_QD, k, k_row, mask, mask_row, mask_key, block, length, 1.0, first, n_queries, n_keys,
        low_bits, WIDTH, PADDED, CAUSAL, MASKED, ROWS, KEYS, LEVELS, CELL,
    )  # fmt: skip

    bound = tl.max(levels[LEVELS - 1], axis=1)  # no forgotten cell is larger
    named = ()  # by their last bits, no two alike
    for level in tl.static_range(LEVELS):
        bits_QK = levels[level].to(tl.int32, bitcast=True) | tl.arange(0, KEYS)[None, :]
        name_QK = bits_QK.to(tl.float32, bitcast=True)
        named = named + (tl.where(levels[level] > -9e37, name_QK, float("-inf")),)
    slot_1S = tl.arange(0, SLOTS)[None, :]
    score_QS = tl.full((ROWS, SLOTS), float("-inf"), tl.float32)
    key_QS = tl.full((ROWS, SLOTS), -1, tl.int32)
    wide_q_QD = q_QD.to(tl.float32)
    for cell in range(candidates):
        top = tl.max(named[0], axis=1)
        named = pull(named, named[0] == top[:, None], LEVELS)
        found = top > -9e37
        name = top.to(tl.int32, bitcast=True) & low_bits
        for member in tl.static_range(CELL):
            key = (name // KEYS * CELL + member) * KEYS + name % KEYS
            score = _cell_score(
                wide_q_QD, k, k_row, key, found, rows, length, n_queries, scale, first,
                mask, mask_row, mask_key, WIDTH, PADDED, CAUSAL, MASKED,
            )  # fmt: skip
            here_1S = slot_1S == cell * CELL + member
            score_QS = tl.where(here_1S, score[:, None], score_QS)
            key_QS = tl.where(here_1S, key[:, None], key_QS)
    bound = tl.maximum(bound, tl.max(named[0], axis=1))

    # The best, one after the other, and their values, as yet divided by the weight of the first.
    largest = tl.max(score_QS, axis=1)
    empty = largest == float("-inf")
    norm = tl.where(empty, 0.0, largest)
    place_1R = tl.arange(0, KEPT)[None, :]
    key_QR = tl.full((ROWS, KEPT), -1, tl.int32)
    weight_QR = tl.full((ROWS, KEPT), 0.0, tl.float32)
    out_QE = tl.full((ROWS, PADDED_VALUES), 0.0, tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    tau = largest
    for rank in range(keep):
        tau, slot = tl.max(
            score_QS, axis=1, return_indices=True, return_indices_tie_break_left=True
        )
        this_QS = slot_1S == slot[:, None]
        real = tau > float("-inf")
        key = tl.where(real, tl.sum(tl.where(this_QS, key_QS, 0), axis=1), -1)
        score_QS = tl.where(this_QS, float("-inf"), score_QS)
        weight = tl.where(real, tl.exp(tau - norm), 0.0)
        total += weight
        key_QR = tl.where(place_1R == rank, key[:, None], key_QR)
        weight_QR = tl.where(place_1R == rank, weight[:, None], weight_QR)
        if seed is not None:
            weight = drop_pairs(weight, batch * heads + head, rows, key, dropout, seed)
        v_QE = _gather_rows(v, key, v_row, weight != 0.0, VALUES, PADDED_VALUES)
        out_QE += weight[:, None] * v_QE
    total = tl.where(empty, 1.0, total)

    # Is the keep-th score above all others, wherever they are?
    finite = tl.where(bound > -9e37, bound * scale, 0.0)
    highest = finite + tl.abs(finite) * (low_bits + 1).to(tl.float32) * 2.4e-7
    below = tl.maximum(tl.max(score_QS, axis=1), tl.where(bound > -9e37, highest, float("-inf")))
    rounding = 4e-6 * tl.where(empty, 0.0, tl.abs(largest))
    # Other terms of a product may be larger than their sum.
    reach_q = tl.max(_size(wide_q_QD), axis=1).to(tl.float32, bitcast=True)
    reach_k = tl.load(reach + batch * groups + group).to(tl.float32, bitcast=True)
    known = reach_q * reach_k * WIDTH < 1e37
    doubtful = inside & (~known | ((below > float("-inf")) & (below + rounding >= tau)))
    flag = tl.max(doubtful.to(tl.int32), axis=0)
    tl.store(flags + tl.program_id(0), flag)
    at = (batch * heads + head) * n_queries + rows
    tl.store(peak + at, largest, mask=inside)
    above = tl.full((ROWS,), float("inf"), tl.float32)
    below = tl.where(flag > 0, tau, below)  # then low is tau itself, where the rescue starts
    store_bounds(low, high, last, tau, below, above, n_keys, at, inside, FIRST)

    tl.store(lse + at, tl.where(empty, float("-inf"), norm + tl.log(total)), mask=inside)
    to_QR = at[:, None] * keep + place_1R
    stored_QR = inside[:, None] & (place_1R < keep)
    tl.store(picked + to_QR, key_QR, mask=stored_QR)
    weight_QR = tl.where(flag > 0, 0.0, weight_QR / total[:, None])
    tl.store(weights + to_QR, weight_QR, mask=stored_QR)
    column = tl.arange(0, PADDED_VALUES)[None, :]
    to_QE = out + at[:, None] * VALUES + column
    tl.store(to_QE, out_QE / total[:, None], mask=inside[:, None] & (column < VALUES))


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


@triton.jit(do_not_specialize=[*SIZES, "keep"])
@no_type_check
def _pairs_kernel(
    q, k, v, out, dout, picked, weights, dq, dk, dv, seed, scale, dropout,
    heads, groups, n_queries, n_keys, n_blocks, keep, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, dout_batch, dout_head, dout_row,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    group = group.to(tl.int64)
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
    for slot in range(keep):
        key = tl.load(picked + at * keep + slot, mask=inside, other=-1)
        weight = tl.load(weights + at * keep + slot, mask=inside, other=0.0)
        real = weight != 0.0
        dropped = weight
        if seed is not None:
            dropped = drop_pairs(weight, batch * heads + head, rows, key, dropout, seed)
        k_QD = _gather_rows(k + batch * k_batch + group * k_head, key, k_row, real, WIDTH, PADDED)
        v_QE = _gather_rows(
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
    to = dq + at[:, None] * WIDTH + column_1D
    tl.store(to, dq_QD * scale, mask=inside[:, None] & (column_1D < WIDTH))
