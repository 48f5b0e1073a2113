# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Statistics of softmax rows in one sweep over the keys, and their gradient in one more each way.

With e = exp(score - running maximum), a program keeps for its queries the sums of e, of e^2, of
e log e and of e on chosen keys; when the maximum grows, sums shrink by the same factor. The largest
weight is then 1 / sum of e.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.row_sweep.aiming import (
    ANY,
    FAR,
    HIDDEN,
    LOG2_E,
    Aims,
    Calls,
    aim,
    calls_of,
    end_of_keys,
    hidden,
    in_set,
    one_of,
    placed,
    settings,
)
from headwise.ops.row_sweep.gradient import Terms, score_gradients
from headwise.ops.scores import Scores
from headwise.ops.tiles import load_rows

LN_2 = tl.constexpr(0.6931471805599453)

Swept = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def row_sweep(
    scores: Scores, *, offset: int | None, keys: Tensor | None, statistics: bool
) -> Swept:
    """lse, peak, peak_key, entropy, sum_squares, mass at the offset, mass on the keys.

    Without `statistics`, peak, peak_key and entropy are empty. `keys` is (C, B, K), C 1 or H.
    """
    far = FAR if offset is None else offset
    scale, first = float(scores.multiplier), scores.first_position
    q, k, mask, lengths = scores.q, scores.k, scores.mask, scores.lengths
    return _sweep_op(q, k, mask, lengths, keys, scale, first, scores.causal, far, statistics)


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    calls = calls_of([q], [k], mask, lengths, scale, first, causal)
    swept = _new_rows(q, statistics)
    _launch(calls, Aims(offset=offset, key_sets=keys), swept, statistics)
    return swept


@_sweep_op.register_fake
def _(q, k, mask, lengths, keys, scale, first, causal, offset, statistics):
    return _new_rows(q, statistics)


def _new_rows(q: Tensor, statistics: bool) -> Swept:
    rows, maybe = q.shape[:3], q.shape[:3] if statistics else (0,)
    kinds = (torch.float32,) * 2 + (torch.int64,) + (torch.float32,) * 4
    shapes = (rows, maybe, maybe, maybe, rows, rows, rows)
    made = (q.new_empty(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True))
    return tuple(made)  # pyright: ignore[reportReturnType]


def _launch(calls: Calls, aims: Aims, swept: Swept, statistics: bool) -> None:
    given = settings(calls, "forward")
    batch, heads, n_queries, _ = calls.first.q.shape
    n_blocks = triton.cdiv(n_queries, given["ROWS"])
    names = ("lse", "peak", "peak_key", "entropy", "sum_squares", "mass_at", "mass_on")
    if batch * n_blocks == 0:
        return
    with torch.cuda.device_of(calls.first.q):
        _forward_kernel[(batch * heads * n_blocks,)](
            **calls.arguments(),
            **aims.arguments(heads),
            **dict(zip(names, swept, strict=True)),
            **given,
            n_blocks=n_blocks,
            STATISTICS=statistics,
        )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Swept) -> None:
    q, k, mask, lengths, keys, *rest = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(q, k, mask, lengths, keys, *output)
    ctx.rest = rest


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, mask, lengths, keys, *swept = ctx.saved_tensors
    scale, first, causal, offset, _ = ctx.rest
    call = ([q], [k], mask, lengths, scale, first, causal)
    terms = _terms(tuple(swept), grads)
    (dq,), (dk,) = score_gradients(*call, Aims(offset=offset, key_sets=keys), terms)
    return dq, dk, *(None,) * 8


torch.library.register_autograd("headwise::row_sweep", _backward, setup_context=_keep)


def _terms(swept: tuple[Tensor, ...], grads: tuple[Tensor | None, ...]) -> Terms:
    """dS = H (plain + square H + log log H + peak [j is the peak] + at [..] + on [..]).

    Rows that see nothing get zeros, whatever comes from above.
    """
    lse, peak, peak_key, entropy, sum_squares, mass_at, mass_on = swept
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
        lse=(lse * LOG2_E).masked_fill(empty, torch.inf),
        plain=plain,
        square=2 * on_squares,
        at=at,
        on=on,
        log=-on_entropy if shape_matters else None,
        peak=on_peak if shape_matters else None,
        peak_key=peak_key if shape_matters else None,
    )


@triton.jit(do_not_specialize=ANY)
@no_type_check
def _forward_kernel(
    q, k, lengths, mask, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    plan, offset, n_heads, key_sets, set_number, set_batch, set_key,
    lse, peak, peak_key, entropy, sum_squares, mass_at, mass_on,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    STATISTICS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
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

    top = tl.full([ROWS], HIDDEN, tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    squares = tl.full([ROWS], 0.0, tl.float32)
    logs = tl.full([ROWS], 0.0, tl.float32)
    at_target = tl.full([ROWS], 0.0, tl.float32)
    on_set = tl.full([ROWS], 0.0, tl.float32)
    best = tl.full([ROWS], -1, tl.int32)
    clear = end_of_keys(length, block * ROWS, first, CAUSAL)  # all rows see the keys before it
    for start in range(0, end_of_keys(length, block * ROWS + ROWS - 1, first, CAUSAL), KEYS):
        keys = start + tl.arange(0, KEYS)
        k_KD = load_rows(k_start, keys, k_row, n_keys, WIDTH, PADDED)
        s_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee") * scale
        s_QK = hidden(
            s_QK, rows[:, None], keys[None, :], length, n_queries, first,
            mask_start, mask_row, mask_key, start + KEYS > clear, CAUSAL, MASKED,
        )  # fmt: skip
        highest = tl.max(s_QK, axis=1)
        grown = tl.maximum(top, highest)
        grown_or_0 = tl.where(grown == HIDDEN, 0.0, grown)
        shrink = tl.exp2(top - grown_or_0)
        below_QK = s_QK - grown_or_0[:, None]
        e_QK = tl.exp2(below_QK)
        if STATISTICS:
            tile_logs = tl.sum(e_QK * below_QK, axis=1)
            logs = shrink * (logs + total * (top - grown_or_0)) + tile_logs
            is_highest = s_QK == highest[:, None]
            first_highest = tl.min(tl.where(is_highest, keys[None, :], 2147483647), axis=1)
            best = tl.where(highest > top, first_highest, best)
        total = total * shrink + tl.sum(e_QK, axis=1)
        squares = squares * shrink * shrink + tl.sum(e_QK * e_QK, axis=1)
        at_target = at_target * shrink
        if (farthest >= start) & (nearest < start + KEYS):
            at_target += tl.sum(tl.where(keys[None, :] == target[:, None], e_QK, 0.0), axis=1)
        if key_sets is not None:
            set_start = key_sets + key_set * set_number + batch * set_batch
            member_K = in_set(set_start, keys, key_set, length, set_key)
            on_set = on_set * shrink + tl.sum(e_QK * member_K[None, :], axis=1)
        top = grown

    empty = total == 0.0  # of a row that sees anything it is at least 1, or not a number
    some = tl.where(empty, 1.0, total)
    share = tl.where(empty, 0.0, 1.0 / some)
    inside = rows < n_queries
    at = (batch * n_heads + number) * n_queries + rows
    log_total = tl.where(empty, float("-inf"), top + tl.log2(some))
    tl.store(lse + at, log_total * LN_2, mask=inside)
    tl.store(sum_squares + at, squares * share * share, mask=inside)
    tl.store(mass_at + at, at_target * share, mask=inside)
    tl.store(mass_on + at, on_set * share, mask=inside)
    if STATISTICS:
        tl.store(peak + at, share, mask=inside)
        tl.store(peak_key + at, best.to(tl.int64), mask=inside)
        tl.store(entropy + at, (tl.log2(some) - logs * share) * LN_2, mask=inside)
