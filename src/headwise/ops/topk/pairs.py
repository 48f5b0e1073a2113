# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Top-k attention given a list of the keys each query keeps: the output, and its gradients.

Kept pairs are visited and nothing else; spare places of a list only in blocks of queries that have
the flag TIED. The backward pass adds to dk and dv by atomics, in no certain order, and leaves
queries in doubt to others.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.launching import SIZES, padded
from headwise.ops.tiles import Call, load_rows, place, with_rows
from headwise.ops.topk.gathering import gather_rows
from headwise.ops.topk.ranking import Listed, doubtful_tile
from headwise.ops.topk.selection import IN_DOUBT, TIED
from headwise.ops.topk.weighing import drop_pairs, strides

__all__ = ["pair_gradients", "pair_values"]

VALUE_ROWS = 16  # queries, of a program of the kernel that sums values
PAIR_ROWS = 16  # of the kernel that computes gradients


def pair_values(
    listed: Listed, v: Tensor, dropout: float, seed: Tensor | None, flag_rows: int
) -> Tensor:
    """The sum of the values of listed keys by their weights, (B, H, Q, E)."""
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
    """Gradients of q, and in float32 of k and v, from the pairs of queries not in doubt."""
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
        later = inside & (slot + 1 < places)  # asked for now, since much waits for it
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
        later = inside & (slot + 1 < places)  # asked for now, since much waits for it
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
