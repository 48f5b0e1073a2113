# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""The guidance loss of each row in one sweep over the keys, and its gradient in one more each way.

With H a row's weights, M the target keys of which it sees m, and s their target:

    loss = sum H^2 - 2 s H(M) + s^2 m  (or, where m = 0, sum H^2 - 1 / keys seen or sum H^2)
    dS = 2 H (H - s [j in M] - (sum H^2 - s H(M)))

Only the heads of the plan have programs. The forward pass saves the terms of the gradient. One
launch handles all given calls; their q and k need not be contiguous with each other.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.row_sweep.gradient import Terms, score_gradients
from headwise.ops.row_sweep.sweeps import (
    ANY,
    Aims,
    Calls,
    aim,
    apart,
    calls_of,
    end_of_keys,
    hidden,
    in_set,
    is_seen,
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

ROWS_OF_RESULT = ("loss", "seen", "top_product", "log_sum", "plain", "share")


def guidance_rows(
    calls: Sequence[Scores], plan: Tensor, numbers: Tensor, key_sets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute each guided row's squared distance from its target, and how many keys it sees.

    The calls differ in q and k alone; heads are numbered across calls.
    """
    scores = calls[0]
    scale, first = float(scores.multiplier), scores.first_position
    q, k = [call.q for call in calls], [call.k for call in calls]
    mask, lengths = scores.mask, scores.lengths
    loss_BNQ, seen_BNQ, *_ = _guidance_op(
        q, k, mask, lengths, key_sets, plan, numbers, scale, first, scores.causal
    )
    return loss_BNQ, seen_BNQ


@torch.library.custom_op("headwise::guidance_rows", mutates_args=())
def _guidance_op(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    mask: Tensor | None,
    lengths: Tensor | None,
    key_sets: Tensor | None,
    plan: Tensor,
    numbers: Tensor,
    scale: float,
    first: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    calls = calls_of(q, k, mask, lengths, scale, first, causal)
    results = _new_rows(q[0], plan)
    _launch(calls, Aims(plan, numbers, key_sets=key_sets), results)
    return results  # pyright: ignore[reportReturnType]


@_guidance_op.register_fake
def _(q, k, mask, lengths, key_sets, plan, numbers, scale, first, causal):
    return _new_rows(q[0], plan)


def _new_rows(q: Tensor, plan: Tensor) -> tuple[Tensor, ...]:
    shape = (q.shape[0], plan.shape[0], q.shape[2])
    return tuple(q.new_empty(shape, dtype=torch.float32) for _ in ROWS_OF_RESULT)


def _launch(calls: Calls, aims: Aims, results: tuple[Tensor, ...]) -> None:
    given, back, calls = settings(calls, "forward"), scale_back(calls), with_least_scale(calls)
    batch, heads, n_queries, _ = calls.first.q.shape
    n_blocks = triton.cdiv(n_queries, given["ROWS"])
    asked = aims.arguments(heads)
    if batch * n_blocks == 0:
        return
    with torch.cuda.device_of(calls.first.q):
        _forward_kernel[(batch * asked["n_heads"] * n_blocks,)](
            **calls.arguments(),
            **asked,
            **dict(zip(ROWS_OF_RESULT, results, strict=True)),
            **given,
            n_blocks=n_blocks,
            PARTS=parts_of(calls),
            back=back,
        )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    q, k, *others = inputs[:7]
    ctx.save_for_backward(*others, *output[2:], *q, *k)
    ctx.rest = inputs[7:]


def _backward(ctx: Any, gain: Tensor | None, *unused: Tensor | None) -> tuple[Any, ...]:
    mask, lengths, key_sets, plan, numbers, top, log_sum, plain, share, *both = ctx.saved_tensors
    q, k = both[: len(both) // 2], both[len(both) // 2 :]
    if gain is None:
        return [None] * len(q), [None] * len(k), *(None,) * 8
    aims = Aims(plan, numbers, key_sets=key_sets)
    terms = Terms(top, log_sum, plain, square=None, at=share, on=share, gain=gain, factor=2.0)
    scale, first, causal = ctx.rest
    dq, dk = score_gradients(q, k, mask, lengths, scale, first, causal, aims, terms)
    return dq, dk, *(None,) * 8


torch.library.register_autograd("headwise::guidance_rows", _backward, setup_context=_keep)


@triton.jit(do_not_specialize=ANY)
@no_type_check
def _forward_kernel(
    q, k, lengths, mask, scale, first, heads, groups, n_queries, n_keys, n_blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, mask_batch, mask_head, mask_row, mask_key,
    plan, offset, n_heads, key_sets, set_number, set_batch, set_key,
    loss, seen, top_product, log_sum, plain, share, back,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    block, batch, number = placed(n_blocks, n_heads)
    head, slope, spot, key_set = aim(plan, number, offset)
    call = head // heads
    head = head % heads
    group = head // (heads // groups)
    rows = block * ROWS + tl.arange(0, ROWS)
    target = slope * (rows + first) + spot
    nearest = slope * (block * ROWS + first) + spot
    farthest = nearest + slope * (ROWS - 1)
    length = tl.load(lengths + batch)
    q_start = one_of(q, call) + batch * q_batch + head * q_head
    q_QD = load_rows(q_start, rows, q_row, n_queries, WIDTH, PADDED)
    k_start = one_of(k, call) + batch * k_batch + group * k_head
    mask_start = mask + batch * mask_batch + head * mask_head

    nowhere = unseen(scale)
    top = tl.full([ROWS], 0.0, tl.float32) + nowhere  # the largest product so far
    total = tl.full([ROWS, PARTS], 0.0, tl.float32)
    squares = tl.full([ROWS, PARTS], 0.0, tl.float32)
    hit = tl.full([ROWS, PARTS], 0.0, tl.float32)
    in_sets = tl.full([ROWS, PARTS], 0.0, tl.float32)
    counts = tl.full([ROWS, PARTS], 0.0, tl.float32)
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
        shrink = tl.exp2((top - grown_or_0) * scale)[:, None]
        e_QK = tl.exp2((s_QK - grown_or_0[:, None, None, None]) * scale)
        total = total * shrink + part_sums(e_QK)
        squares = squares * (shrink * shrink) + part_sums(e_QK * e_QK)
        hit = hit * shrink
        if (farthest >= start) & (nearest < start + KEYS):
            is_target = apart(keys[None, :] == target[:, None], PARTS)
            hit += part_sums(tl.where(is_target, e_QK, 0.0))
        if key_sets is not None:
            set_start = key_sets + key_set * set_number + batch * set_batch
            member_K = in_set(set_start, keys, key_set, length, set_key)
            member_K = apart(member_K[None, :], PARTS)
            hit += part_sums(e_QK * member_K)
            in_sets += part_sums(tl.where(s_QK > nowhere, member_K, 0.0))
        if MASKED:
            counts += part_sums(tl.where(s_QK > nowhere, 1.0, 0.0))
        top = grown

    total = tl.sum(total, axis=1)
    found = is_seen(
        target, rows, length, n_queries, first, mask_start, mask_row, mask_key, CAUSAL, MASKED
    ).to(tl.float32)
    found += tl.sum(in_sets, axis=1)
    count = tl.sum(counts, axis=1)
    if not MASKED:
        last = tl.full([ROWS], 0, tl.int32) + length
        if CAUSAL:
            last = tl.minimum(last, rows + first + 1)
        count = tl.maximum(last, 0).to(tl.float32)
    normalised = tl.load(plan + number * 6 + 4)
    uniform = tl.load(plan + number * 6 + 5)
    empty = total == 0.0  # a row that sees anything has about 1 or more, or NaN
    some = tl.where(empty, 1.0, total)
    inverse = tl.where(empty, 0.0, 1.0 / some)
    evenly = tl.where(normalised != 0, 1.0 / tl.maximum(found, 1.0), 1.0)
    evenly = tl.where(found > 0.0, evenly, 0.0)
    edge = tl.where((found == 0.0) & (count > 0.0) & (uniform != 0), 1.0, 0.0)
    squares = tl.sum(squares, axis=1) * inverse * inverse
    reached = evenly * tl.sum(hit, axis=1) * inverse
    known = evenly * evenly * found - edge / tl.maximum(count, 1.0)

    inside = rows < n_queries
    at = (batch * n_heads + number) * n_queries + rows
    tl.store(loss + at, squares - 2.0 * reached + known, mask=inside)
    tl.store(seen + at, count, mask=inside)
    tl.store(top_product + at, tl.where(empty, 0.0, top) * back, mask=inside)
    tl.store(log_sum + at, tl.where(empty, float("inf"), tl.log2(some)), mask=inside)
    tl.store(plain + at, reached - squares, mask=inside)
    tl.store(share + at, -evenly, mask=inside)
