# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""The gradient on q and k of anything whose gradient on the scores is a row-wise form in weights H:

    dS_ij = gain_i H_ij (plain_i + square_i H_ij + log_i log H_ij
                         + peak_i [j = peak_key_i] + at_i [j = target_i] + on_i [j in the set])

All statistics of softmax rows and the guidance loss are of this form. One sweep over the keys for
dq, one over the queries for dk; each program writes its own rows, so the result never varies. Heads
that share keys are summed inside the program.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.row_sweep.aiming import (
    ANY,
    LOG2_E,
    Aims,
    aim,
    call_of,
    end_of_keys,
    hidden,
    in_set,
    placed,
    settings,
)
from headwise.ops.tiles import Call, load_rows

LN_2 = tl.constexpr(0.6931471805599453)
GAIN_STRIDES = ["gain_batch", "gain_head", "gain_row"]


class Terms(NamedTuple):
    """What the form needs of each row, (B, N, Q) float32; log, peak and peak_key go together."""

    lse: Tensor  # as a logarithm to base 2
    plain: Tensor
    square: Tensor
    at: Tensor
    on: Tensor
    log: Tensor | None = None
    peak: Tensor | None = None
    peak_key: Tensor | None = None
    gain: Tensor | None = None  # may be expanded


def score_gradients(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    aims: Aims,
    terms: Terms,
) -> tuple[Tensor, Tensor]:
    """dq and dk. See the formula above."""
    return _gradient_op(q, k, mask, lengths, scale, first, causal, *aims, *terms)  # pyright: ignore[reportReturnType]


@torch.library.custom_op("headwise::row_sweep_gradient", mutates_args=())
def _gradient_op(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    plan: Tensor | None,
    numbers: Tensor | None,
    offset: int,
    key_sets: Tensor | None,
    lse: Tensor,
    plain: Tensor,
    square: Tensor,
    at: Tensor,
    on: Tensor,
    log: Tensor | None,
    peak: Tensor | None,
    peak_key: Tensor | None,
    gain: Tensor | None,
) -> tuple[Tensor, Tensor]:
    call = call_of(q, k, mask, lengths, scale, first, causal)
    terms = Terms(lse, plain, square, at, on, log, peak, peak_key, gain)
    all_heads = plan is None or plan.shape[0] == q.shape[1]
    dq = q.new_empty(q.shape) if all_heads else q.new_zeros(q.shape)
    dk = k.new_empty(k.shape)
    _launch(call, Aims(plan, numbers, offset, key_sets), terms, dq, dk)
    return dq, dk


@_gradient_op.register_fake
def _(q, k, *others):
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _launch(call: Call, aims: Aims, terms: Terms, dq: Tensor, dk: Tensor) -> None:
    batch, heads, n_queries, _ = call.q.shape
    groups, n_keys = call.k.shape[1:3]
    gain = terms.gain
    given = call.arguments() | {"scale": call.scale * LOG2_E} | aims.arguments(heads)
    given |= terms._replace(**_contiguous(terms))._asdict()
    given |= dict(zip(GAIN_STRIDES, (0, 0, 0) if gain is None else gain.stride(), strict=True))
    to_queries, to_keys = settings(call, "queries"), settings(call, "keys")
    with torch.cuda.device_of(call.q):
        n_blocks = triton.cdiv(n_queries, to_queries["ROWS"])
        if n_blocks * batch * given["n_heads"]:
            _to_queries[(batch * given["n_heads"] * n_blocks,)](
                **given, **to_queries, dq=dq, n_blocks=n_blocks
            )
        n_blocks = triton.cdiv(n_keys, to_keys["KEYS"])
        if n_blocks * batch:
            _to_keys[(batch * groups * n_blocks,)](
                **given, **to_keys, dk=dk, numbers=aims.numbers, n_blocks=n_blocks
            )


def _contiguous(terms: Terms) -> dict[str, Tensor]:
    """All but the gain, which has strides of its own."""
    given = terms._replace(gain=None)._asdict()
    return {name: term.contiguous() for name, term in given.items() if term is not None}


@triton.jit
@no_type_check
def _into_product(ds, x):
    """ds times x, both tiles, in float32; ds is rounded as x is, but never to float16's range."""
    if x.dtype == tl.float32:
        product = tl.dot(ds, x, input_precision="ieee")
    elif x.dtype == tl.float16:
        product = tl.dot(ds, x.to(tl.float32), input_precision="tf32")
    else:
        product = tl.dot(ds.to(x.dtype), x)
    return product


@triton.jit
@no_type_check
def _gain_of(gain, batch, number, rows, n_queries, gain_batch, gain_head, gain_row):
    if gain is None:
        of_rows = tl.full(rows.shape, 1.0, tl.float32)
    else:
        at = gain + batch * gain_batch + number * gain_head + rows * gain_row
        of_rows = tl.load(at, mask=rows < n_queries, other=0.0).to(tl.float32)
    return of_rows


@triton.jit
@no_type_check
def _lse_of(at, inside):
    """+inf for rows that see nothing, so that all their weights come out as 0."""
    row = tl.load(at, mask=inside, other=float("inf"))
    return tl.where(row == float("-inf"), float("inf"), row)


@triton.jit(do_not_specialize=[*ANY, *GAIN_STRIDES])
@no_type_check
def _to_queries(
    q, k, lengths, mask, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    plan, offset, n_heads, key_sets, set_number, set_batch, set_key,
    lse, plain, square, at, on, log, peak, peak_key, gain, gain_batch, gain_head, gain_row, dq,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, number = placed(n_blocks, n_heads)
    head, slope, spot, key_set = aim(plan, number, offset)
    group = head // (heads // groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    target = slope * (rows + first) + spot
    nearest = slope * (block * ROWS + first) + spot
    farthest = nearest + slope * (ROWS - 1)
    length = tl.load(lengths + batch)
    q_QD = load_rows(q + batch * q_batch + head * q_head, rows, q_row, n_queries, WIDTH, PADDED)
    k_start = k + batch * k_batch + group * k_head
    mask_start = mask + batch * mask_batch + head * mask_head

    inside = rows < n_queries
    here = (batch * n_heads + number) * n_queries
    lse_Q = _lse_of(lse + here + rows, inside)
    plain_Q = tl.load(plain + here + rows, mask=inside, other=0.0)
    square_Q = tl.load(square + here + rows, mask=inside, other=0.0)
    at_Q = tl.load(at + here + rows, mask=inside, other=0.0)
    on_Q = tl.load(on + here + rows, mask=inside, other=0.0)
    if log is not None:
        log_Q = tl.load(log + here + rows, mask=inside, other=0.0) * LN_2
        peak_Q = tl.load(peak + here + rows, mask=inside, other=0.0)
        peak_key_Q = tl.load(peak_key + here + rows, mask=inside, other=-1).to(tl.int32)
    dq_QD = tl.full([ROWS, PADDED], 0.0, tl.float32)
    clear = end_of_keys(length, block * ROWS, first, CAUSAL)  # all rows see the keys before it
    for start in range(0, end_of_keys(length, block * ROWS + ROWS - 1, first, CAUSAL), KEYS):
        keys = start + tl.arange(0, KEYS)
        k_KD = load_rows(k_start, keys, k_row, n_keys, WIDTH, PADDED)
        s_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee") * scale
        s_QK = hidden(
            s_QK, rows[:, None], keys[None, :], length, n_queries, first,
            mask_start, mask_row, mask_key, start + KEYS > clear, CAUSAL, MASKED,
        )  # fmt: skip
        below_QK = s_QK - lse_Q[:, None]
        h_QK = tl.exp2(below_QK)
        form_QK = plain_Q[:, None] + square_Q[:, None] * h_QK
        if log is not None:
            form_QK += log_Q[:, None] * tl.maximum(below_QK, -1000.0)
            form_QK += tl.where(keys[None, :] == peak_key_Q[:, None], peak_Q[:, None], 0.0)
        if (farthest >= start) & (nearest < start + KEYS):
            form_QK += tl.where(keys[None, :] == target[:, None], at_Q[:, None], 0.0)
        if key_sets is not None:
            set_start = key_sets + key_set * set_number + batch * set_batch
            member_K = in_set(set_start, keys, key_set, length, set_key)
            form_QK += on_Q[:, None] * member_K[None, :]
        dq_QD += _into_product(h_QK * form_QK, k_KD)

    gain_Q = _gain_of(gain, batch, number, rows, n_queries, gain_batch, gain_head, gain_row)
    dq_QD = dq_QD * (gain_Q * scale * LN_2)[:, None]
    column = tl.arange(0, PADDED)
    out = dq + ((batch * heads + head) * n_queries + rows[:, None]) * WIDTH + column[None, :]
    tl.store(out, dq_QD, mask=inside[:, None] & (column[None, :] < WIDTH))


@triton.jit(do_not_specialize=[*ANY, *GAIN_STRIDES])
@no_type_check
def _to_keys(
    q, k, lengths, mask, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    plan, numbers, offset, n_heads, key_sets, set_number, set_batch, set_key,
    lse, plain, square, at, on, log, peak, peak_key, gain, gain_batch, gain_head, gain_row, dk,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, group = placed(n_blocks, groups)
    keys = block * KEYS + tl.arange(0, KEYS)
    length = tl.load(lengths + batch)
    k_start = k + batch * k_batch + group.to(tl.int64) * k_head
    k_KD = load_rows(k_start, keys, k_row, n_keys, WIDTH, PADDED)
    begin = 0
    if CAUSAL:
        begin = tl.maximum(0, block * KEYS - first)
    shared_by = heads // groups
    dk_KD = tl.full([KEYS, PADDED], 0.0, tl.float32)
    for member in range(shared_by):
        number = group * shared_by + member
        if numbers is not None:
            number = tl.load(numbers + number)
        wanted = (number >= 0) & (block * KEYS < length)
        number = tl.maximum(number, 0)
        head, slope, spot, key_set = aim(plan, number, offset)
        if key_sets is not None:
            set_start = key_sets + key_set * set_number + batch * set_batch
            member_K = in_set(set_start, keys, key_set, length, set_key)
        q_start = q + batch * q_batch + head * q_head
        mask_start = mask + batch * mask_batch + head * mask_head
        for start in range(begin, tl.where(wanted, n_queries, 0), ROWS):
            rows = start + tl.arange(0, ROWS)
            inside = rows < n_queries
            here = (batch * n_heads + number) * n_queries
            q_QD = load_rows(q_start, rows, q_row, n_queries, WIDTH, PADDED)
            s_KQ = tl.dot(k_KD, tl.trans(q_QD), input_precision="ieee") * scale
            clear = end_of_keys(length, start, first, CAUSAL)
            s_KQ = hidden(
                s_KQ, rows[None, :], keys[:, None], length, n_queries, first,
                mask_start, mask_row, mask_key, block * KEYS + KEYS > clear, CAUSAL, MASKED,
            )  # fmt: skip
            below_KQ = s_KQ - _lse_of(lse + here + rows, inside)[None, :]
            h_KQ = tl.exp2(below_KQ)
            plain_Q = tl.load(plain + here + rows, mask=inside, other=0.0)
            square_Q = tl.load(square + here + rows, mask=inside, other=0.0)
            form_KQ = plain_Q[None, :] + square_Q[None, :] * h_KQ
            if log is not None:
                log_Q = tl.load(log + here + rows, mask=inside, other=0.0) * LN_2
                peak_Q = tl.load(peak + here + rows, mask=inside, other=0.0)
                peak_key_Q = tl.load(peak_key + here + rows, mask=inside, other=-1).to(tl.int32)
                form_KQ += log_Q[None, :] * tl.maximum(below_KQ, -1000.0)
                form_KQ += tl.where(keys[:, None] == peak_key_Q[None, :], peak_Q[None, :], 0.0)
            nearest = slope * (start + first) + spot
            farthest = nearest + slope * (ROWS - 1)
            if (farthest >= block * KEYS) & (nearest < block * KEYS + KEYS):
                target = slope * (rows + first) + spot
                at_Q = tl.load(at + here + rows, mask=inside, other=0.0)
                form_KQ += tl.where(keys[:, None] == target[None, :], at_Q[None, :], 0.0)
            if key_sets is not None:
                on_Q = tl.load(on + here + rows, mask=inside, other=0.0)
                form_KQ += member_K[:, None] * on_Q[None, :]
            gain_Q = _gain_of(gain, batch, number, rows, n_queries, gain_batch, gain_head, gain_row)
            dk_KD += _into_product(h_KQ * form_KQ * gain_Q[None, :], q_QD)

    column = tl.arange(0, PADDED)
    out = dk + ((batch * groups + group) * n_keys + keys[:, None]) * WIDTH + column[None, :]
    inside = (keys[:, None] < n_keys) & (column[None, :] < WIDTH)
    tl.store(out, dk_KD * (scale * LN_2), mask=inside)
