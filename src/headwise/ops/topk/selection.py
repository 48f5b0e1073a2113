# Arguments of kernels have no types that a type checker would know.
# pyright: basic
# ruff: noqa: RUF005  Triton cannot unpack a tuple into another
"""Selection of the keys that each query keeps, as bounds on their scores, in one sweep.

A block of queries reads the keys one tile at a time. Keys whose index has the same remainder modulo
the width of a tile share a bucket, and every bucket holds its LEVELS largest scores, by elementwise
maxima and minima. At the end the keep-th largest of these scores is found. It is the keep-th
largest of all if no bucket's last level reaches it: then no bucket can have dropped such a score.
Sixteen queries of which one has no such certificate get a flag, and are swept once more by an exact
and slower kernel; the host never waits.

A key is kept if its score is at least `low`, half-way from the keep-th score to the next smaller
one, so that a later kernel that rounds differently keeps the same keys. If more keys tie for the
last place than fit and only the first ones are wanted, `low` admits the tied ones up to the key
`last`, and `high`, half-way to the next larger score, admits those that are not tied.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import MASK_STRIDES, SIZES, Call, Tile, load_rows, padded, place, score_tile

ANY = [*SIZES, *MASK_STRIDES, "mask_key"]  # kernels are not specialised for these


# Tile for flagged queries; its rows share a flag. They are few, so the time of one block matters.
FLAGGED = Tile(rows=16, keys=128, warps=4, stages=2)
FLAGGED_SINGLE = FLAGGED._replace(keys=64)  # float32: fits the registers
FLAGGED_WIDE_SINGLE = FLAGGED._replace(keys=32, warps=8)
FLAG_ROWS = tl.constexpr(FLAGGED.rows)
IN_DOUBT = tl.constexpr(1)  # a flag: these queries are swept again
SEEN_TWICE = tl.constexpr(2)  # they had no certificate, but a second search made them certain
TIED = tl.constexpr(3)  # certain after a second search, and some keep more than `keep` keys

# keep -> levels. With tiles of 64 keys a row of random scores lacks a certificate with probability
# C(keep, levels) / 64^(levels - 1): 3e-4, 3e-4, 8e-4, 1e-3; a block of 64 rows has 64 chances.
LEVELS = {8: 4, 16: 5, 32: 6, 64: 8}


class Selection(NamedTuple):
    """Bounds on the keys that queries keep, (B, H, Q); `high` and `last` are empty for all ties."""

    low: Tensor
    high: Tensor
    last: Tensor  # int32
    peak: Tensor  # the largest score


def select(
    call: Call, keep: int, first_ties: bool, sweep: Tile, levels: int | None = None
) -> tuple[Selection, Tensor]:
    """Find the keep-th largest score of every query, and which blocks needed a second search.

    Args:
        call: Queries, keys and masks.
        keep: Keys kept per query, at most 64.
        first_ties: Of equal scores keep the first keys, instead of all.
        sweep: Tile of a program.
        levels: Scores held per bucket; chosen by `keep` if None.
    """
    levels = levels or levels_for(keep)
    # Otherwise levels would not fit the registers.
    if levels > 4 or (call.masked and call.q.dtype == torch.float32):
        sweep = sweep._replace(warps=8)
    if levels > 6:
        sweep = sweep._replace(rows=min(sweep.rows, 32))
    chosen, flags = allocate(call, first_ties, FLAGGED.rows)
    common = launch_arguments(call, chosen, flags, keep, first_ties, sweep)
    if programs := blocks(call, sweep):
        _select_kernel[(programs,)](**common, peak=chosen.peak, LEVELS=levels)
    rescue(call, chosen, flags, keep, first_ties, flagged_tile(call.q))
    return chosen, flags


def rescue(
    call: Call, chosen: Selection, flags: Tensor, keep: int, first_ties: bool, sweep: Tile
) -> None:
    """Find the bounds and peak of flagged queries exactly. Their `low` must not be too large."""
    slots = max(8, 1 << (keep - 1).bit_length())
    common = launch_arguments(call, chosen, flags, keep, first_ties, sweep)
    if len(flags):
        _rescue_kernel[(len(flags),)](**common, peak=chosen.peak, SLOTS=slots)


def flagged_tile(q: Tensor) -> Tile:
    """Return the tile for flagged queries."""
    if q.dtype != torch.float32:
        return FLAGGED
    return FLAGGED_WIDE_SINGLE if q.shape[3] > 64 else FLAGGED_SINGLE


def levels_for(keep: int) -> int:
    """Return the number of scores that a bucket holds."""
    return next(levels for most, levels in LEVELS.items() if keep <= most)


def blocks(call: Call, sweep: Tile) -> int:
    """Return the number of programs for all queries."""
    batch, heads, n_queries, _ = call.q.shape
    return batch * heads * -(-n_queries // sweep.rows)


def allocate(call: Call, first_ties: bool, flag_rows: int) -> tuple[Selection, Tensor]:
    """Allocate the bounds, and one cleared flag per `flag_rows` queries."""
    batch, heads, n_queries, _ = call.q.shape
    shape = batch, heads, n_queries
    ties = shape if first_ties else (0,)
    new = call.q.new_empty
    chosen = Selection(
        new(shape, dtype=torch.float32),
        new(ties, dtype=torch.float32),
        new(ties, dtype=torch.int32),
        new(shape, dtype=torch.float32),
    )
    n_flags = batch * heads * -(-n_queries // flag_rows)
    return chosen, torch.zeros(n_flags, dtype=torch.int32, device=call.q.device)


def launch_arguments(
    call: Call, chosen: Selection, flags: Tensor, keep: int, first_ties: bool, sweep: Tile
) -> dict[str, Any]:
    """Return the arguments that all selecting kernels share."""
    low, high, last, _ = chosen
    return (
        call.arguments()
        | {"low": low, "high": high, "last": last}
        | sweep.arguments()
        | {"flags": flags, "n_blocks": -(-call.q.shape[2] // sweep.rows), "keep": keep}
        | {"FIRST": first_ties, "PADDED": padded(call.q.shape[3])}
    )


@triton.jit
@no_type_check
def keys_seen(length, n_keys, last_row, first, CAUSAL: tl.constexpr):
    """Count the keys, from the first, that rows up to last_row may see; may be negative."""
    seen = tl.minimum(length, n_keys)
    if CAUSAL:
        seen = tl.minimum(seen, last_row + first + 1)
    return seen


@triton.jit
@no_type_check
def whole_tiles(
    length, n_keys, first_row, first, CAUSAL: tl.constexpr, MASKED: tl.constexpr, KEYS: tl.constexpr
):
    """Count the tiles, from the first, that all rows from first_row on see in full.

    Queries beyond the last may count as seeing them: they are not stored.
    """
    tiles = tl.maximum(keys_seen(length, n_keys, first_row, first, CAUSAL), 0) // KEYS
    if MASKED:
        tiles = tiles * 0
    return tiles


@triton.jit
@no_type_check
def between(upper, lower):
    """Return a number above lower and at most upper, half-way if possible.

    Above -inf it is a bound that every visible score reaches, so that -inf is never kept.
    """
    finite = lower > float("-inf")
    middle = 0.5 * upper + 0.5 * tl.where(finite, lower, upper)
    middle = tl.where(middle > lower, middle, upper)
    return tl.where(finite, middle, -3e38)


@triton.jit
@no_type_check
def above_of(tied, upper):
    """Return a number above tied and at most upper, half-way if possible."""
    middle = 0.5 * upper + 0.5 * tl.where(tied > float("-inf"), tied, upper)
    return tl.where(middle > tied, middle, upper)


@triton.jit
@no_type_check
def _push(levels, score_QK, LEVELS: tl.constexpr):
    """Insert scores into sorted levels, element by element; the smallest is dropped."""
    pushed = ()
    for level in tl.static_range(LEVELS):
        pushed = pushed + (tl.maximum(levels[level], score_QK),)
        score_QK = tl.minimum(levels[level], score_QK)
    return pushed


@triton.jit
@no_type_check
def pull(levels, taken_QK, LEVELS: tl.constexpr):
    """Remove the first level's element where `taken_QK`, and move the levels below up."""
    pulled = ()
    for level in tl.static_range(LEVELS - 1):
        pulled = pulled + (tl.where(taken_QK, levels[level + 1], levels[level]),)
    return pulled + (tl.where(taken_QK, float("-inf"), levels[LEVELS - 1]),)


@triton.jit
@no_type_check
def _pack(score_QK, name, low_bits):
    """Replace the last bits of scores by a name without the bucket; hidden keys get about -1e38.

    NaN becomes large, so that it is found and stays visible.
    """
    score_QK = tl.where(score_QK < 3e38, score_QK, 3e38)
    bits_QK = tl.maximum(score_QK, -1e38).to(tl.int32, bitcast=True)
    return ((bits_QK & ~low_bits) | name).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def fill_levels(
    q_QD, k, k_row, mask, mask_row, mask_key, block, length, scale, first, n_queries, n_keys,
    low_bits, WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, LEVELS: tl.constexpr,
    CELL: tl.constexpr,
):  # fmt: skip
    """Sweep over the keys and return the largest cells of every bucket, sorted, -inf if fewer.

    A cell is one key of each of CELL tiles, and as large as its largest score. With low_bits, and
    numbers below 1e37 in size, the last bits of a level name the first key of its cell, without the
    bucket. Args: k, mask: their start for this head.
    """
    rows = block * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    nothing_QK = tl.full((ROWS, KEYS), float("-inf"), tl.float32)
    levels = ()
    for _ in tl.static_range(LEVELS):
        levels = levels + (nothing_QK,)
    last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
    seen = keys_seen(length, n_keys, last_row, first, CAUSAL)
    whole = whole_tiles(length, n_keys, block * ROWS, first, CAUSAL, MASKED, KEYS * CELL)
    at_KD = k + tl.arange(0, KEYS)[:, None].to(tl.int64) * k_row + column[None, :]
    for turn in range(whole):
        for member in tl.static_range(CELL):
            if WIDTH == PADDED:
                k_KD = tl.load(at_KD)
            else:
                k_KD = tl.load(at_KD, mask=column[None, :] < WIDTH, other=0.0)
            at_KD += KEYS * k_row
            score_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee")
            cell_QK = score_QK if member == 0 else tl.maximum(cell_QK, score_QK)
        if low_bits is not None:
            bits_QK = cell_QK.to(tl.int32, bitcast=True) & ~low_bits
            cell_QK = (bits_QK | (turn * KEYS)).to(tl.float32, bitcast=True)
        else:
            cell_QK *= scale
        levels = _push(levels, cell_QK, LEVELS)
    for turn in range(whole, tl.cdiv(seen, KEYS * CELL)):
        cell_QK = nothing_QK
        for member in tl.static_range(CELL):
            keys = (turn * CELL + member) * KEYS + tl.arange(0, KEYS)
            k_KD = load_rows(k, keys, k_row, n_keys, WIDTH, PADDED)
            score_QK = score_tile(
                q_QD, k_KD, rows, keys, length, n_queries, scale, first, mask, mask_row, mask_key,
                CAUSAL, MASKED,
            )  # fmt: skip
            cell_QK = score_QK if CELL == 1 else tl.maximum(cell_QK, score_QK)
        if low_bits is not None:
            cell_QK = _pack(cell_QK, turn * KEYS, low_bits)
        levels = _push(levels, cell_QK, LEVELS)
    return levels


@triton.jit
@no_type_check
def set_flags(flags, line, rows, n_queries, doubtful):
    """Mark rows of the head with number `line` for the rescue."""
    at = flags + line * tl.cdiv(n_queries, FLAG_ROWS) + rows // FLAG_ROWS
    tl.atomic_max(at, IN_DOUBT, mask=doubtful, sem="relaxed")


@triton.jit
@no_type_check
def store_bounds(low, high, last, tau, below, above, last_key, at, inside, FIRST: tl.constexpr):
    """Write `Selection`: the keep-th score, the next smaller and larger, the last tied key."""
    tl.store(low + at, between(tau, below), mask=inside)
    if FIRST:
        tl.store(high + at, above_of(tau, above), mask=inside)
        tl.store(last + at, last_key, mask=inside)


@triton.jit(do_not_specialize=[*ANY, "keep"])
@no_type_check
def _select_kernel(
    q, k, lengths, mask, low, high, last, peak, flags, scale, first, heads, groups, n_queries,
    n_keys, n_blocks, keep, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    FIRST: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    levels = fill_levels(
        q_QD, k + batch * k_batch + group.to(tl.int64) * k_head, k_row,
        mask + batch * mask_batch + head * mask_head, mask_row, mask_key, block, length,
        scale, first, n_queries, n_keys, None, WIDTH, PADDED, CAUSAL, MASKED, ROWS, KEYS, LEVELS, 1,
    )  # fmt: skip

    largest = tl.max(levels[0], axis=1)
    hidden = tl.max(levels[LEVELS - 1], axis=1)  # no dropped score is larger
    shown = ()  # the last level only bounds dropped scores
    for level in tl.static_range(LEVELS - 1):
        shown = shown + (levels[level],)
    tau = tl.full((ROWS,), float("inf"), tl.float32)
    above = tau
    counted = tl.full((ROWS,), 0, tl.int32)
    for _ in range(keep):  # one value per turn, from all buckets that have it on top
        search = counted < keep
        value = tl.where(search, tl.max(shown[0], axis=1), float("inf"))
        taken_QK = shown[0] == value[:, None]
        counted += tl.sum(taken_QK.to(tl.int32), axis=1)
        above = tl.where(value < tau, tau, above)
        tau = tl.minimum(tau, value)
        shown = pull(shown, taken_QK, LEVELS - 1)
    below = hidden
    for level in tl.static_range(LEVELS - 1):
        smaller_QK = tl.where(shown[level] < tau[:, None], shown[level], float("-inf"))
        below = tl.maximum(below, tl.max(smaller_QK, axis=1))

    doubtful = (hidden >= tau) & (hidden > float("-inf"))
    if FIRST:
        more = (counted > keep) | (tl.max(shown[0], axis=1) >= tau)
        doubtful = doubtful | (more & (tau > float("-inf")))
    inside = rows < n_queries
    line = batch * heads + head
    set_flags(flags, line, rows, n_queries, doubtful & inside)
    at = line * n_queries + rows
    tl.store(peak + at, largest, mask=inside)
    below = tl.where(doubtful, tau, below)  # then low is tau itself, where the rescue starts
    store_bounds(low, high, last, tau, below, above, n_keys, at, inside, FIRST)


@triton.jit
@no_type_check
def _insert(best_QS, least, top, rest):
    """Replace a row's smallest by its top, if larger; also return the largest score outside."""
    slot_1S = tl.arange(0, best_QS.shape[1])[None, :]
    where_least = tl.argmin(best_QS, axis=1, tie_break_left=True)
    fits = top > least
    replaced_QS = (slot_1S == where_least[:, None]) & fits[:, None]
    rest = tl.where(fits, tl.maximum(rest, least), rest)
    return tl.where(replaced_QS, top[:, None], best_QS), rest


@triton.jit(do_not_specialize=[*ANY, "keep"])
@no_type_check
def _rescue_kernel(
    q, k, lengths, mask, low, high, last, peak, flags, scale, first, heads, groups, n_queries,
    n_keys, n_blocks, keep, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    FIRST: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    if tl.load(flags + tl.program_id(0)) != IN_DOUBT:
        return
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    at = (batch * heads + head) * n_queries + rows
    inside = rows < n_queries
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    k += batch * k_batch + group.to(tl.int64) * k_head
    mask += batch * mask_batch + head * mask_head
    last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
    seen = keys_seen(length, n_keys, last_row, first, CAUSAL)

    # The keep largest scores of each row. Scores below those found before need not be inserted, but
    # those were rounded differently: if a place stays free, everything is inserted.
    # Slots beyond keep hold inf, and are never the smallest.
    found = tl.load(low + at, mask=inside, other=0.0)
    found -= 1e-4 * tl.abs(found)
    slot_QS = tl.arange(0, SLOTS)[None, :] + tl.full((ROWS, 1), 0, tl.int32)
    best_QS = tl.where(slot_QS < keep, float("-inf"), float("inf"))
    rest = tl.full((ROWS,), float("-inf"), tl.float32)
    turn = 0
    while turn < 2:
        best_QS = tl.where(slot_QS < keep, float("-inf"), float("inf"))
        rest = tl.full((ROWS,), float("-inf"), tl.float32)
        for start in range(0, seen, KEYS):
            keys = start + tl.arange(0, KEYS)
            k_KD = load_rows(k, keys, k_row, n_keys, WIDTH, PADDED)
            score_QK = score_tile(
                q_QD, k_KD, rows, keys, length, n_queries, scale, first, mask, mask_row, mask_key,
                CAUSAL, MASKED,
            )  # fmt: skip
            top, where_top = tl.max(
                score_QK, axis=1, return_indices=True, return_indices_tie_break_left=True
            )
            least = tl.min(best_QS, axis=1)
            while tl.max(((top > least) & (top >= found)).to(tl.int32), axis=0) > 0:
                best_QS, rest = _insert(best_QS, least, top, rest)
                gone_QK = (keys - start)[None, :] == where_top[:, None]
                score_QK = tl.where(gone_QK & (top > least)[:, None], float("-inf"), score_QK)
                top, where_top = tl.max(
                    score_QK, axis=1, return_indices=True, return_indices_tie_break_left=True
                )
                least = tl.min(best_QS, axis=1)
            rest = tl.maximum(rest, top)
        free = (tl.min(best_QS, axis=1) == float("-inf")) & (found > float("-inf")) & inside
        turn += 2 - tl.max(free.to(tl.int32), axis=0)
        found = tl.where(free, float("-inf"), found)

    tau = tl.min(best_QS, axis=1)
    larger_QS = (best_QS > tau[:, None]) & (slot_QS < keep)
    above = tl.min(tl.where(larger_QS, best_QS, float("inf")), axis=1)
    room = keep - tl.sum(larger_QS.to(tl.int32), axis=1)
    below = tl.where(rest < tau, rest, float("-inf"))
    last_key = tl.full((ROWS,), 0, tl.int32) + n_keys
    crowded = (rest == tau) & (tau > float("-inf"))
    # more ties than places: find the next score and the first keys
    if tl.max(crowded.to(tl.int32), axis=0) > 0:
        tied = tl.full((ROWS,), 0, tl.int32)
        last_tied = tl.full((ROWS,), -1, tl.int32)
        for start in range(0, seen, KEYS):
            keys = start + tl.arange(0, KEYS)
            k_KD = load_rows(k, keys, k_row, n_keys, WIDTH, PADDED)
            score_QK = score_tile(
                q_QD, k_KD, rows, keys, length, n_queries, scale, first, mask, mask_row, mask_key,
                CAUSAL, MASKED,
            )  # fmt: skip
            smaller_QK = tl.where(score_QK < tau[:, None], score_QK, float("-inf"))
            below = tl.maximum(below, tl.max(smaller_QK, axis=1))
            if FIRST:
                ties_QK = (score_QK == tau[:, None]).to(tl.int32)
                admitted_QK = (tied[:, None] + tl.cumsum(ties_QK, axis=1) <= room[:, None]) & (
                    ties_QK > 0
                )
                newest = tl.max(tl.where(admitted_QK, keys[None, :], -1), axis=1)
                last_tied = tl.maximum(last_tied, newest)
                tied += tl.sum(ties_QK, axis=1)
        if FIRST:
            last_key = tl.where(crowded, last_tied, last_key)
    store_bounds(low, high, last, tau, below, above, last_key, at, inside, FIRST)
    largest = tl.max(tl.where(slot_QS < keep, best_QS, float("-inf")), axis=1)
    tl.store(peak + at, largest, mask=inside)
