# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Sparsemax and entmax attention, forward: a block of queries of one head a program.

`resident` holds the scores of its queries with all keys on chip, solves for tau there and reads
everything once. `streaming` computes the scores again in every step of Newton's method; it starts
from the tau of the two largest scores of each column of tiles, which is never too high, as more
keys only raise tau. Both write, a row: out = sum w v; mean = sum u v / sum u, which the gradient
needs; the largest (alpha - 1) score, 0 for a row that sees nothing; and tau, relative to it.

The sweep of `streaming` that sums values sums the weights too, so that no sweep is spent on finding
that tau is right. Where they come to more than 1 + ENOUGH, or to less than 1 - ENOUGH, tau takes a
step and the sweep is done again. out, mean and tau are of the same sweep. The first tau of
sparsemax is mostly right; a sweep before has shown it, and the one that sums values is not judged.
"""

from typing import no_type_check

import triton
import triton.language as tl

from headwise.ops.entmax.curve import (
    MOST_STEPS,
    above,
    above_tile,
    alpha_of_head,
    factor_and_weight,
    farthest,
    guessed_step,
    kept,
    newton_step,
    seen_tile,
    solve,
    whole_and_all,
)
from headwise.ops.launching import MASK_STRIDES, SIZES
from headwise.ops.tiles import load_rows, load_shown, place, score_tile

__all__ = ["resident", "streaming"]

ANY = [*SIZES, *MASK_STRIDES]  # one compiled kernel serves all of these
MOST_LOOKS = tl.constexpr(8)  # seldom more than one; after these, what is left is as it is


@triton.jit
@no_type_check
def store_rows(start, rows, n_rows, tile, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Write a tile to rows of a contiguous (n_rows, WIDTH) matrix."""
    column = tl.arange(0, PADDED)
    inside = (rows[:, None] < n_rows) & (column[None, :] < WIDTH)
    tl.store(start + rows[:, None].to(tl.int64) * WIDTH + column[None, :], tile, mask=inside)


@triton.jit
@no_type_check
def _largest(top_Q):
    """0 for a row that sees nothing: then z is -inf, and x is 0."""
    return tl.where(top_Q == float("-inf"), 0.0, top_Q)


@triton.jit(do_not_specialize=ANY)
@no_type_check
def resident(
    q, k, v, alpha, lengths, mask, seed, out, mean, top, tau,
    scale, first, dropout, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, POWER: tl.constexpr, DROPOUT: tl.constexpr,
    TRAINING: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """All keys of the call in one tile: KEYS >= n_keys."""
    block, batch, head, group = place(n_blocks, heads, groups)
    group = group.to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    keys = tl.arange(0, KEYS)
    line = batch * heads + head
    rise, power = alpha_of_head(alpha, head, POWER)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    k_KD = load_rows(k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED)
    z_QK = score_tile(
        q_QD, k_KD, rows, keys, tl.load(lengths + batch), n_queries, scale * rise, first,
        mask + batch * mask_batch + head * mask_head, mask_row, mask_key, CAUSAL, MASKED,
    )  # fmt: skip
    top_Q = _largest(tl.max(z_QK, axis=1))
    z_QK = z_QK - top_Q[:, None]
    tau_Q = solve((z_QK,), top_Q * 0.0 - 1.0, power, POWER, NEAR, MOST_STEPS)

    length = tl.load(lengths + batch)
    _, stop = whole_and_all(block, length, first, ROWS, KEYS, CAUSAL, MASKED)
    v_KE = load_shown(
        v + batch * v_batch + group * v_head, keys, v_row, stop,
        mask + batch * mask_batch + head * mask_head, mask_key, VALUE, VALUE_PADDED, MASKED,
    )  # fmt: skip
    factor_QK, weight_QK = factor_and_weight(above(z_QK, tau_Q[:, None]), power, POWER)
    slope_Q = tl.sum(factor_QK, axis=1)
    if DROPOUT:
        kept_QK = kept(seed, line, rows, 0, dropout, ROWS, KEYS)
        weight_QK *= kept_QK
        factor_QK *= kept_QK
    out_QE = tl.dot(weight_QK.to(v_KE.dtype), v_KE, input_precision="ieee")
    store_rows(out + line * n_queries * VALUE, rows, n_queries, out_QE, VALUE, VALUE_PADDED)
    if TRAINING:
        mean_QE = tl.dot(factor_QK.to(v_KE.dtype), v_KE, input_precision="ieee")
        mean_QE /= tl.maximum(slope_Q, 1e-30)[:, None]
        store_rows(mean + line * n_queries * VALUE, rows, n_queries, mean_QE, VALUE, VALUE_PADDED)
        tl.store(top + line * n_queries + rows, top_Q, mask=rows < n_queries)
        tl.store(tau + line * n_queries + rows, tau_Q, mask=rows < n_queries)


@triton.jit(do_not_specialize=ANY)
@no_type_check
def streaming(
    q, k, v, alpha, lengths, mask, seed, out, mean, top, tau,
    scale, first, dropout, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, POWER: tl.constexpr, DROPOUT: tl.constexpr,
    TRAINING: tl.constexpr, NEAR: tl.constexpr, ENOUGH: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Any number of keys, in tiles of KEYS; those that all rows see whole come first."""
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    line = batch * heads + head
    rise, power = alpha_of_head(alpha, head, POWER)
    scale = scale * rise
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    k += batch * k_batch + group.to(tl.int64) * k_head
    v += batch * v_batch + group.to(tl.int64) * v_head
    mask += batch * mask_batch + head * mask_head
    length = tl.load(lengths + batch)
    sight = (length, first, n_queries, mask, mask_row, mask_key)
    whole, stop = whole_and_all(block, length, first, ROWS, KEYS, CAUSAL, MASKED)

    largest_QK = tl.full((ROWS, KEYS), float("-inf"), tl.float32)
    second_QK = largest_QK
    for EDGE in tl.static_range(2):
        for start in range(EDGE * whole, stop if EDGE else whole, KEYS):
            keys = start + tl.arange(0, KEYS)
            k_KD = load_rows(k, keys, k_row, n_keys, WIDTH, PADDED)
            z_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee") * scale
            if EDGE:
                seen_QK = seen_tile(rows[:, None], keys[None, :], sight, CAUSAL, MASKED)
                z_QK = tl.where(seen_QK, z_QK, float("-inf"))
            second_QK = tl.maximum(second_QK, tl.minimum(largest_QK, z_QK))
            largest_QK = tl.maximum(largest_QK, z_QK)
    top_Q = _largest(tl.max(largest_QK, axis=1))
    known = (largest_QK - top_Q[:, None], second_QK - top_Q[:, None])
    tau_Q = solve(known, top_Q * 0.0 - 1.0, power, POWER, NEAR, 8)

    step = 0
    far = True
    while far & (step < MOST_STEPS):
        total_Q = tl.zeros((ROWS,), tl.float32)
        slope_Q = tl.zeros((ROWS,), tl.float32)
        for EDGE in tl.static_range(2):
            for start in range(EDGE * whole, stop if EDGE else whole, KEYS):
                keys = start + tl.arange(0, KEYS)
                k_KD = load_rows(k, keys, k_row, n_keys, WIDTH, PADDED)
                x_QK = above_tile(
                    q_QD, k_KD, scale, top_Q, tau_Q, rows, keys, sight, CAUSAL, MASKED, EDGE
                )
                factor_QK, weight_QK = factor_and_weight(x_QK, power, POWER, SUMMED=True)
                total_Q += tl.sum(weight_QK, axis=1)
                slope_Q += tl.sum(factor_QK, axis=1)
        if POWER == 2:
            ahead_Q = guessed_step(total_Q, slope_Q, power)
        else:
            ahead_Q = newton_step(total_Q, slope_Q, power, POWER)
        ahead_Q = tl.where(rows < n_queries, ahead_Q, 0.0)
        far = farthest(total_Q, ahead_Q, tau_Q) > NEAR
        tau_Q += ahead_Q
        step += 1

    out += line * n_queries * VALUE
    mean += line * n_queries * VALUE
    step = 0
    far = True
    while far & (step < MOST_LOOKS):
        total_Q = tl.zeros((ROWS,), tl.float32)
        slope_Q = tl.zeros((ROWS,), tl.float32)
        out_QE = tl.zeros((ROWS, VALUE_PADDED), tl.float32)
        mean_QE = tl.zeros((ROWS, VALUE_PADDED), tl.float32)
        for EDGE in tl.static_range(2):
            for start in range(EDGE * whole, stop if EDGE else whole, KEYS):
                keys = start + tl.arange(0, KEYS)
                k_KD = load_rows(k, keys, k_row, n_keys, WIDTH, PADDED)
                if EDGE:
                    v_KE = load_shown(
                        v, keys, v_row, stop, mask, mask_key, VALUE, VALUE_PADDED, MASKED
                    )
                else:
                    v_KE = load_rows(v, keys, v_row, n_keys, VALUE, VALUE_PADDED)
                x_QK = above_tile(
                    q_QD, k_KD, scale, top_Q, tau_Q, rows, keys, sight, CAUSAL, MASKED, EDGE
                )
                factor_QK, weight_QK = factor_and_weight(x_QK, power, POWER, SUMMED=True)
                if POWER != 1:
                    total_Q += tl.sum(weight_QK, axis=1)
                if TRAINING or POWER != 1:
                    slope_Q += tl.sum(factor_QK, axis=1)
                if DROPOUT:
                    kept_QK = kept(seed, line, rows, start, dropout, ROWS, KEYS)
                    weight_QK *= kept_QK
                    factor_QK *= kept_QK
                out_QE = tl.dot(weight_QK.to(v_KE.dtype), v_KE, out_QE, input_precision="ieee")
                if TRAINING:
                    mean_QE = tl.dot(
                        factor_QK.to(v_KE.dtype), v_KE, mean_QE, input_precision="ieee"
                    )
        if TRAINING:
            mean_QE /= tl.maximum(slope_Q, 1e-30)[:, None]
            store_rows(mean, rows, n_queries, mean_QE, VALUE, VALUE_PADDED)
            tl.store(tau + line * n_queries + rows, tau_Q, mask=rows < n_queries)
        store_rows(out, rows, n_queries, out_QE, VALUE, VALUE_PADDED)
        if POWER == 1:
            far = step < 0  # never
        else:
            ahead_Q = newton_step(total_Q, slope_Q, power, POWER)
            ahead_Q = tl.where(rows < n_queries, ahead_Q, 0.0)
            far = farthest(total_Q, ahead_Q, tau_Q) > ENOUGH
            tau_Q += ahead_Q
        step += 1
    if TRAINING:
        tl.store(top + line * n_queries + rows, top_Q, mask=rows < n_queries)
