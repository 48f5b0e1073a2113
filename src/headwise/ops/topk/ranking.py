# Arguments of kernels have no types that a type checker would know.
# pyright: basic
# ruff: noqa: RUF005  Triton cannot unpack a tuple into another
"""Ranking of a few candidates per query, and a second search where better keys may exist.

Each thread ranks the candidates of one query by inserting them into sorted places. A block of
queries with one in doubt is marked as pending, and its scores are computed once more, by many
programs that each take some of the keys. A hit is a score at least as large as the smallest kept so
far. If the hits of a query fit the space of its candidates, they are ranked instead, and nothing is
in doubt. If all keys that tie for the last place are kept, the list has a few spare places, which
only blocks with the flag TIED use. The host never waits; queries still in doubt keep a flag.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import Call, Tile, load_rows, score_tile
from headwise.ops.topk.selection import (
    ANY,
    IN_DOUBT,
    SEEN_TWICE,
    TIED,
    Selection,
    flagged_tile,
    keys_seen,
    launch_arguments,
    store_bounds,
)

# Tile for queries in doubt, in 16 bits; its rows share a flag. The kernels are always launched, and
# with fewer blocks it is found sooner that none has a flag.
DOUBTFUL = Tile(rows=64, keys=64, warps=4, stages=2)
RANK_ROWS = 128  # queries per program, one per thread
PART = 512  # keys per program of the second search
MOST_PROGRAMS = 512  # of the second search; each loops over queries
SPARE = 4  # places in a list for keys that tie with the keep-th
UNKNOWN = tl.constexpr(1 << 29)  # hits of a query whose candidates cannot be trusted


class Listed(NamedTuple):
    """Kept keys of every query; of queries in doubt only the bounds are valid."""

    chosen: Selection
    log_sum: Tensor  # (B, H, Q), log2 of the sum of exp(score - peak)
    keys: Tensor  # (keep + spare, B, H, Q) int32, -1 where a query keeps fewer keys
    weights: Tensor  # (keep + spare, B, H, Q), before dropout
    flags: Tensor  # one per block of queries, of the size of `doubtful_tile`
    spare: int = 0  # places at the end for ties; empty unless the flag is TIED


class Candidates(NamedTuple):
    """Candidate keys of every query, (slots, B, H, Q), -1 for none, and scores, -inf for none."""

    keys: Tensor
    scores: Tensor
    low_bits: int  # bits missing from the bound on all other keys


def spare_places(first_ties: bool) -> int:
    """Return the number of places that a list has for ties, in addition to `keep`."""
    return 0 if first_ties else SPARE


def doubtful_tile(q: Tensor) -> Tile:
    """Return the tile for queries in doubt."""
    return flagged_tile(q) if q.dtype == torch.float32 else DOUBTFUL


def choose(call: Call, listed: Listed, candidates: Candidates, keep: int, first_ties: bool) -> None:
    """Write the best candidates, and flag queries for which better keys may exist.

    On entry `peak` holds a bound on all other keys, and `log_sum` whether a query is in doubt.
    """
    n_flags, slots = len(listed.flags), len(candidates.keys)
    n_queries, n_keys = call.q.shape[2], call.k.shape[2]
    pending = torch.zeros(1 + n_flags, dtype=torch.int32, device=listed.flags.device)
    hits = torch.empty_like(listed.log_sum, dtype=torch.int32)
    rows = {"n_rows": listed.log_sum.numel(), "slots": slots, "pending": pending, "hits": hits}
    given: dict[str, Any] = listed.chosen._asdict() | rows
    given |= {"keys": candidates.keys, "scores": candidates.scores, "flags": listed.flags}
    given |= {"log_sum": listed.log_sum, "picked": listed.keys, "weights": listed.weights}
    given |= {"n_queries": n_queries, "n_keys": n_keys, "keep": keep}
    given |= {"FIRST": first_ties, "SPARE": listed.spare, "FLAG_ROWS": doubtful_tile(call.q).rows}
    kept = 1 << (keep - 1).bit_length()
    _rank_kernel[(-(-listed.log_sum.numel() // RANK_ROWS),)](
        **given, scale=call.scale, low_bits=candidates.low_bits, ROWS=RANK_ROWS, KEPT=kept
    )
    parts = -(-n_keys // PART)
    seeing = launch_arguments(call, listed.chosen, listed.flags, keep, True, doubtful_tile(call.q))
    unused = ("flags", "high", "last", "keep", "FIRST")
    _hits_kernel[(min(n_flags * parts, MOST_PROGRAMS),)](
        **{x: argument for x, argument in seeing.items() if x not in unused}, **rows,
        peak=listed.chosen.peak, hit_keys=candidates.keys, hit_scores=candidates.scores,
        parts=parts, PART=PART,
    )  # fmt: skip
    given |= {"PLACES": kept + listed.spare, "num_warps": 1 if kept <= 32 else 2}
    _rerank_kernel[(min(n_flags, MOST_PROGRAMS),)](**given)


@triton.jit
@no_type_check
def _sink(best, best_keys, left, score, key, KEPT: tl.constexpr):
    """Insert a score and its key into the sorted places; the smallest drops into `left`."""
    sunk, sunk_keys = (), ()
    for rank in tl.static_range(KEPT):
        other, other_key = best[rank], best_keys[rank]
        before = (score > other) | ((score == other) & (key < other_key))
        sunk = sunk + (tl.where(before, score, other),)
        sunk_keys = sunk_keys + (tl.where(before, key, other_key),)
        score, key = tl.where(before, other, score), tl.where(before, other_key, key)
    return sunk, sunk_keys, tl.maximum(left, score)


@triton.jit
@no_type_check
def _best(scores, keys, at, there, slots, n_rows, KEPT: tl.constexpr):
    """Find the KEPT largest scores of each query, sorted by score and key, their keys, and the
    largest score that is left."""
    nothing = tl.full(at.shape, float("-inf"), tl.float32)
    best, best_keys = (), ()
    for _ in tl.static_range(KEPT):
        best = best + (nothing,)
        best_keys = best_keys + (tl.full(at.shape, -1, tl.int32),)
    left = nothing
    for pair in range(slots // 2):  # the loads of two do not wait for each other
        from_slot = pair * 2 * n_rows + at
        here, next_here = pair * 2 < there, pair * 2 + 1 < there
        score = tl.load(scores + from_slot, mask=here, other=float("-inf"))
        key = tl.load(keys + from_slot, mask=here, other=-1)
        next_score = tl.load(scores + from_slot + n_rows, mask=next_here, other=float("-inf"))
        next_key = tl.load(keys + from_slot + n_rows, mask=next_here, other=-1)
        best, best_keys, left = _sink(best, best_keys, left, score, key, KEPT)
        best, best_keys, left = _sink(best, best_keys, left, next_score, next_key, KEPT)
    return best, best_keys, left


@triton.jit
@no_type_check
def _edge(best, left, keep, KEPT: tl.constexpr):
    """Return the keep-th score and the next one."""
    tau = best[0]
    next_one = left
    for rank in tl.static_range(KEPT):
        tau = tl.where(rank == keep - 1, best[rank], tau)
        next_one = tl.where(rank == keep, best[rank], next_one)
    return tau, next_one


@triton.jit
@no_type_check
def _smaller(scores, tau, at, there, slots, n_rows):
    """Find the largest score below tau."""
    below = tl.full(at.shape, float("-inf"), tl.float32)
    for slot in range(slots):
        score = tl.load(scores + slot * n_rows + at, mask=slot < there, other=float("-inf"))
        below = tl.maximum(below, tl.where(score < tau, score, float("-inf")))
    return below


@triton.jit
@no_type_check
def _limits(best, best_keys, tau, keep, KEPT: tl.constexpr):
    """Find the smallest kept score above tau, inf if none, and the last kept key that has tau."""
    above = tl.full(tau.shape, float("inf"), tl.float32)
    last_tied = tl.full(tau.shape, -1, tl.int32)
    for rank in tl.static_range(KEPT):  # sorted: later ones are smaller, equal ones by key
        above = tl.where((rank < keep) & (best[rank] > tau), best[rank], above)
        last_tied = tl.where((rank < keep) & (best[rank] == tau), best_keys[rank], last_tied)
    return above, last_tied


@triton.jit
@no_type_check
def _write(
    best, best_keys, tau, peak, log_sum, picked, weights, at, inside, n_rows, keep,
    SPARE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """Write the largest score, log2 of the sum of exp(score - largest), and the list with weights.

    Places beyond keep, if any are SPARE, hold keys that tie with tau.
    """
    tl.store(peak + at, best[0], mask=inside)
    empty = best[0] == float("-inf")
    norm = tl.where(empty, 0.0, best[0])
    total = tl.full(at.shape, 0.0, tl.float32)
    for rank in tl.static_range(KEPT):
        kept = rank < keep
        if SPARE:
            kept = kept | (best[rank] == tau)
        total += tl.where(kept, tl.exp(best[rank] - norm), 0.0)
    total = tl.where(empty, 1.0, total)
    tl.store(log_sum + at, tl.log2(total), mask=inside)
    for rank in tl.static_range(KEPT):
        to = n_rows * rank + at
        key, weight = best_keys[rank], tl.exp(best[rank] - norm) / total
        if SPARE:
            kept = (rank < keep) | (best[rank] == tau)
            key, weight = tl.where(kept, key, -1), tl.where(kept, weight, 0.0)
        tl.store(picked + to, key, mask=inside & (rank < keep + SPARE))
        tl.store(weights + to, weight, mask=inside & (rank < keep + SPARE))


@triton.jit(do_not_specialize=["low_bits", "n_rows", "n_queries", "n_keys", "keep", "slots"])
@no_type_check
def _rank_kernel(
    keys, scores, low, high, last, peak, flags, log_sum, picked, weights, pending, hits, scale,
    low_bits, n_rows, n_queries, n_keys, keep, slots,
    FIRST: tl.constexpr, SPARE: tl.constexpr, ROWS: tl.constexpr, KEPT: tl.constexpr,
    FLAG_ROWS: tl.constexpr,
):  # fmt: skip
    n_rows = n_rows.to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = at < n_rows
    there = tl.where(inside, slots, 0)
    best, best_keys, left = _best(scores, keys, at, there, slots, n_rows, KEPT)
    tau, below = _edge(best, left, keep, KEPT)

    # Is the keep-th score above all others?
    bound = tl.load(peak + at, mask=inside, other=0.0)
    some = bound > -9e37
    highest = tl.where(some, bound * scale, 0.0)
    highest += tl.abs(highest) * (low_bits + 1).to(tl.float32) * 1.2e-7
    highest += 4e-6 * tl.where(best[0] == float("-inf"), 0.0, tl.abs(best[0]))
    below = tl.maximum(below, tl.where(some, highest, float("-inf")))
    unknown = tl.load(log_sum + at, mask=inside, other=0.0) != 0.0
    doubtful = inside & (unknown | ((below > float("-inf")) & (below >= tau)))
    # In doubt, `low` must not be above the keep-th score: the second search starts there.
    below = tl.where(doubtful, tau, below)
    above = tl.full(at.shape, float("inf"), tl.float32)
    store_bounds(low, high, last, tau, below, above, n_keys, at, inside, FIRST)
    _write(best, best_keys, tau, peak, log_sum, picked, weights, at, inside, n_rows, keep, 0, KEPT)
    for spare in tl.static_range(SPARE):
        to = n_rows * (keep + spare) + at
        tl.store(picked + to, -1, mask=inside)
        tl.store(weights + to, 0.0, mask=inside)
    tl.store(hits + at, tl.where(unknown, UNKNOWN, 0), mask=inside)

    n_blocks = tl.cdiv(n_queries, FLAG_ROWS)
    block = at // n_queries * n_blocks + at % n_queries // FLAG_ROWS
    flag = tl.atomic_max(flags + block, IN_DOUBT, mask=doubtful, sem="relaxed")
    newly = doubtful & (flag == 0)
    place = tl.atomic_add(pending + block * 0, 1, mask=newly, sem="relaxed")
    tl.store(pending + 1 + place, block.to(tl.int32), mask=newly)


@triton.jit
@no_type_check
def _least_hit(low, peak, at, inside):
    """Return the bound of hits: the smallest score kept so far, less more than rounding."""
    least = tl.load(low + at, mask=inside, other=0.0)
    largest = tl.load(peak + at, mask=inside, other=0.0)
    size = tl.where(largest == float("-inf"), 0.0, tl.abs(largest))
    return least - 1e-4 * tl.abs(least) - 1e-5 * size


@triton.jit(do_not_specialize=[*ANY, "n_rows", "slots", "parts"])
@no_type_check
def _hits_kernel(
    q, k, lengths, mask, low, peak, pending, hits, hit_keys, hit_scores, scale, first, heads,
    groups, n_queries, n_keys, n_blocks, n_rows, slots, parts, q_batch, q_head, q_row,
    k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Write the hits of pending queries to the space of their candidates, and count them."""
    for item in range(tl.program_id(0), tl.load(pending) * parts, tl.num_programs(0)):
        number = tl.load(pending + 1 + item // parts)
        line = (number // n_blocks).to(tl.int64)
        block, batch, head = number % n_blocks, line // heads, line % heads
        group = head // (heads // groups)
        rows = block * ROWS + tl.arange(0, ROWS)
        inside = rows < n_queries
        at = line * n_queries + rows
        length = tl.load(lengths + batch)
        q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
        least = _least_hit(low, peak, at, inside)
        last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
        begin = item % parts * PART
        seen = tl.minimum(keys_seen(length, n_keys, last_row, first, CAUSAL), begin + PART)
        # One query without space is enough to leave all of them to the rescue.
        most = tl.max(tl.load(hits + at, mask=inside, other=0), axis=0)
        seen = tl.where(most > slots, begin, seen)
        for start in range(begin, seen, KEYS):
            keys = start + tl.arange(0, KEYS)
            k_KD = load_rows(
                k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED
            )
            score_QK = score_tile(
                q_QD, k_KD, rows, keys, length, n_queries, scale, first,
                mask + batch * mask_batch + head * mask_head, mask_row, mask_key, CAUSAL, MASKED,
            )  # fmt: skip
            hit_QK = (score_QK >= least[:, None]).to(tl.int32)
            count = tl.sum(hit_QK, axis=1)
            if tl.max(count, axis=0) > 0:
                before = tl.atomic_add(hits + at, count, mask=count > 0, sem="relaxed")
                slot_QK = before[:, None] + tl.cumsum(hit_QK, axis=1) - 1
                fits_QK = (hit_QK > 0) & (slot_QK < slots)
                to_QK = slot_QK.to(tl.int64) * n_rows + at[:, None]
                tl.store(hit_keys + to_QK, keys[None, :] + rows[:, None] * 0, mask=fits_QK)
                tl.store(hit_scores + to_QK, score_QK, mask=fits_QK)
                full = (count > 0) & (before + count > slots)  # more need not be found
                least = tl.where(full, float("inf"), least)


@triton.jit(do_not_specialize=["n_rows", "n_queries", "n_keys", "keep", "slots"])
@no_type_check
def _rerank_kernel(
    keys, scores, low, high, last, peak, flags, log_sum, picked, weights, pending, hits,
    n_rows, n_queries, n_keys, keep, slots,
    FIRST: tl.constexpr, SPARE: tl.constexpr, PLACES: tl.constexpr, FLAG_ROWS: tl.constexpr,
):  # fmt: skip
    """Rank the hits of pending queries. The flag stays where they, or ties, did not fit."""
    n_rows = n_rows.to(tl.int64)
    n_blocks = tl.cdiv(n_queries, FLAG_ROWS)
    for item in range(tl.program_id(0), tl.load(pending), tl.num_programs(0)):
        number = tl.load(pending + 1 + item)
        rows = number % n_blocks * FLAG_ROWS + tl.arange(0, FLAG_ROWS)
        inside = rows < n_queries
        at = (number // n_blocks).to(tl.int64) * n_queries + rows
        least = _least_hit(low, peak, at, inside)
        count = tl.load(hits + at, mask=inside, other=0)
        there = tl.where(count > slots, 0, count)
        best, best_keys, left = _best(scores, keys, at, there, slots, n_rows, PLACES)
        tau, below = _edge(best, left, keep, PLACES)
        # No other key reaches `least`; if it is below all numbers, there is no other key.
        others = tl.where(least < -2.9e38, float("-inf"), least)
        doubtful = (count > slots) | ((others > float("-inf")) & (others >= tau))
        doubtful = doubtful | (least != least)
        tied = inside & (below == tau) & (tau > float("-inf"))
        if SPARE:
            _, unplaced = _edge(best, left, keep + SPARE, PLACES)
            doubtful = doubtful | (tied & (unplaced == tau))
        doubtful = doubtful & inside
        if tl.max(doubtful.to(tl.int32), axis=0) == 0:
            some_tied = tl.max(tied.to(tl.int32), axis=0) > 0
            if some_tied:
                below = _smaller(scores, tau, at, there, slots, n_rows)
            above, last_tied = _limits(best, best_keys, tau, keep, PLACES)
            last_key = tl.where(tied, last_tied, n_keys)
            below = tl.maximum(below, others)
            store_bounds(low, high, last, tau, below, above, last_key, at, inside, FIRST)
            _write(
                best, best_keys, tau, peak, log_sum, picked, weights, at, inside, n_rows, keep,
                SPARE, PLACES,
            )  # fmt: skip
            tl.store(flags + number, tl.where(some_tied & (SPARE > 0), TIED, SEEN_TWICE))
