# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Gradients on q and k of any loss whose gradient on the scores has this form in weights H:

    dS_ij = factor gain_i H_ij (plain_i + square_i H_ij + log_i log H_ij + peak_i [j = peak_key_i]
                                + at_i [j = target_i] + on_i [j in the set])

All statistics of softmax rows and the guidance loss have this form. `to_queries` sweeps over the
keys for dq, then `to_keys` over the queries for dk. Each program writes its own rows, so the result
is deterministic. Heads that share keys are summed inside the program.

`to_queries` holds the terms of its rows while it runs. `to_keys` would read them again for every
tile, where one number serves only two scores of a thread. So `to_queries`, which has to run first,
stores their products with the gain in `joined`.

Gradients have the memory layout of q and k, and are written whole, with zeros for heads that are
not computed: a host that adds its own gradients and undoes its transposition then copies nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.row_sweep.sweeps import (
    ANY,
    Aims,
    Calls,
    aim,
    alike,
    calls_of,
    end_of_keys,
    hidden,
    in_set,
    one_of,
    placed,
    settings,
)
from headwise.ops.tiles import finite, load_rows, strides

LN_2 = tl.constexpr(0.6931471805599453)
FAR_BELOW = tl.constexpr(-1000.0)  # logarithm of a weight of 0, finite when multiplied
FAR_ABOVE = tl.constexpr(1e30)  # log_sum of rows that see nothing, finite when multiplied
# Terms of a row as `to_queries` stores them, with the gain in PLAIN to PEAK.
TERMS = tl.constexpr(9)
LOG_SUM, PLAIN, SQUARE, AT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
ON, LOG = tl.constexpr(4), tl.constexpr(5)
PEAK, PEAK_KEY = (
    tl.constexpr(6),
    tl.constexpr(7),
)  # PEAK includes PLAIN; PEAK_KEY holds the bits of the key
TOP = tl.constexpr(8)
ANY_GAIN = [*ANY, "gain_batch", "gain_head", "gain_row"]


@triton.jit
@no_type_check
def _into_product(ds, x):
    """Multiply tiles ds and x in float32; ds is rounded as x is, but never to float16."""
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
def _square_of(square, at, inside):
    if square is None:
        of_rows = tl.full(inside.shape, 1.0, tl.float32)
    else:
        of_rows = tl.load(square + at, mask=inside, other=0.0)
    return of_rows


@triton.jit
@no_type_check
def _store_term(terms, NUMBER: tl.constexpr, x_Q, rows, inside, n_queries):
    tl.store(terms + NUMBER * n_queries + rows, x_Q, mask=inside)


@triton.jit
@no_type_check
def _load_term(terms, NUMBER: tl.constexpr, rows, n_queries):
    """Load a term of rows; 0 beyond the last, whose queries are 0, so any finite number will do."""
    return tl.load(terms + NUMBER * n_queries + rows, mask=rows < n_queries, other=0.0)


@triton.jit
@no_type_check
def _number_of(numbers, head):
    """Return the row of a head in the plan, or -1; without a plan, the head itself."""
    number = head
    if numbers is not None:
        number = tl.load(numbers + head)
    return number


@triton.jit(do_not_specialize=ANY_GAIN)
@no_type_check
def to_queries(
    q, k, lengths, mask, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    plan, numbers, offset, n_heads, key_sets, set_number, set_batch, set_key,
    top, log_sum, plain, square, at, on, log, peak, peak_key,
    gain, gain_batch, gain_head, gain_row, joined, factor, dq, dq_batch, dq_head, dq_row,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, above = placed(n_blocks, heads * len(q))
    call = above // heads
    head = (above % heads).to(tl.int64)
    number = _number_of(numbers, above)
    wanted = number >= 0
    number = tl.maximum(number, 0)
    _, slope, spot, key_set = aim(plan, number, offset)
    group = head // (heads // groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    target = slope * (rows + first) + spot
    nearest = slope * (block * ROWS + first) + spot
    farthest = nearest + slope * (ROWS - 1)
    length = tl.where(wanted, tl.load(lengths + batch), 0)
    q_start = one_of(q, call) + batch * q_batch + head * q_head
    q_QD = load_rows(q_start, rows, q_row, tl.where(wanted, n_queries, 0), WIDTH, PADDED)
    k_start = one_of(k, call) + batch * k_batch + group * k_head
    mask_start = mask + batch * mask_batch + head * mask_head

    inside = (rows < n_queries) & wanted
    here = (batch * n_heads + number) * n_queries
    top_Q = tl.load(top + here + rows, mask=inside, other=0.0)
    sum_Q = tl.load(log_sum + here + rows, mask=inside, other=FAR_ABOVE)
    sum_Q = tl.minimum(sum_Q, FAR_ABOVE, propagate_nan=tl.PropagateNan.ALL)
    plain_Q = tl.load(plain + here + rows, mask=inside, other=0.0)
    square_Q = _square_of(square, here + rows, inside)
    at_Q = tl.load(at + here + rows, mask=inside, other=0.0)
    on_Q = tl.load(on + here + rows, mask=inside, other=0.0)
    if log is not None:
        log_Q = tl.load(log + here + rows, mask=inside, other=0.0) * LN_2
        peak_Q = tl.load(peak + here + rows, mask=inside, other=0.0) + plain_Q
        peak_key_Q = tl.load(peak_key + here + rows, mask=inside, other=-1).to(tl.int32)
    gain_Q = _gain_of(gain, batch, number, rows, n_queries, gain_batch, gain_head, gain_row)
    terms = joined + here * TERMS
    _store_term(terms, LOG_SUM, sum_Q, rows, inside, n_queries)
    _store_term(terms, TOP, top_Q, rows, inside, n_queries)
    _store_term(terms, PLAIN, plain_Q * gain_Q, rows, inside, n_queries)
    _store_term(terms, SQUARE, square_Q * gain_Q, rows, inside, n_queries)
    _store_term(terms, AT, at_Q * gain_Q, rows, inside, n_queries)
    _store_term(terms, ON, on_Q * gain_Q, rows, inside, n_queries)
    if log is not None:
        _store_term(terms, LOG, log_Q * gain_Q, rows, inside, n_queries)
        _store_term(terms, PEAK, peak_Q * gain_Q, rows, inside, n_queries)
        peak_bits_Q = peak_key_Q.to(tl.float32, bitcast=True)
        _store_term(terms, PEAK_KEY, peak_bits_Q, rows, inside, n_queries)
    dq_QD = tl.full([ROWS, PADDED], 0.0, tl.float32)
    clear = end_of_keys(length, block * ROWS, first, CAUSAL)  # all rows see the keys before it
    for start in range(0, end_of_keys(length, block * ROWS + ROWS - 1, first, CAUSAL), KEYS):
        keys = start + tl.arange(0, KEYS)
        k_KD = load_rows(k_start, keys, k_row, n_keys, WIDTH, PADDED)
        s_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee")
        below_QK = hidden(
            (s_QK - top_Q[:, None]) * scale - sum_Q[:, None], FAR_BELOW,
            rows[:, None], keys[None, :], length, n_queries, first,
            mask_start, mask_row, mask_key, start + KEYS > clear, CAUSAL, MASKED,
        )  # fmt: skip
        h_QK = tl.exp2(below_QK)
        form_QK = plain_Q[:, None]
        if log is not None:
            form_QK = tl.where(keys[None, :] == peak_key_Q[:, None], peak_Q[:, None], form_QK)
            form_QK += log_Q[:, None] * below_QK
        form_QK += square_Q[:, None] * h_QK
        if (farthest >= start) & (nearest < start + KEYS):
            form_QK += tl.where(keys[None, :] == target[:, None], at_Q[:, None], 0.0)
        if key_sets is not None:
            set_start = key_sets + key_set * set_number + batch * set_batch
            member_K = in_set(set_start, keys, key_set, length, set_key)
            form_QK += on_Q[:, None] * member_K[None, :]
        if MASKED:  # a hidden key may be infinite
            k_KD = finite(k_KD)
        else:
            if start + KEYS > clear:
                k_KD = finite(k_KD)
        dq_QD += _into_product(h_QK * form_QK, k_KD)

    # Read again, because no register is free to hold it.
    gain_Q = _gain_of(gain, batch, number, rows, n_queries, gain_batch, gain_head, gain_row)
    dq_QD = dq_QD * (gain_Q * factor)[:, None]
    column = tl.arange(0, PADDED)
    out = one_of(dq, call) + batch * dq_batch + head * dq_head
    out = out + rows[:, None].to(tl.int64) * dq_row + column[None, :]
    tl.store(out, dq_QD, mask=(rows < n_queries)[:, None] & (column[None, :] < WIDTH))


@triton.jit(do_not_specialize=ANY)
@no_type_check
def to_keys(
    q, k, lengths, mask, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    plan, numbers, offset, n_heads, key_sets, set_number, set_batch, set_key,
    joined, factor, dk, dk_batch, dk_head, dk_row,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    SHAPED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, batch, above = placed(n_blocks, groups * len(k))
    call = above // groups
    group = (above % groups).to(tl.int64)
    keys = block * KEYS + tl.arange(0, KEYS)
    length = tl.load(lengths + batch)
    k_start = one_of(k, call) + batch * k_batch + group * k_head
    begin = 0
    if CAUSAL:
        begin = tl.maximum(0, block * KEYS - first)
    shared_by = heads // groups
    dk_KD = tl.full([KEYS, PADDED], 0.0, tl.float32)
    for member in range(shared_by):
        number = _number_of(numbers, above * shared_by + member)
        wanted = (number >= 0) & (block * KEYS < length)
        number = tl.maximum(number, 0)
        _, slope, spot, key_set = aim(plan, number, offset)
        k_KD = load_rows(k_start, keys, k_row, tl.where(wanted, length, 0), WIDTH, PADDED)
        if key_sets is not None:
            set_start = key_sets + key_set * set_number + batch * set_batch
            member_K = in_set(set_start, keys, key_set, length, set_key)
        head = group * shared_by + member
        q_start = one_of(q, call) + batch * q_batch + head * q_head
        mask_start = mask + batch * mask_batch + head * mask_head
        terms = joined + (batch * n_heads + number) * TERMS * n_queries
        for start in range(begin, tl.where(wanted, n_queries, 0), ROWS):
            rows = start + tl.arange(0, ROWS)
            # Tiles differ in one address, not one per row.
            q_here = q_start + tl.cast(start, tl.int64) * q_row
            q_QD = load_rows(q_here, tl.arange(0, ROWS), q_row, n_queries - start, WIDTH, PADDED)
            s_KQ = tl.dot(k_KD, tl.trans(q_QD), input_precision="ieee")
            top_Q = _load_term(terms, TOP, rows, n_queries)
            sum_Q = _load_term(terms, LOG_SUM, rows, n_queries)
            plain_Q = _load_term(terms, PLAIN, rows, n_queries)
            square_Q = _load_term(terms, SQUARE, rows, n_queries)
            below_KQ = (s_KQ - top_Q[None, :]) * scale - sum_Q[None, :]
            if CAUSAL or MASKED:
                below_KQ = hidden(
                    below_KQ, FAR_BELOW, rows[None, :], keys[:, None], length,
                    n_queries, first, mask_start, mask_row, mask_key,
                    block * KEYS + KEYS > start + first + 1, CAUSAL, MASKED,
                )  # fmt: skip
            h_KQ = tl.exp2(below_KQ)
            form_KQ = plain_Q[None, :]
            if SHAPED:
                log_Q = _load_term(terms, LOG, rows, n_queries)
                peak_Q = _load_term(terms, PEAK, rows, n_queries)
                peak_key_Q = _load_term(terms, PEAK_KEY, rows, n_queries).to(tl.int32, bitcast=True)
                form_KQ = tl.where(keys[:, None] == peak_key_Q[None, :], peak_Q[None, :], form_KQ)
                form_KQ += log_Q[None, :] * below_KQ
            form_KQ += square_Q[None, :] * h_KQ
            nearest = slope * (start + first) + spot
            farthest = nearest + slope * (ROWS - 1)
            if (farthest >= block * KEYS) & (nearest < block * KEYS + KEYS):
                target = slope * (rows + first) + spot
                at_Q = _load_term(terms, AT, rows, n_queries)
                form_KQ += tl.where(keys[:, None] == target[None, :], at_Q[None, :], 0.0)
            if key_sets is not None:
                on_Q = _load_term(terms, ON, rows, n_queries)
                form_KQ += member_K[:, None] * on_Q[None, :]
            dk_KD += _into_product(h_KQ * form_KQ, q_QD)

    # Padding keys are computed like others, in their own rows, which are dropped here.
    dk_KD = tl.where(keys[:, None] < length, dk_KD * factor, 0.0)
    column = tl.arange(0, PADDED)
    out = one_of(dk, call) + batch * dk_batch + group * dk_head
    out = out + keys[:, None].to(tl.int64) * dk_row + column[None, :]
    inside = (keys[:, None] < n_keys) & (column[None, :] < WIDTH)
    tl.store(out, dk_KD, mask=inside)


class Terms(NamedTuple):
    """Terms of the form for each row, (B, N, Q) float32; log, peak and peak_key go together."""

    top: Tensor  # the product q k of the largest score
    log_sum: Tensor  # log2 of the sum of exp(score - largest); +inf in rows that see nothing
    plain: Tensor
    square: Tensor | None  # 1 by default
    at: Tensor
    on: Tensor
    log: Tensor | None = None
    peak: Tensor | None = None
    peak_key: Tensor | None = None
    gain: Tensor | None = None  # may be expanded
    factor: float = 1.0  # of all rows


def score_gradients(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    aims: Aims,
    terms: Terms,
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute dq and dk of each call by the formula above."""
    both = _gradient_op(q, k, mask, lengths, scale, first, causal, *aims, *terms)
    return both[: len(q)], both[len(q) :]


@torch.library.custom_op("headwise::row_sweep_gradient", mutates_args=())
def _gradient_op(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    plan: Tensor | None,
    numbers: Tensor | None,
    offset: int,
    key_sets: Tensor | None,
    top: Tensor,
    log_sum: Tensor,
    plain: Tensor,
    square: Tensor | None,
    at: Tensor,
    on: Tensor,
    log: Tensor | None,
    peak: Tensor | None,
    peak_key: Tensor | None,
    gain: Tensor | None,
    factor: float,
) -> list[Tensor]:
    calls = calls_of(q, k, mask, lengths, scale, first, causal)
    terms = Terms(top, log_sum, plain, square, at, on, log, peak, peak_key, gain, factor)
    dq, dk = _new_like(q), _new_like(k)
    _launch(calls, Aims(plan, numbers, offset, key_sets), terms, dq, dk)
    return [*dq, *dk]


@_gradient_op.register_fake
def _(q, k, *others):
    return [*_new_like(q), *_new_like(k)]


def _new_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Allocate tensors of the same memory layout, contiguous for inputs with gaps or repeats."""
    return tuple(_with_rows_like(x) for x in alike(tensors))


def _with_rows_like(x: Tensor) -> Tensor:
    new = torch.empty_like(x)
    return new if new.stride(-1) == 1 else x.new_empty(x.shape)


def _launch(
    calls: Calls, aims: Aims, terms: Terms, dq: tuple[Tensor, ...], dk: tuple[Tensor, ...]
) -> None:
    batch, heads, n_queries, _ = dq[0].shape
    groups, n_keys = dk[0].shape[1:3]
    given = calls.arguments() | aims.arguments(heads) | {"numbers": aims.numbers}
    given["factor"] = terms.factor * calls.first.scale
    given["joined"] = terms.plain.new_empty(*terms.plain.shape[:2], TERMS.value, n_queries)
    by_rows = _contiguous(terms) | _gain_strides(terms.gain)
    by_queries, by_keys = settings(calls, "queries"), settings(calls, "keys")
    with torch.cuda.device_of(dq[0]):
        n_blocks = triton.cdiv(n_queries, by_queries["ROWS"])
        if n_blocks * batch:
            asked = by_rows | {"dq": dq, "n_blocks": n_blocks} | strides("dq", dq[0])
            to_queries[(batch * len(dq) * heads * n_blocks,)](**given, **by_queries, **asked)
        n_blocks = triton.cdiv(n_keys, by_keys["KEYS"])
        if n_blocks * batch:
            asked = {"dk": dk, "n_blocks": n_blocks, "SHAPED": terms.log is not None}
            asked |= strides("dk", dk[0])
            to_keys[(batch * len(dk) * groups * n_blocks,)](**given, **by_keys, **asked)


def _gain_strides(gain: Tensor | None) -> dict[str, int]:
    names = ("gain_batch", "gain_head", "gain_row")
    return dict.fromkeys(names, 0) if gain is None else strides("gain", gain)


def _contiguous(terms: Terms) -> dict[str, Tensor | None]:
    """Return the rows as contiguous arguments of a kernel; the gain keeps its own strides."""
    given = {name: term for name, term in terms._asdict().items() if name != "factor"}
    rows = {name: x.contiguous() for name, x in given.items() if x is not None and name != "gain"}
    return given | rows
