"""Rows of weights from rows of scores, sums of values under them, and blocks of queries.

A call is computed a block at a time. The backward pass computes each block again, takes its
gradient and frees it, so that both passes hold the results and one block of scores, never Q x K.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from headwise.ops._impl import Number, outside_compilation, readable
from headwise.ops.checks import check_rows
from headwise.ops.scores import (
    Part,
    Scores,
    finite,
    full_precision,
    may_hold_infinities,
    multiply_groups,
)

PLAIN_ELEMENTS = 2**22  # weights that autograd may keep, 16 MB in float32: recomputing is slower

# (scores, -inf where masked; the op's own tensors) -> weights, one row at a time
RowFunction = Callable[..., Tensor]


class Block(NamedTuple):
    """Inputs of one part of a call."""

    part: Part
    scores: Scores
    v: Tensor | None
    parameters: tuple[Tensor, ...]


Compute = Callable[[Block], tuple[Tensor, ...]]  # -> results of the part, (B, H, q, ...)


def softmax_rows(scores_XK: Tensor) -> Tensor:
    """Apply softmax over keys; a row of nothing but -inf gives zeros and zero gradient."""
    if readable(scores_XK):
        # A row without visible keys comes out as NaN, and so does a row with a NaN score. The test
        # is cheap, and nearly always there is none.
        weights_XK = scores_XK.softmax(dim=-1)
        if not bool(weights_XK.detach()[..., 0].isnan().any()):
            return weights_XK
    empty_X1 = scores_XK.amax(dim=-1, keepdim=True) == -math.inf
    return scores_XK.masked_fill(empty_X1, 0).softmax(dim=-1).masked_fill(empty_X1, 0)


def weights_of(scores: Scores, row_function: RowFunction, *parameters: Tensor) -> Tensor:
    """Compute the weights over the keys, (B, H, Q, K), of all queries of a call."""
    return row_weights(scores.rows(), scores.sink_column(), row_function, *parameters)[0]


def row_weights(
    scores_BHQK: Tensor, sink_BHQ1: Tensor | None, row_function: RowFunction, *parameters: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Compute the weights over the keys, (B, H, Q, K), and of the sink, (B, H, Q).

    With a sink, the row function gets its score as the last one of each row.
    """
    if sink_BHQ1 is None:
        return row_function(scores_BHQK, *parameters), None
    weights_BHQK = row_function(torch.cat([scores_BHQK, sink_BHQ1], dim=-1), *parameters)
    return weights_BHQK[..., :-1], weights_BHQK[..., -1]


def masked_scores(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Convert scores to float32 or wider, with -inf where the boolean mask is False."""
    check_rows(scores, mask)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def weighted_values(
    scores: Scores, row_function: RowFunction, v: Tensor, *parameters: Tensor, dropout: Number
) -> Tensor:
    """Compute attention by its definition: weights of all rows, dropout, sum of values."""
    weights_BHQK = drop(weights_of(scores, row_function, *parameters), p=dropout)
    return sum_values(scores, weights_BHQK, v)


def sum_values(scores: Scores, weights_BHQK: Tensor, v: Tensor) -> Tensor:
    """Sum values under weights, (B, H, Q, E), in the dtype of v.

    An infinite or NaN value affects only the queries with weight on it, which get NaN. Such values
    need their own path, because 0 times infinity is not 0.
    """
    v_BGKE = v.to(weights_BHQK.dtype)
    if not scores.hides_keys or not may_hold_infinities(v_BGKE):
        return multiply_groups(weights_BHQK, v_BGKE).to(v.dtype)
    bad_BGK1 = (~v_BGKE.isfinite()).any(dim=-1, keepdim=True).to(weights_BHQK.dtype)
    on_bad_BHQ1 = multiply_groups(weights_BHQK.detach(), bad_BGK1)
    out_BHQE = multiply_groups(weights_BHQK, finite(v_BGKE))
    return (out_BHQE + torch.where(on_bad_BHQ1 != 0, math.nan, 0.0)).to(v.dtype)


def weighted_values_in_blocks(
    scores: Scores, row_function: RowFunction, v: Tensor, *parameters: Tensor, dropout: Number
) -> Tensor:
    """Compute attention in O(n) memory: in blocks that the backward pass computes again."""
    parts = list(scores.parts())
    if len(parts) <= 1 or math.prod(scores.shape) <= PLAIN_ELEMENTS:
        return weighted_values(scores, row_function, v, *parameters, dropout=dropout)
    if dropout and v.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "A CUDA graph must not hold dropout of attention computed in blocks (here "
            f"{math.prod(scores.shape):,} weights), because every replay would drop the same "
            "weights; train with graphs=False, or without dropout of attention weights."
        )
    # One seed per call, from which every part derives the same numbers in both passes.
    seed = int(torch.randint(2**62, ())) if dropout else 0
    compute = partial(_weighted_rows, row_function=row_function, dropout=dropout, seed=seed)
    return in_blocks(compute, scores, parts, v=v, parameters=parameters)[0]


def _weighted_rows(
    block: Block, *, row_function: RowFunction, dropout: Number, seed: int
) -> tuple[Tensor]:
    assert block.v is not None
    n_keys = block.scores.reach()
    weights_BHQK = weights_of(block.scores.up_to(n_keys), row_function, *block.parameters)
    if dropout:
        seed = hash((seed, *(chosen.start for chosen in block.part))) % 2**63
        rng = torch.Generator(weights_BHQK.device).manual_seed(seed)
        kept_BHQK = torch.empty_like(weights_BHQK).bernoulli_(1 - dropout, generator=rng)
        weights_BHQK = weights_BHQK * kept_BHQK.div_(1 - dropout)
    return (sum_values(block.scores, weights_BHQK, block.v[:, :, :n_keys]),)


@outside_compilation
def in_blocks(
    compute: Compute,
    scores: Scores,
    parts: Sequence[Part],
    *,
    v: Tensor | None = None,
    parameters: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """Join the results of `compute` over all parts, with gradients to all tensors given.

    Args:
        compute: Called without gradients, and once more with gradients in the backward pass. It
            must return the same both times, and capture nothing that needs a gradient.
        scores: The whole call.
        parts: The parts to compute, one at a time.
        v: The values, if `compute` needs them.
        parameters: More tensors, broadcastable to (B, H, 1, 1).
    """
    scores = scores.widened()
    inputs = (scores.q, scores.k, v, scores.bias, scores.sink, *parameters)
    plan = _Plan(compute, _without_tensors(scores), tuple(parts))
    if len(plan.parts) > 1:
        _keep_freed_memory(scores.q.device)
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in inputs):
        return _join(plan, inputs)
    return _InBlocks.apply(plan, *inputs)  # pyright: ignore[reportReturnType]


class _Plan(NamedTuple):
    """A computation, the call without its tensors, and the parts of the call."""

    compute: Compute
    scores: Scores  # shapes and masks only
    parts: tuple[Part, ...]

    def cut(self, inputs: Sequence[Tensor | None], part: Part) -> list[Tensor | None]:
        """Slice every input to one part."""
        heads = self.scores.shape[1]
        q, k, v, bias, sink, *parameters = inputs
        of_keys = [None if x is None else part.of_keys(x, heads) for x in (k, v)]
        q, bias, *parameters = (None if x is None else part.of(x) for x in (q, bias, *parameters))
        return [q, *of_keys, bias, None if sink is None else sink[part.heads], *parameters]

    def results(self, slices: Sequence[Tensor | None], part: Part) -> tuple[Tensor, ...]:
        """Compute one part from its slices of the inputs."""
        q, k, v, bias, sink, *parameters = slices
        assert q is not None and k is not None
        scores = replace(self.scores.part(part), q=q, k=k, bias=bias, sink=sink)
        block = Block(part, scores, v, tuple(x for x in parameters if x is not None))
        with full_precision(q):
            return self.compute(block)


def _without_tensors(scores: Scores) -> Scores:
    """Drop the tensors that autograd saves, so that gradient checkpointing can free them."""
    q, k, bias, sink = (
        None if x is None else torch.empty_like(x, device="meta")
        for x in (scores.q, scores.k, scores.bias, scores.sink)
    )
    assert q is not None and k is not None
    return replace(scores, q=q, k=k, bias=bias, sink=sink)


def _keep_freed_memory(device: torch.device) -> None:
    """Make the C library reuse the memory of a block for the next one.

    glibc returns freed memory to the system and requests it again for every block, which takes up
    to half of the time, until it has seen a large chunk freed. This chunk is never touched, so it
    costs nothing. 32 MB is the largest chunk that glibc adapts to.
    """
    if device.type == "cpu":
        torch.empty(31 * 2**20, dtype=torch.uint8)


@torch.no_grad()
def _join(plan: _Plan, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Compute all parts and copy their results into tensors allocated once.

    Small results kept as they are would take up memory that a block has freed. The next block would
    not fit there, and memory would grow to that of the whole matrix.
    """
    whole: tuple[Tensor, ...] = ()
    for part in plan.parts:
        results = plan.results(plan.cut(inputs, part), part)
        if len(plan.parts) == 1:
            return results
        if not whole:
            shape = plan.scores.shape[:3]
            whole = tuple(result.new_empty(*shape, *result.shape[3:]) for result in results)
        for full, result in zip(whole, results, strict=True):
            full[part] = result
        del results
    return whole


class _InBlocks(torch.autograd.Function):
    """Autograd function that computes parts forward, and again backward."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        ctx.plan = plan
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        results = _join(plan, inputs)
        ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        inputs: tuple[Tensor | None, ...] = ctx.saved_tensors
        needs: tuple[bool, ...] = ctx.needs_input_grad[1:]
        sums = [
            torch.zeros_like(x) if x is not None and need else None
            for x, need in zip(inputs, needs, strict=True)
        ]
        for part in plan.parts:
            gradients = iter(_gradients(plan, part, inputs, needs, grads))
            for total in plan.cut(sums, part):
                if total is not None and (gradient := next(gradients)) is not None:
                    total.add_(gradient)
        return None, *sums


def _gradients(
    plan: _Plan,
    part: Part,
    inputs: Sequence[Tensor | None],
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of one part for its slices of the inputs that need one."""
    again = torch.is_grad_enabled()  # the gradient may be differentiated in turn
    with torch.enable_grad():
        # Views, so that an input computed from another passes no gradient through that other one.
        slices = [None if x is None else x.view_as(x) for x in plan.cut(inputs, part)]
        results = plan.results(slices, part)
    sent = [
        (result, grad[part])
        for result, grad in zip(results, grads, strict=True)
        if grad is not None and result.requires_grad
    ]
    wanted = [x for x, need in zip(slices, needs, strict=True) if x is not None and need]
    if not sent:
        return (None,) * len(wanted)
    with full_precision(wanted[0]):
        return torch.autograd.grad(
            [result for result, _ in sent],
            wanted,
            [grad for _, grad in sent],
            create_graph=again,
            allow_unused=True,
        )
