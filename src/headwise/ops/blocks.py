"""Something computed for every query, a part at a time, forward and backward.

The backward pass computes each part again, takes its gradient and forgets it, so that both passes
need the results and one block of scores, never Q x K.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.ops._impl import outside_compilation
from headwise.ops.scores import Part, Scores, full_precision


class Block(NamedTuple):
    """What is needed to compute one part."""

    part: Part
    scores: Scores
    v: Tensor | None
    parameters: tuple[Tensor, ...]


Compute = Callable[[Block], tuple[Tensor, ...]]  # -> results of the part, (B, H, q, ...)


@outside_compilation
def in_blocks(
    compute: Compute,
    scores: Scores,
    parts: Sequence[Part],
    *,
    v: Tensor | None = None,
    parameters: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """Each result of `compute` for all queries together, with gradients to all tensors given.

    Args:
        compute: called without gradients, and in the backward pass once more with them. It must
            give the same both times, and capture nothing that needs a gradient.
        scores: the whole call.
        parts: what to compute at a time.
        v: the values, where they are needed.
        parameters: more tensors, broadcastable to (B, H, 1, 1).
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
    compute: Compute
    scores: Scores  # shapes and masks only
    parts: tuple[Part, ...]

    def cut(self, inputs: Sequence[Tensor | None], part: Part) -> list[Tensor | None]:
        """This part of every input."""
        heads = self.scores.shape[1]
        q, k, v, bias, sink, *parameters = inputs
        of_keys = [None if x is None else part.of_keys(x, heads) for x in (k, v)]
        q, bias, *parameters = (None if x is None else part.of(x) for x in (q, bias, *parameters))
        return [q, *of_keys, bias, None if sink is None else sink[part.heads], *parameters]

    def results(self, pieces: Sequence[Tensor | None], part: Part) -> tuple[Tensor, ...]:
        """Compute one part from its pieces of the inputs."""
        q, k, v, bias, sink, *parameters = pieces
        assert q is not None and k is not None
        scores = replace(self.scores.part(part), q=q, k=k, bias=bias, sink=sink)
        block = Block(part, scores, v, tuple(x for x in parameters if x is not None))
        with full_precision(q):
            return self.compute(block)


def _without_tensors(scores: Scores) -> Scores:
    """Autograd keeps the tensors. Held here too, gradient checkpointing could not forget them."""
    q, k, bias, sink = (
        None if x is None else torch.empty_like(x, device="meta")
        for x in (scores.q, scores.k, scores.bias, scores.sink)
    )
    assert q is not None and k is not None
    return replace(scores, q=q, k=k, bias=bias, sink=sink)


def _keep_freed_memory(device: torch.device) -> None:
    """Let every block use the memory of the one before.

    The C library of Linux hands freed memory back to the system, and gets it anew for every block,
    at up to half the time of all; unless it has seen a large piece freed. This one is not touched,
    so it costs nothing. 32 MB is the largest the library learns from.
    """
    if device.type == "cpu":
        torch.empty(31 * 2**20, dtype=torch.uint8)


@torch.no_grad()
def _join(plan: _Plan, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Results are copied into tensors made once. Kept as they are, small ones would be carved out
    of the memory a block has freed, the next block would not fit there, and memory would grow
    block by block until it equals that of the whole matrix.
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
    """What one part sends back to its pieces of the inputs that need a gradient."""
    again = torch.is_grad_enabled()  # somebody will differentiate the gradient
    with torch.enable_grad():
        # Views, so that an input computed from another sends nothing through that other one.
        pieces = [None if x is None else x.view_as(x) for x in plan.cut(inputs, part)]
        results = plan.results(pieces, part)
    sent = [
        (result, grad[part])
        for result, grad in zip(results, grads, strict=True)
        if grad is not None and result.requires_grad
    ]
    wanted = [x for x, need in zip(pieces, needs, strict=True) if x is not None and need]
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
