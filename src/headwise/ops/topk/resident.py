# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Top-k attention of rows that fit into one tile: everything in one kernel, nothing in doubt.

The scores of a block of queries stay on chip. The largest value of each row is taken away until
keep scores are counted; what was taken last is the bound, and the rest is softmax over kept scores.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.launching import padded
from headwise.ops.tiles import Call, load_rows, load_shown, place, score_tile, with_rows
from headwise.ops.topk.selection import (
    ANY,
    Selection,
    above_of,
    between,
    keys_seen,
    store_bounds,
)
from headwise.ops.topk.weighing import drop_tile, strides, weights_of, widths

__all__ = ["MOST_KEYS", "attend_resident"]

# By the bytes of a number: what fits the registers.
MOST_KEYS = {2: 128, 4: 32}
# Triton 3.6 multiplies narrower values wrongly on Hopper where no loop reads them.
LEAST_WIDTH = 64


def attend_resident(
    call: Call, v: Tensor, keep: int, first_ties: bool, dropout: float, seed: Tensor | None,
    chosen: Selection, *, out: Tensor, log_sum: Tensor,
) -> None:  # fmt: skip
    """Write the output and what the backward pass needs. A row has at most MOST_KEYS keys."""
    batch, heads, n_queries = log_sum.shape
    v, rows = with_rows(v), 64 if v.element_size() == 2 else 16
    n_blocks = -(-n_queries // rows)
    low, high, last, peak = chosen
    given = call.arguments() | strides("v", v) | widths(call, v)
    if v.element_size() == 2:
        given["PADDED_VALUES"] = max(given["PADDED_VALUES"], LEAST_WIDTH)
    given["KEY_MASK"] = given["MASKED"]
    given["MASKED"] = min(given["MASKED"], 1)  # read for every score, it spills less
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
    for _ in range(keep):  # a value a turn, from all keys that have it
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
