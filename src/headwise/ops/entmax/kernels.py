# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Kernels of sparsemax and entmax attention; a program takes a block of queries of one head.

Forward, `resident` holds the scores of its queries with all keys on chip, solves for tau there and
reads everything once. `streaming` recomputes the scores in every step of Newton's method; it starts
from the tau of the two largest scores of each column of tiles, which is never too high, because
more keys only raise tau. Both write for each row: out = sum w v; mean = sum u v / sum u, which the
gradient needs; the largest (alpha - 1) score, 0 for a row that sees nothing; and tau, relative to
it.

The sweep of `streaming` that sums values also sums the weights, so that no sweep is needed only to
confirm tau. If the sum is above 1 + ENOUGH or below 1 - ENOUGH, tau takes a step and the sweep is
repeated. out, mean and tau come from the same sweep. The first tau of sparsemax is mostly right; an
earlier sweep has confirmed it, so the last sweep is not checked.

Backward, with u, w and mean as above, and g the gradient of out:

    dw_ij = g_i . v_j                    ds_ij = u_ij (dw_ij - delta_i)     delta_i = g_i . mean_i
    dq_i = scale sum_j ds_ij k_j         dk_j = scale sum_i ds_ij q_i       dv_j = sum_i w_ij g_i
    dalpha = sum_ij p^2 h_ij (dw_ij - delta_i)                h_ij = w_ij (1 - log x_ij)

Tiles are dense and there are no atomics, so that every run gives the same bits. mean has the dtype
of v. That costs ds one rounding, but terms of dalpha nearly cancel, and p^2 is large where alpha is
small: its delta is corrected by sum_j u_ij (dw_ij - delta_i) / sum_j u_ij. `for_queries` writes
top, tau and delta of each row next to each other for `for_keys`, which sums over the heads that
share its keys.
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
from headwise.ops.tiles import MASK_STRIDES, SIZES, finite, load_rows, load_shown, place, score_tile

ANY = [*SIZES, *MASK_STRIDES]  # one compiled kernel serves all of these
MOST_LOOKS = tl.constexpr(8)  # sweeps that sum values; seldom more than one is needed


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
    """Replace -inf, of a row that sees nothing, by 0: then z is -inf, and x is 0."""
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
    """Attend with all keys of the call in one tile: KEYS >= n_keys."""
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
    """Attend to any number of keys, in tiles of KEYS; tiles that all rows see come first."""
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


LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=ANY)
@no_type_check
def for_queries(
    q, k, v, alpha, lengths, mask, seed, grad, mean, top, tau, of_rows, dq, dalpha,
    scale, first, dropout, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    grad_batch, grad_head, grad_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, POWER: tl.constexpr, DROPOUT: tl.constexpr,
    LEARNED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write dq, the rows that `for_keys` reads and, if alpha is LEARNED, each row's dalpha."""
    block, batch, head, group = place(n_blocks, heads, groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    line = batch * heads + head
    rise, power = alpha_of_head(alpha, head, POWER)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    g_QE = load_rows(
        grad + batch * grad_batch + head * grad_head, rows, grad_row, n_queries,
        VALUE, VALUE_PADDED,
    )  # fmt: skip
    mean_QE = load_rows(
        mean + line * n_queries * VALUE, rows, VALUE, n_queries, VALUE, VALUE_PADDED
    )
    delta_Q = tl.sum(g_QE.to(tl.float32) * mean_QE.to(tl.float32), axis=1)
    at = line * n_queries + rows
    inside = rows < n_queries
    top_Q = tl.load(top + at, mask=inside, other=0.0)
    tau_Q = tl.load(tau + at, mask=inside, other=0.0)
    tl.store(of_rows + at * 4, top_Q, mask=inside)
    tl.store(of_rows + at * 4 + 1, tau_Q, mask=inside)
    tl.store(of_rows + at * 4 + 2, delta_Q, mask=inside)
    k += batch * k_batch + group.to(tl.int64) * k_head
    v += batch * v_batch + group.to(tl.int64) * v_head
    mask += batch * mask_batch + head * mask_head
    length = tl.load(lengths + batch)
    sight = (length, first, n_queries, mask, mask_row, mask_key)
    whole, stop = whole_and_all(block, length, first, ROWS, KEYS, CAUSAL, MASKED)

    dq_QD = tl.zeros((ROWS, PADDED), tl.float32)
    ds_Q = tl.zeros((ROWS,), tl.float32)
    slope_Q = tl.zeros((ROWS,), tl.float32)
    bend_Q = tl.zeros((ROWS,), tl.float32)
    dalpha_Q = tl.zeros((ROWS,), tl.float32)
    for EDGE in tl.static_range(2):
        for start in range(EDGE * whole, stop if EDGE else whole, KEYS):
            keys = start + tl.arange(0, KEYS)
            k_KD = load_rows(k, keys, k_row, n_keys, WIDTH, PADDED)
            if EDGE:
                v_KE = load_shown(v, keys, v_row, stop, mask, mask_key, VALUE, VALUE_PADDED, MASKED)
            else:
                v_KE = load_rows(v, keys, v_row, n_keys, VALUE, VALUE_PADDED)
            x_QK = above_tile(
                q_QD, k_KD, scale * rise, top_Q, tau_Q, rows, keys, sight, CAUSAL, MASKED, EDGE
            )
            factor_QK, weight_QK = factor_and_weight(x_QK, power, POWER)
            change_QK = tl.dot(g_QE, tl.trans(v_KE), input_precision="ieee")
            if DROPOUT:
                change_QK *= kept(seed, line, rows, start, dropout, ROWS, KEYS)
            change_QK -= delta_Q[:, None]
            ds_QK = factor_QK * change_QK
            if EDGE:  # a hidden key may be infinite
                k_KD = finite(k_KD)
            dq_QD = tl.dot(ds_QK.to(k_KD.dtype), k_KD, dq_QD, input_precision="ieee")
            if LEARNED:
                bend_QK = weight_QK * (1.0 - LN_2 * tl.log2(tl.maximum(x_QK, 1e-30)))
                ds_Q += tl.sum(ds_QK, axis=1)
                slope_Q += tl.sum(factor_QK, axis=1)
                bend_Q += tl.sum(bend_QK, axis=1)
                dalpha_Q += tl.sum(change_QK * bend_QK, axis=1)
    store_rows(dq + line * n_queries * WIDTH, rows, n_queries, dq_QD * scale, WIDTH, PADDED)
    if LEARNED:
        dalpha_Q -= bend_Q * ds_Q / tl.where(slope_Q > 0.0, slope_Q, 1.0)
        tl.store(dalpha + at, dalpha_Q * power * power, mask=inside)


@triton.jit
@no_type_check
def top_tau_delta(of_rows, n_rows, ROWS: tl.constexpr):
    """Load the rows that `for_queries` wrote, zeros beyond the last.

    This is one load of at least as many numbers as there are threads. With fewer, or three loads,
    each thread would copy for itself, one number at a time.
    """
    row = tl.arange(0, ROWS)[:, None]
    of_Q4 = tl.load(of_rows + row * 4 + tl.arange(0, 4)[None, :], mask=row < n_rows, other=0.0)
    top_delta_Q2, tau_Q2 = tl.split(tl.reshape(of_Q4, (ROWS, 2, 2)))
    top_Q, delta_Q = tl.split(top_delta_Q2)
    tau_Q, _ = tl.split(tau_Q2)
    return top_Q, tau_Q, delta_Q


@triton.jit(do_not_specialize=ANY)
@no_type_check
def for_keys(
    q, k, v, alpha, lengths, mask, seed, grad, of_rows, dk, dv,
    scale, first, dropout, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    grad_batch, grad_head, grad_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, POWER: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write dk and dv of a block of keys; one program sums over all heads that share them."""
    block, batch, group, _ = place(n_blocks, groups, groups)
    keys = block * KEYS + tl.arange(0, KEYS)
    k_KD = load_rows(k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED)
    v_KE = load_rows(v + batch * v_batch + group * v_head, keys, v_row, n_keys, VALUE, VALUE_PADDED)
    length = tl.load(lengths + batch)
    stop = tl.where(block * KEYS < length, n_queries, 0)
    begin = 0
    whole = 0  # from this row on, all rows see all keys of the block, real or not
    if CAUSAL:  # earlier rows see none of them
        begin = tl.maximum(block * KEYS - first, 0) // ROWS * ROWS
        whole = tl.maximum(block * KEYS + KEYS - 1 - first, 0)
        whole = tl.minimum((whole + ROWS - 1) // ROWS * ROWS, stop)
    if MASKED:
        whole = stop

    dk_KD = tl.zeros((KEYS, PADDED), tl.float32)
    dv_KE = tl.zeros((KEYS, VALUE_PADDED), tl.float32)
    for head in range(group * (heads // groups), (group + 1) * (heads // groups)):
        line = batch * heads + head
        rise, power = alpha_of_head(alpha, head, POWER)
        mask_at = mask + batch * mask_batch + head * mask_head
        for EDGE in tl.static_range(2):
            for start in range(begin if EDGE else whole, whole if EDGE else stop, ROWS):
                row = tl.arange(0, ROWS)
                rows = start + row
                # Rows counted from the start of the tile: only its address changes in the loop.
                begun = tl.cast(start, tl.int64)
                left = n_queries - start
                q_at = q + (batch * q_batch + head * q_head + begun * q_row)
                q_QD = load_rows(q_at, row, q_row, left, WIDTH, PADDED)
                g_at = grad + (batch * grad_batch + head * grad_head + begun * grad_row)
                g_QE = load_rows(g_at, row, grad_row, left, VALUE, VALUE_PADDED)
                rows_at = of_rows + (line * n_queries + begun) * 4
                top_Q, tau_Q, delta_Q = top_tau_delta(rows_at, left, ROWS)
                # Keys by queries, so that products use the result in its register layout.
                z_KQ = tl.dot(k_KD, tl.trans(q_QD), input_precision="ieee") * (scale * rise)
                x_KQ = above(z_KQ - top_Q[None, :], tau_Q[None, :])
                if EDGE:
                    sight = (length, first, n_queries, mask_at, mask_row, mask_key)
                    seen_KQ = seen_tile(rows[None, :], keys[:, None], sight, CAUSAL, MASKED)
                    x_KQ = tl.where(seen_KQ, x_KQ, 0.0)
                factor_KQ, weight_KQ = factor_and_weight(x_KQ, power, POWER)
                change_KQ = tl.dot(v_KE, tl.trans(g_QE), input_precision="ieee")
                if DROPOUT:
                    kept_QK = kept(seed, line, rows, block * KEYS, dropout, ROWS, KEYS)
                    change_KQ *= tl.trans(kept_QK)
                    weight_KQ *= tl.trans(kept_QK)
                ds_KQ = factor_KQ * (change_KQ - delta_Q[None, :])
                if EDGE:  # a hidden value may be infinite
                    ds_KQ = tl.where(factor_KQ == 0.0, 0.0, ds_KQ)
                dv_KE = tl.dot(weight_KQ.to(g_QE.dtype), g_QE, dv_KE, input_precision="ieee")
                dk_KD = tl.dot(ds_KQ.to(q_QD.dtype), q_QD, dk_KD, input_precision="ieee")
    line = batch * groups + group
    real_K1 = keys[:, None] < length
    dk_KD = tl.where(real_K1, dk_KD * scale, 0.0)
    dv_KE = tl.where(real_K1, dv_KE, 0.0)
    store_rows(dk + line * n_keys * WIDTH, keys, n_keys, dk_KD, WIDTH, PADDED)
    store_rows(dv + line * n_keys * VALUE, keys, n_keys, dv_KE, VALUE, VALUE_PADDED)
