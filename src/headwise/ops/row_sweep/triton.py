# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Statistics of softmax rows in one sweep over the keys, and their gradient in one more each way.

With e = exp(score - running maximum), a program holds for its queries the sums of e, of e^2, of
e log e and of e on target keys; when the maximum grows, sums shrink by the same factor. The largest
weight is then 1 / sum of e. Differences are taken between products q k, before scaling: differences
of rounded scores may be off by more than all weights differ. For the same reason the largest
product and the logarithm of the sum of e are saved for the gradient instead of lse.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.row_sweep.gradient import Terms, score_gradients
from headwise.ops.row_sweep.sweeps import (
    ANY,
    FAR,
    Aims,
    Calls,
    aim,
    apart,
    calls_of,
    end_of_keys,
    hidden,
    in_set,
    one_of,
    part_sums,
    parts_of,
    placed,
    row_maxima,
    scale_back,
    settings,
    unseen,
    with_least_scale,
)
from headwise.ops.scores import Scores
from headwise.ops.tiles import load_rows

LN_2 = tl.constexpr(0.6931471805599453)

# Results of `row_sweep`, then the largest product and log2 of the sum of e, for the gradient.
Swept = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def row_sweep(
    scores: Scores, *, offset: int | None, keys: Tensor | None, statistics: bool
) -> tuple[Tensor, ...]:
    """Compute the statistics in the order of `SweptRows`.

    Without `statistics`, peak, peak_key and entropy are empty. `keys` is (C, B, K); C is 1 or H.
    """
    far = FAR if offset is None else offset
    scale, first = float(scores.multiplier), scores.first_position
    q, k, mask, lengths = scores.q, scores.k, scores.mask, scores.lengths
    return _sweep_op(q, k, mask, lengths, keys, scale, first, scores.causal, far, statistics)[:7]


@torch.library.custom_op("headwise::row_sweep", mutates_args=())
def _sweep_op(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    keys: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
    offset: int,
    statistics: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    calls = calls_of([q], [k], mask, lengths, scale, first, causal)
    swept = _new_rows(q, statistics)
    _launch(calls, Aims(offset=offset, key_sets=keys), swept, statistics)
    return swept


@_sweep_op.register_fake
def _(q, k, mask, lengths, keys, scale, first, causal, offset, statistics):
    return _new_rows(q, statistics)


def _new_rows(q: Tensor, statistics: bool) -> Swept:
    rows, maybe = q.shape[:3], q.shape[:3] if statistics else (0,)
    kinds = (torch.float32,) * 2 + (torch.int64,) + (torch.float32,) * 6
    shapes = (rows, maybe, maybe, maybe, rows, rows, rows, rows, rows)
    made = (q.new_empty(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True))
    return tuple(made)  # pyright: ignore[reportReturnType]


def _launch(calls: Calls, aims: Aims, swept: Swept, statistics: bool) -> None:
    given, back, calls = settings(calls, "forward"), scale_back(calls), with_least_scale(calls)
    batch, heads, n_queries, _ = calls.first.q.shape
    n_blocks = triton.cdiv(n_queries, given["ROWS"])
    names = ("lse", "peak", "peak_key", "entropy", "sum_squares", "mass_at", "mass_on")
    names += ("top_product", "log_sum")
    if batch * n_blocks == 0:
        return
    with torch.cuda.device_of(calls.first.q):
        _forward_kernel[(batch * heads * n_blocks,)](
            **calls.arguments(),
            **aims.arguments(heads),
            **dict(zip(names, swept, strict=True)),
            **given,
            n_blocks=n_blocks,
            PARTS=parts_of(calls),
            STATISTICS=statistics,
            # An argument, because two constants would take two instructions per score.
            upper_bits=-(given["KEYS"] // parts_of(calls)),
            back=back,
        )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Swept) -> None:
    q, k, mask, lengths, keys, *rest = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2], *output[7:])
    ctx.save_for_backward(q, k, mask, lengths, keys, *output)
    ctx.rest = rest


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, mask, lengths, keys, *swept = ctx.saved_tensors
    scale, first, causal, offset, _ = ctx.rest
    call = ([q], [k], mask, lengths, scale, first, causal)
    terms = _terms(tuple(swept), grads[:7])
    (dq,), (dk,) = score_gradients(*call, Aims(offset=offset, key_sets=keys), terms)
    return dq, dk, *(None,) * 8


torch.library.register_autograd("headwise::row_sweep", _backward, setup_context=_keep)


def _terms(swept: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]) -> Terms:
    """Turn gradients of the statistics into terms of the form of `headwise.ops.row_sweep.gradient`.

    Rows that see nothing get zeros.
    """
    lse, peak, peak_key, entropy, sum_squares, mass_at, mass_on, top_product, log_sum = swept
    empty = lse == -torch.inf
    nothing = torch.zeros_like(lse)
    on_lse, on_peak, _, on_entropy, on_squares, at, on = (
        nothing if grad is None else grad.to(torch.float32).masked_fill(empty, 0) for grad in grads
    )
    plain = on_lse - at * mass_at - on * mass_on - 2 * on_squares * sum_squares
    shape_matters = grads[1] is not None or grads[3] is not None
    if shape_matters:
        plain = plain - on_peak * peak - on_entropy * entropy
    return Terms(
        top=top_product,
        log_sum=log_sum,
        plain=plain,
        square=2 * on_squares,
        at=at,
        on=on,
        log=-on_entropy if shape_matters else None,
        peak=on_peak if shape_matters else None,
        peak_key=peak_key if shape_matters else None,
    )


@triton.jit
@no_type_check
def _nearest(below, upper_bits):
    """Find the number nearest to 0 in each part of a row, and its place; none is above 0.

    The bits of 0 and of negative numbers, read as unsigned integers, are smaller the nearer to 0.
    The lowest bits are replaced by the place in the part, so that the first of equal numbers wins.
    """
    NEXT: tl.constexpr = below.shape[3]
    turn = tl.arange(0, below.shape[1])[None, :, None, None]
    place = NEXT * turn + tl.arange(0, NEXT)[None, None, None, :]
    named = (below.to(tl.int32, bitcast=True) & upper_bits) | place
    return tl.min(tl.min(named.to(tl.uint32), axis=1), axis=2)


@triton.jit
@no_type_check
def _column(named, PLACES: tl.constexpr):
    """Find the first column whose number is nearest to 0, given the nearest of each part."""
    PARTS: tl.constexpr = named.shape[1]
    NEXT: tl.constexpr = 2 if PARTS > 1 else 1
    place = (named % PLACES).to(tl.int32)
    part = tl.arange(0, PARTS)[None, :]
    column = (place // NEXT * PARTS + part) * NEXT + place % NEXT
    bits = named // PLACES
    is_nearest = bits == tl.min(bits, axis=1)[:, None]
    return tl.min(tl.where(is_nearest, column, PLACES * PARTS), axis=1)


@triton.jit(do_not_specialize=[*ANY, "upper_bits"])
@no_type_check
def _forward_kernel(
    q, k, lengths, mask, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    plan, offset, n_heads, key_sets, set_number, set_batch, set_key,
    lse, peak, peak_key, entropy, sum_squares, mass_at, mass_on, top_product, log_sum, back,
    upper_bits,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    STATISTICS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    block, batch, number = placed(n_blocks, n_heads)
    head, slope, spot, key_set = aim(plan, number, offset)
    group = head // (heads // groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    target = slope * (rows + first) + spot
    nearest = slope * (block * ROWS + first) + spot
    farthest = nearest + slope * (ROWS - 1)
    length = tl.load(lengths + batch)
    q_start = one_of(q, 0) + batch * q_batch + head * q_head
    q_QD = load_rows(q_start, rows, q_row, n_queries, WIDTH, PADDED)
    k_start = one_of(k, 0) + batch * k_batch + group * k_head
    mask_start = mask + batch * mask_batch + head * mask_head

    nowhere = unseen(scale)
    top = tl.full([ROWS], 0.0, tl.float32) + nowhere  # the largest product so far
    total = tl.full([ROWS, PARTS], 0.0, tl.float32)
    squares = tl.full([ROWS, PARTS], 0.0, tl.float32)
    logs = tl.full([ROWS, PARTS], 0.0, tl.float32)
    at_target = tl.full([ROWS, PARTS], 0.0, tl.float32)
    on_set = tl.full([ROWS, PARTS], 0.0, tl.float32)
    best = tl.full([ROWS, PARTS], 0, tl.uint32)
    best_start = tl.full([ROWS], -1, tl.int32)
    clear = end_of_keys(length, block * ROWS, first, CAUSAL)  # all rows see the keys before it
    for start in range(0, end_of_keys(length, block * ROWS + ROWS - 1, first, CAUSAL), KEYS):
        keys = start + tl.arange(0, KEYS)
        k_KD = load_rows(k_start, keys, k_row, n_keys, WIDTH, PADDED)
        s_QK = hidden(
            tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee"), nowhere,
            rows[:, None], keys[None, :], length, n_queries, first,
            mask_start, mask_row, mask_key, start + KEYS > clear, CAUSAL, MASKED,
        )  # fmt: skip
        s_QK = apart(s_QK, PARTS)
        grown = tl.maximum(top, row_maxima(s_QK))
        grown_or_0 = tl.where(grown == nowhere, 0.0, grown)
        step = (top - grown_or_0) * scale
        shrink = tl.exp2(step)[:, None]
        below_QK = (s_QK - grown_or_0[:, None, None, None]) * scale
        e_QK = tl.exp2(below_QK)
        if STATISTICS:
            logs = shrink * (logs + total * step[:, None]) + part_sums(e_QK * below_QK)
            best = tl.where((grown > top)[:, None], _nearest(below_QK, upper_bits), best)
            best_start = tl.where(grown > top, start, best_start)
        total = total * shrink + part_sums(e_QK)
        squares = squares * (shrink * shrink) + part_sums(e_QK * e_QK)
        at_target = at_target * shrink
        if (farthest >= start) & (nearest < start + KEYS):
            is_target = apart(keys[None, :] == target[:, None], PARTS)
            at_target += part_sums(tl.where(is_target, e_QK, 0.0))
        if key_sets is not None:
            set_start = key_sets + key_set * set_number + batch * set_batch
            member_K = in_set(set_start, keys, key_set, length, set_key)
            on_set = on_set * shrink + part_sums(e_QK * apart(member_K[None, :], PARTS))
        top = grown

    total = tl.sum(total, axis=1)
    empty = total == 0.0  # a row that sees anything has about 1 or more, or NaN
    some = tl.where(empty, 1.0, total)
    share = tl.where(empty, 0.0, 1.0 / some)
    inside = rows < n_queries
    at = (batch * n_heads + number) * n_queries + rows
    log_total = tl.log2(some)
    tl.store(lse + at, tl.where(empty, float("-inf"), top * scale + log_total) * LN_2, mask=inside)
    tl.store(top_product + at, tl.where(empty, 0.0, top) * back, mask=inside)
    tl.store(log_sum + at, tl.where(empty, float("inf"), log_total), mask=inside)
    tl.store(sum_squares + at, tl.sum(squares, axis=1) * share * share, mask=inside)
    tl.store(mass_at + at, tl.sum(at_target, axis=1) * share, mask=inside)
    tl.store(mass_on + at, tl.sum(on_set, axis=1) * share, mask=inside)
    if STATISTICS:
        best_key = tl.where(best_start < 0, -1, best_start + _column(best, KEYS // PARTS))
        tl.store(peak + at, share, mask=inside)
        tl.store(peak_key + at, best_key.to(tl.int64), mask=inside)
        mean_log = tl.sum(logs, axis=1) * share
        tl.store(entropy + at, (log_total - mean_log) * LN_2, mask=inside)
