# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Sparsemax and entmax attention, backward: dense tiles, no atomics, the same bits in every run.

With u, w and mean as in the forward pass, and g the gradient of out:

    dw_ij = g_i . v_j                    ds_ij = u_ij (dw_ij - delta_i)     delta_i = g_i . mean_i
    dq_i = scale sum_j ds_ij k_j         dk_j = scale sum_i ds_ij q_i       dv_j = sum_i w_ij g_i
    dalpha = sum_ij p^2 h_ij (dw_ij - delta_i)                h_ij = w_ij (1 - log x_ij)

mean is stored as v is. Of ds that costs a rounding, but terms of dalpha nearly cancel, and p^2 is
large where alpha is small: its delta is mended by sum_j u_ij (dw_ij - delta_i) / sum_j u_ij.
`for_queries` writes top, tau and delta of each row side by side for `for_keys`, which sums over the
heads that share its keys.
"""

from typing import no_type_check

import triton
import triton.language as tl

from headwise.ops.entmax.curve import (
    above,
    above_tile,
    alpha_of_head,
    factor_and_weight,
    kept,
    seen_tile,
    whole_and_all,
)
from headwise.ops.entmax.forward import ANY, store_rows
from headwise.ops.tiles import finite, load_rows, load_shown, place

__all__ = ["for_keys", "for_queries"]

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
    """dq, what `for_keys` takes of rows and, where alpha is LEARNED, each row's part of dalpha."""
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
    """What `for_queries` wrote of some rows, zeros where there are none.

    One load of at least as many numbers as there are threads: fewer, or three loads, each thread
    would copy for itself, a number at a time.
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
    """dk and dv of a block of keys; one program for all heads that look at them."""
    block, batch, group, _ = place(n_blocks, groups, groups)
    keys = block * KEYS + tl.arange(0, KEYS)
    k_KD = load_rows(k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED)
    v_KE = load_rows(v + batch * v_batch + group * v_head, keys, v_row, n_keys, VALUE, VALUE_PADDED)
    length = tl.load(lengths + batch)
    stop = tl.where(block * KEYS < length, n_queries, 0)
    begin = 0
    whole = 0  # from this row on all see all keys of the block, real or not
    if CAUSAL:  # rows before the first are blind to all of them
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
                # Rows counted from the first of the tile: only where it lies changes in the loop.
                begun = tl.cast(start, tl.int64)
                left = n_queries - start
                q_at = q + (batch * q_batch + head * q_head + begun * q_row)
                q_QD = load_rows(q_at, row, q_row, left, WIDTH, PADDED)
                g_at = grad + (batch * grad_batch + head * grad_head + begun * grad_row)
                g_QE = load_rows(g_at, row, grad_row, left, VALUE, VALUE_PADDED)
                rows_at = of_rows + (line * n_queries + begun) * 4
                top_Q, tau_Q, delta_Q = top_tau_delta(rows_at, left, ROWS)
                # The other way round, so that products take what was computed as it lies.
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
