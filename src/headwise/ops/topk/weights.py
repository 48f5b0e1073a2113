# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Top-k attention from the bounds of kept scores: the weights, the output and its gradients.

All kernels recompute tiles of scores and compare them with the bounds of `selection`. `gradients`
uses no atomics, so it is deterministic; `flagged_gradients` uses them.

    w = exp(s - peak) / total on kept keys     z = w * dropped        out = z v
    delta = rowsum(dout * out)           ds = z (dout v^T) - w delta
    dv = z^T dout       dk = scale ds^T q       dq = scale ds k

Peak and total of a row are stored separately: if scores are large, the sum of exp(s) as one
logarithm would lose more to rounding than weights may. A row whose total is 1 has one weight, the
constant 1, which gets a gradient of exactly 0 instead of a rounding error.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import (
    Call,
    Tile,
    finite,
    load_rows,
    load_shown,
    padded,
    place,
    score_tile,
    strides,
    with_rows,
)
from headwise.ops.topk.selection import ANY, IN_DOUBT, keys_seen, whole_tiles


class Kept(NamedTuple):
    """Bounds on the keys that queries keep, and the dropout of their weights."""

    low: Tensor  # see Selection
    high: Tensor
    last: Tensor
    first_ties: bool
    dropout: float
    seed: Tensor | None  # (1,) int64; None: no dropout

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel, constants in capitals."""
        low, high, last, first_ties, dropout, seed = self
        given = {"low": low, "high": high, "last": last, "dropout": dropout, "seed": seed}
        return given | {"FIRST": first_ties}


class Sums(NamedTuple):
    """Normalisation of exp(score) over kept keys, (B, H, Q) each."""

    peak: Tensor  # the largest score; -inf in rows that see nothing
    log_sum: Tensor  # log2 of the sum of exp(score - peak); 0 in rows that see nothing


def attend_kept(
    call: Call, v: Tensor, kept: Kept, peak: Tensor, sweep: Tile,
    *, out: Tensor, log_sum: Tensor, flags: Tensor | None = None,
) -> None:  # fmt: skip
    """Write the output, (B, H, Q, E), and log2 of each row's sum of exp(score - peak) of kept keys.

    With flags, one per block of queries, only flagged blocks are computed.
    """
    batch, heads, n_queries = peak.shape
    v = with_rows(v)
    n_blocks = -(-n_queries // sweep.rows)
    if programs := batch * heads * n_blocks:
        _attend_kernel[(programs,)](
            **call.arguments(), **kept.arguments(), **strides("v", v), **sweep.arguments(),
            **widths(call, v), v=v, out=out, log_sum=log_sum, peak=peak, flags=flags,
            n_blocks=n_blocks,
        )  # fmt: skip


def gradients(
    call: Call, v: Tensor, kept: Kept, sums: Sums, out: Tensor, dout: Tensor,
    sweeps: tuple[Tile, Tile],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute gradients of q, k and v; one sweep over keys, and one over queries."""
    batch, heads, n_queries, _ = call.q.shape
    dq, dk, dv = (x.new_empty(x.shape) for x in (call.q, call.k, v))
    common = _backward_arguments(call, v, kept, sums, dout)
    n_blocks = -(-n_queries // sweeps[0].rows)
    if programs := batch * heads * n_blocks:
        _queries_kernel[(programs,)](
            **common, **sweeps[0].arguments(), out=out, dq=dq, dk=None, dv=None, flags=None,
            n_blocks=n_blocks,
        )  # fmt: skip
    n_blocks = -(-call.k.shape[2] // sweeps[1].keys)
    if programs := batch * call.k.shape[1] * n_blocks:
        _keys_kernel[(programs,)](
            **common, **sweeps[1].arguments(), dk=dk, dv=dv, n_blocks=n_blocks
        )
    return dq, dk, dv


def flagged_gradients(
    call: Call, v: Tensor, kept: Kept, sums: Sums, out: Tensor, dout: Tensor, flags: Tensor,
    dq: Tensor, dk: Tensor, dv: Tensor, sweep: Tile,
) -> None:  # fmt: skip
    """Write dq and add to dk and dv, in float32, for flagged blocks of queries."""
    if len(flags):
        _queries_kernel[(len(flags),)](
            **_backward_arguments(call, v, kept, sums, dout), **sweep.arguments(),
            out=out, dq=dq, dk=dk, dv=dv, flags=flags, n_blocks=-(-call.q.shape[2] // sweep.rows),
        )  # fmt: skip


def _backward_arguments(
    call: Call, v: Tensor, kept: Kept, sums: Sums, dout: Tensor
) -> dict[str, Any]:
    v, dout = with_rows(v), with_rows(dout)
    return (
        call.arguments()
        | kept.arguments()
        | strides("v", v)
        | strides("dout", dout)
        | sums._asdict()
        | {"v": v, "dout": dout, "delta": torch.empty_like(sums.peak)}
        | widths(call, v)
    )


def widths(call: Call, v: Tensor) -> dict[str, int]:
    """Return the widths of tiles as arguments of a kernel."""
    value_width = v.shape[3]
    widths = {"PADDED": padded(call.q.shape[3]), "VALUES": value_width}
    return widths | {"PADDED_VALUES": padded(value_width)}


@triton.jit
@no_type_check
def _bounds(low, high, last, at, inside, FIRST: tl.constexpr):
    """Load the bounds of rows: the smallest score kept and, if ties are limited, the smallest score
    kept at any key and the last key at which a smaller one is kept."""
    least = tl.load(low + at, mask=inside, other=float("inf"))
    sure, end = least, least
    if FIRST:
        sure = tl.load(high + at, mask=inside, other=float("inf"))
        end = tl.load(last + at, mask=inside, other=-1)
    return least, sure, end


@triton.jit
@no_type_check
def weights_of(score, key, norm, least, sure, end, FIRST: tl.constexpr, log_sum=0.0):
    """Compute exp(score - norm) / sum over kept keys, 0 for the others. NaN scores stay."""
    other = score < least
    if FIRST:
        other = other | ((score < sure) & (key > end))
    norm = tl.where(norm == float("-inf"), 0.0, norm)
    return tl.where(other, 0.0, tl.exp2((score - norm) * 1.4426950408889634 - log_sum))


@triton.jit
@no_type_check
def _constant(log_sum):
    """Return the bound above which a weight is the only one of its row, and so constant."""
    return tl.where(log_sum == 0.0, 0.75, float("inf"))


@triton.jit
@no_type_check
def _random(seed, batch_head, row, four):
    """Generate 32-bit random numbers for four keys of a row, from key 4 four, by Philox-4x32-7."""
    zero = row * 0 + four * 0
    head = batch_head.to(tl.int32) + zero
    return tl.philox(tl.load(seed), four + zero, row + zero, head, zero, n_rounds=7)


@triton.jit
@no_type_check
def _drop(weight, random, dropout):
    """Set some weights to 0 and scale the others up."""
    below = tl.cast(dropout * 2147483648.0, tl.int32)
    stays = (random >> 1).to(tl.int32, bitcast=True) >= below
    return tl.where(stays, weight * (1.0 / (1.0 - dropout)), 0.0)


@triton.jit
@no_type_check
def drop_pairs(weight, batch_head, row, key, dropout, seed):
    """Drop the weights that `drop_tile` drops, for any rows and keys."""
    a, b, c, d = _random(seed, batch_head, row, key >> 2)
    which = key & 3
    return _drop(
        weight, tl.where(which < 2, tl.where(which == 0, a, b), tl.where(which == 2, c, d)), dropout
    )


@triton.jit
@no_type_check
def drop_tile(weight_QK, batch_head, rows, first_key, dropout, seed):
    """Drop weights at random; equal for one seed, row and key in every kernel and tile."""
    four = first_key // 4 + tl.arange(0, weight_QK.shape[1] // 4)
    a, b, c, d = _random(seed, batch_head, rows[:, None], four[None, :])
    random_QK = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), weight_QK.shape)
    return _drop(weight_QK, random_QK, dropout)


@triton.jit(do_not_specialize=ANY)
@no_type_check
def _attend_kernel(
    q, k, v, lengths, mask, low, high, last, peak, flags, out, log_sum, seed, scale, dropout,
    first, heads, groups, n_queries, n_keys, n_blocks, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FIRST: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    if flags is not None:  # noqa: SIM102  Triton would evaluate both sides of an `and`
        if tl.load(flags + tl.program_id(0)) != IN_DOUBT:
            return
    block, batch, head, group = place(n_blocks, heads, groups)
    group = group.to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    largest = tl.load(peak + at, mask=inside, other=0.0)
    bounds = _bounds(low, high, last, at, inside, FIRST)
    out_QE = tl.full((ROWS, PADDED_VALUES), 0.0, tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
    seen = keys_seen(length, n_keys, last_row, first, CAUSAL)
    whole = whole_tiles(length, n_keys, block * ROWS, first, CAUSAL, MASKED, KEYS) * KEYS
    for masking in tl.static_range(2):  # tiles that every row sees, then the others
        for start in range(whole if masking else 0, seen if masking else whole, KEYS):
            keys = start + tl.arange(0, KEYS)
            k_KD = load_rows(
                k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED
            )
            if masking:
                score_QK = score_tile(
                    q_QD, k_KD, rows, keys, length, n_queries, scale, first,
                    mask + batch * mask_batch + head * mask_head, mask_row, mask_key,
                    CAUSAL, MASKED,
                )  # fmt: skip
            else:
                score_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee") * scale
            weight_QK = weights_of(
                score_QK, keys[None, :], largest[:, None],
                bounds[0][:, None], bounds[1][:, None], bounds[2][:, None], FIRST,
            )  # fmt: skip
            total += tl.sum(weight_QK, axis=1)
            if seed is not None:
                weight_QK = drop_tile(weight_QK, batch * heads + head, rows, start, dropout, seed)
            v_start = v + batch * v_batch + group * v_head
            if masking:
                v_KE = load_shown(
                    v_start, keys, v_row, seen, mask + batch * mask_batch + head * mask_head,
                    mask_key, VALUES, PADDED_VALUES, MASKED,
                )  # fmt: skip
            else:
                v_KE = load_rows(v_start, keys, v_row, n_keys, VALUES, PADDED_VALUES)
            out_QE = tl.dot(weight_QK.to(v_KE.dtype), v_KE, out_QE, input_precision="ieee")

    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    column = tl.arange(0, PADDED_VALUES)
    to = out + at[:, None] * VALUES + column[None, :]
    tl.store(to, out_QE / total[:, None], mask=inside[:, None] & (column[None, :] < VALUES))
    tl.store(log_sum + at, tl.log2(total), mask=inside)


@triton.jit(do_not_specialize=ANY)
@no_type_check
def _queries_kernel(
    q, k, v, lengths, mask, low, high, last, peak, log_sum, flags, out, dout, delta, dq, dk, dv,
    seed, scale, dropout, first, heads, groups, n_queries, n_keys, n_blocks, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, dout_batch, dout_head, dout_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FIRST: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    if flags is not None:  # noqa: SIM102  Triton would evaluate both sides of an `and`
        if tl.load(flags + tl.program_id(0)) != IN_DOUBT:
            return
    block, batch, head, group = place(n_blocks, heads, groups)
    group = group.to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n_queries
    at = (batch * heads + head) * n_queries + rows
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    dout_QE = load_rows(
        dout + batch * dout_batch + head * dout_head, rows, dout_row, n_queries,
        VALUES, PADDED_VALUES,
    )  # fmt: skip
    out_QE = load_rows(
        out + (batch * heads + head) * n_queries * VALUES, rows, VALUES, n_queries,
        VALUES, PADDED_VALUES,
    )  # fmt: skip
    mean = tl.sum(dout_QE.to(tl.float32) * out_QE.to(tl.float32), axis=1)
    tl.store(delta + at, mean, mask=inside)
    norm = tl.load(peak + at, mask=inside, other=0.0)
    divisor = tl.load(log_sum + at, mask=inside, other=0.0)
    bounds = _bounds(low, high, last, at, inside, FIRST)
    dq_QD = tl.full((ROWS, PADDED), 0.0, tl.float32)
    last_row = tl.minimum(block * ROWS + ROWS, n_queries) - 1
    seen = keys_seen(length, n_keys, last_row, first, CAUSAL)
    whole = whole_tiles(length, n_keys, block * ROWS, first, CAUSAL, MASKED, KEYS) * KEYS
    for masking in tl.static_range(2):  # tiles that every row sees, then the others
        for start in range(whole if masking else 0, seen if masking else whole, KEYS):
            keys = start + tl.arange(0, KEYS)
            k_KD = load_rows(
                k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED
            )
            if masking:
                score_QK = score_tile(
                    q_QD, k_KD, rows, keys, length, n_queries, scale, first,
                    mask + batch * mask_batch + head * mask_head, mask_row, mask_key,
                    CAUSAL, MASKED,
                )  # fmt: skip
            else:
                score_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee") * scale
            weight_QK = weights_of(
                score_QK, keys[None, :], norm[:, None],
                bounds[0][:, None], bounds[1][:, None], bounds[2][:, None], FIRST,
                divisor[:, None],
            )  # fmt: skip
            v_start = v + batch * v_batch + group * v_head
            if masking:
                v_KE = load_shown(
                    v_start, keys, v_row, seen, mask + batch * mask_batch + head * mask_head,
                    mask_key, VALUES, PADDED_VALUES, MASKED,
                )  # fmt: skip
            else:
                v_KE = load_rows(v_start, keys, v_row, n_keys, VALUES, PADDED_VALUES)
            dweight_QK = tl.dot(dout_QE, tl.trans(v_KE), input_precision="ieee")
            dropped_QK = weight_QK
            if seed is not None:
                dropped_QK = drop_tile(weight_QK, batch * heads + head, rows, start, dropout, seed)
            dscore_QK = dropped_QK * dweight_QK - weight_QK * mean[:, None]
            dscore_QK = tl.where(weight_QK > _constant(divisor)[:, None], 0.0, dscore_QK)
            dscore_QK = dscore_QK.to(k_KD.dtype)
            if masking:  # a hidden key may be infinite
                k_KD = finite(k_KD)
            dq_QD = tl.dot(dscore_QK, k_KD, dq_QD, input_precision="ieee")
            if dk is not None:
                key_at = ((batch * groups + group) * n_keys + keys)[:, None]
                real = (keys < n_keys)[:, None]
                to = dk + key_at * WIDTH + tl.arange(0, PADDED)[None, :]
                inner = real & (tl.arange(0, PADDED)[None, :] < WIDTH)
                dk_KD = tl.dot(tl.trans(dscore_QK), q_QD, input_precision="ieee") * scale
                tl.atomic_add(to, dk_KD, mask=inner, sem="relaxed")
                to = dv + key_at * VALUES + tl.arange(0, PADDED_VALUES)[None, :]
                inner = real & (tl.arange(0, PADDED_VALUES)[None, :] < VALUES)
                dropped_KQ = tl.trans(dropped_QK.to(dout_QE.dtype))
                dv_KE = tl.dot(dropped_KQ, dout_QE, input_precision="ieee")
                tl.atomic_add(to, dv_KE, mask=inner, sem="relaxed")

    column = tl.arange(0, PADDED)
    to = dq + at[:, None] * WIDTH + column[None, :]
    tl.store(to, dq_QD * scale, mask=inside[:, None] & (column[None, :] < WIDTH))


@triton.jit
@no_type_check
def _four_of_rows(a, b, c, d, at, n_rows, ROWS: tl.constexpr):
    """Load numbers from `at` on of four tensors, each (ROWS,), 0 beyond n_rows, by one load.

    A load of fewer numbers than threads would be done by each thread: in tiles whose queries lie
    along the second axis, one number at a time, for a quarter of the queries.
    """
    row = tl.arange(0, ROWS)[:, None]
    which = tl.arange(0, 4)[None, :]
    start = tl.where(which < 2, tl.where(which == 0, a, b), tl.where(which == 2, c, d))
    of_Q4 = tl.load(start + at + row, mask=row < n_rows, other=0.0)
    even_Q2, odd_Q2 = tl.split(tl.reshape(of_Q4, (ROWS, 2, 2)))
    a_Q, c_Q = tl.split(even_Q2)
    b_Q, d_Q = tl.split(odd_Q2)
    return a_Q, b_Q, c_Q, d_Q


@triton.jit(do_not_specialize=ANY)
@no_type_check
def _keys_kernel(
    q, k, v, lengths, mask, low, high, last, peak, log_sum, dout, delta, dk, dv, seed, scale,
    dropout, first, heads, groups, n_queries, n_keys, n_blocks, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, dout_batch, dout_head, dout_row,
    mask_batch, mask_head, mask_row, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUES: tl.constexpr, PADDED_VALUES: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FIRST: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, group, _ = place(n_blocks, groups, groups)
    keys = block * KEYS + tl.arange(0, KEYS)
    length = tl.load(lengths + batch)
    k_KD = load_rows(k + batch * k_batch + group * k_head, keys, k_row, n_keys, WIDTH, PADDED)
    v_KE = load_rows(
        v + batch * v_batch + group * v_head, keys, v_row, n_keys, VALUES, PADDED_VALUES
    )
    dk_KD = tl.full((KEYS, PADDED), 0.0, tl.float32)
    dv_KE = tl.full((KEYS, PADDED_VALUES), 0.0, tl.float32)
    # Blocks of queries: before `begin` none sees a key of this block, from `clear` on all do.
    end = tl.where(block * KEYS < length, tl.cdiv(n_queries, ROWS), 0)
    begin = end * 0
    clear = begin
    if CAUSAL:
        begin = tl.minimum(tl.maximum(block * KEYS - first, 0) // ROWS, end)
        clear = tl.cdiv(tl.maximum(block * KEYS + KEYS - 1 - first, 0), ROWS)
    clear = tl.where(block * KEYS + KEYS <= length, tl.minimum(clear, end), end)
    if MASKED:
        clear = end
    members = heads // groups
    for masking in tl.static_range(2):
        start = begin if masking else clear
        n_steps = (clear if masking else end) - start
        head, begun = group * members, start * ROWS
        for _ in range(members * n_steps):  # one loop, so that it is pipelined as a whole
            # Rows counted from the start of the tile: only its address changes in the loop.
            row = tl.arange(0, ROWS)
            rows = begun + row
            skipped = begun.to(tl.int64)
            left = n_queries - begun
            q_at = q + (batch * q_batch + head * q_head + skipped * q_row)
            q_QD = load_rows(q_at, row, q_row, left, WIDTH, PADDED)
            # Keys by queries, so that products use the result in its register layout.
            if masking:
                score_KQ = score_tile(
                    q_QD, k_KD, rows, keys, length, n_queries, scale, first,
                    mask + batch * mask_batch + head * mask_head, mask_row, mask_key,
                    CAUSAL, MASKED, KEYS_FIRST=True,
                )  # fmt: skip
            else:
                score_KQ = tl.dot(k_KD, tl.trans(q_QD), input_precision="ieee") * scale
            at = (batch * heads + head) * n_queries + skipped
            of_rows = _four_of_rows(low, peak, delta, log_sum, at, left, ROWS)
            least_Q, norm_Q, mean_Q, divisor_Q = of_rows
            least_KQ = least_Q[None, :]
            if FIRST:
                bits = last.to(tl.pointer_type(tl.float32), bitcast=True)
                sure_Q, end_Q, _, _ = _four_of_rows(high, bits, high, bits, at, left, ROWS)
                late_KQ = keys[:, None] > end_Q.to(tl.int32, bitcast=True)[None, :]
                least_KQ = tl.where(late_KQ, sure_Q[None, :], least_KQ)
            # Like `weights_of`; the norm is -inf in rows that see no key.
            if masking:
                norm_Q = tl.where(norm_Q == float("-inf"), 0.0, norm_Q)
            log_KQ = (score_KQ - norm_Q[None, :]) * 1.4426950408889634 - divisor_Q[None, :]
            weight_KQ = tl.exp2(tl.where(score_KQ < least_KQ, float("-inf"), log_KQ))
            dropped_KQ = weight_KQ
            if seed is not None:
                weight_QK = tl.trans(weight_KQ)
                line = batch * heads + head
                dropped_KQ = tl.trans(drop_tile(weight_QK, line, rows, block * KEYS, dropout, seed))
            dout_at = dout + (batch * dout_batch + head * dout_head + skipped * dout_row)
            dout_QE = load_rows(dout_at, row, dout_row, left, VALUES, PADDED_VALUES)
            dv_KE = tl.dot(dropped_KQ.to(dout_QE.dtype), dout_QE, dv_KE, input_precision="ieee")
            dweight_KQ = tl.dot(v_KE, tl.trans(dout_QE), input_precision="ieee")
            dscore_KQ = dropped_KQ * dweight_KQ - weight_KQ * mean_Q[None, :]
            dscore_KQ = tl.where(weight_KQ > _constant(divisor_Q)[None, :], 0.0, dscore_KQ)
            if masking:  # a hidden value may be infinite
                dscore_KQ = tl.where(weight_KQ == 0.0, 0.0, dscore_KQ)
            dk_KD = tl.dot(dscore_KQ.to(q_QD.dtype), q_QD, dk_KD, input_precision="ieee")
            begun += ROWS
            through = begun >= (start + n_steps) * ROWS  # then the next head from the start
            head += through.to(tl.int64)
            begun = tl.where(through, start * ROWS, begun)

    key_at = ((batch * groups + group) * n_keys + keys)[:, None]
    real = (keys < n_keys)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    tl.store(dk + key_at * WIDTH + column, dk_KD * scale, mask=real & (column < WIDTH))
    column = tl.arange(0, PADDED_VALUES)[None, :]
    tl.store(dv + key_at * VALUES + column, dv_KE, mask=real & (column < VALUES))
