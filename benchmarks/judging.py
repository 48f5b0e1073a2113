"""Is a contestant right? Only then is it timed.

Some heads are compared with the definition in float64: outputs and gradients. A contestant may be
about as far off as the definition is when it gets the same numbers in the same dtype; one that
rounds its scores (`coarse`) may be further off. Queries whose keep-th and next score are within
rounding of each other may choose either, so they get no gradient and are not compared. Likewise
sparsemax where a score is within rounding of the threshold: it has two gradients there.

dq and dk may also be off by what rounding leaves of numbers that cancel in them: `uncancelled`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks import SEED
from benchmarks.cancelling import Pull, uncancelled
from headwise.ops import sparsemax
from headwise.ops.scores import Scores

Outputs = tuple[Tensor, ...]  # heads are the second axis of each
Attend = Callable[[Tensor, Tensor, Tensor], Outputs]
Definition = Callable[[int, Tensor, Tensor, Tensor], Outputs]  # of one head, whose number is first

FINE, COARSE = 1e-4, 2**-6.5  # how near two scores are, relative to them, to be the same
# Outputs in float32 are sums of many weights, each from an exponential that is good to 1e-6 or so.
ROUNDING = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-4}
COARSE_ROUNDING = 2**-4
# By how much a gradient of scores may be off, relative to itself, before it is multiplied.
UNIT = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-6}


@dataclass(frozen=True)
class Contestant:
    """Somebody who computes an op."""

    name: str
    attend: Attend | None  # None: it cannot take part, for this reason
    reason: str = ""
    coarse: bool = False  # scores are rounded to the dtype of q
    compiles: bool = False  # it takes long before it runs for the first time
    data_matters: bool = False  # its speed depends on the numbers: also run on trained heads


@dataclass(frozen=True)
class Question:
    """What is asked of every contestant."""

    definition: Definition  # which divides scores by the root of the width of q
    leaves: int = 3  # how many of q, k and v get a gradient; 0: there is no backward pass
    through: int = 1  # how many of the outputs it comes from
    keep: int | None = None  # keys a query keeps, where that is to be found out
    jumps: bool = False  # its gradient jumps where a key gets its first weight, as sparsemax's does
    causal: bool = False
    lengths: Tensor | None = None
    mask: Tensor | None = None  # the same for all heads
    pull: Pull | None = None  # None: no output is a mean of values
    # What is compared, where that is not what contestants return: from that, and v.
    seen: Callable[[Outputs, Tensor], Outputs] | None = None


@dataclass(frozen=True)
class Answer:
    """What is right at some heads: outputs, then gradients."""

    heads: list[int]
    upstream: list[Tensor]  # of those heads, zeros in rows that are not compared
    compared_BHQ: Tensor | None  # False where rows get no gradient; None: all do
    chosen_BHQ: Tensor | None  # False where outputs are not compared either
    exact: list[Tensor]  # in float64
    reference: list[Tensor]  # by the definition, in the dtype of the inputs
    rounded: dict[str, Tensor]  # what is rounded and may cancel in dq and dk

    @property
    def excused(self) -> float:
        """The share of rows that are not compared."""
        return 0.0 if self.compared_BHQ is None else 1 - self.compared_BHQ.double().mean().item()


def answer(
    question: Question, inputs: Sequence[Tensor], heads: list[int], *, coarse: bool
) -> Answer:
    """Work out what is right, one head at a time: memory would not hold more."""
    near = COARSE if coarse else FINE
    compared_BHQ = None
    if question.keep is not None or question.jumps:
        doubt = [_doubtful(question, _head(inputs, head), near) for head in heads]
        compared_BHQ = ~torch.cat(doubt, dim=1)
    own_of: list[list[Tensor]] = []
    cancel: list[list[Tensor]] = []
    parts: dict[torch.dtype, list[list[Tensor]]] = {torch.float64: [], inputs[0].dtype: []}
    rng = torch.Generator(inputs[0].device).manual_seed(SEED)
    for at, head in enumerate(heads):
        own = _own_upstream(question, _head(inputs, head), head, rng)
        if compared_BHQ is not None and own:
            own[0] = own[0] * compared_BHQ[:, at : at + 1, :, None]
        own_of.append(own)
        for dtype, found in parts.items():
            found.append(_one_head(question, _head(inputs, head), head, own, dtype))
        if not question.leaves:
            continue
        cancel.append(
            uncancelled(
                partial(_grads_of_q_and_k, question, head, own),
                question.pull,
                [x.double() for x in _head(inputs, head)],
                own[0].double(),
                parts[torch.float64][-1][-question.leaves],
                rng,
            )
        )
    upstream, rounded, exact, reference = (
        [torch.cat(pieces, dim=1) for pieces in zip(*found, strict=True)]
        for found in (own_of, cancel, *parts.values())
    )
    chosen_BHQ = None if question.keep is None else compared_BHQ
    of: dict[str, Tensor] = dict(zip(("dq", "dk"), rounded, strict=False))  # {} without gradients
    return Answer(heads, upstream, compared_BHQ, chosen_BHQ, exact, reference, of)


def complaint(
    contestant: Contestant, question: Question, inputs: Sequence[Tensor], right: Answer
) -> str | None:
    """What is wrong with a contestant's outputs and gradients, or None."""
    assert contestant.attend is not None
    leaves = [x.detach().requires_grad_(at < question.leaves) for at, x in enumerate(inputs)]
    outputs = contestant.attend(*leaves)
    if question.seen is not None:
        outputs = question.seen(outputs, inputs[2])
    upstream = [
        _whole(out, own, right.heads)
        for out, own in zip(outputs[: question.through], right.upstream, strict=True)
    ]
    grads = _grads(question, outputs, leaves, upstream)
    n_outputs = len(right.exact) - question.leaves
    named = [(f"output {at}", at, out) for at, out in enumerate(outputs)]
    named += [
        (name, n_outputs + at, x)
        for at, (name, x) in enumerate(zip(("dq", "dk", "dv"), grads, strict=False))
    ]
    said = [
        _compare(name, got.detach()[:, right.heads], right, at, coarse=contestant.coarse)
        for name, at, got in named
    ]
    return "; ".join(x for x in said if x) or None


def dropout_complaint(
    contestant: Contestant, inputs: Sequence[Tensor], probability: float
) -> str | None:
    """With dropout there is nothing to compare with. But what is dropped is as much as asked for,
    so weights sum to 1 on average; and the output is linear in v, so that <out, dout> = <v, dv>
    where the backward pass drops what the forward pass did.
    """
    assert contestant.attend is not None
    q, k, v = inputs
    with torch.no_grad():
        sums_BHQ = contestant.attend(q, k, torch.ones_like(v))[0][..., 0].double()
    several = sums_BHQ.std() / math.sqrt(sums_BHQ.numel())
    off = (sums_BHQ.mean() - 1).abs()
    if not bool(off <= 8 * several + 2**-9):
        return f"weights sum to {sums_BHQ.mean().item():.4f} with dropout {probability}"
    leaf = v.detach().requires_grad_()
    out = contestant.attend(q, k, leaf)[0]
    rng = torch.Generator(v.device).manual_seed(SEED)
    dout = torch.randn(out.shape, generator=rng, device=v.device).to(out.dtype)
    (dv,) = torch.autograd.grad(out, leaf, dout)
    forward_BHQE, backward_BHKE = (
        a.detach().double() * b.double() for a, b in ((out, dout), (v, dv))
    )
    difference_BH = forward_BHQE.sum(dim=(2, 3)) - backward_BHKE.sum(dim=(2, 3))
    off = (difference_BH / forward_BHQE.square().sum(dim=(2, 3)).sqrt()).square().mean().sqrt()
    # other pairs dropped would make it 0.3 or more
    return None if bool(off <= 0.1) else f"<out, dout> is not <v, dv>: {off.item():.2g} apart"


def _head(inputs: Sequence[Tensor], head: int) -> list[Tensor]:
    return [x[:, head : head + 1].detach() for x in inputs]


@torch.no_grad()
def _doubtful(question: Question, inputs: Sequence[Tensor], near: float) -> Tensor:
    """Where rounding decides which keys have weight, (B, 1, Q)."""
    q, k = (x.double() for x in inputs[:2])
    scores = Scores(
        q, k, mask=question.mask, causal=question.causal, lengths=question.lengths
    ).rows()
    if question.keep is None:
        threshold = scores.amax(dim=-1) - sparsemax(scores).amax(dim=-1)
        nearest = (scores - threshold[..., None]).abs().amin(dim=-1)
        return nearest <= near * (1e-3 + threshold.abs())
    if scores.shape[-1] <= question.keep:
        return torch.zeros(scores.shape[:-1], dtype=torch.bool, device=q.device)
    last, following = scores.topk(question.keep + 1, dim=-1).values[..., -2:].unbind(-1)
    # queries that see no more than `keep` keys have no choice
    return (following > -math.inf) & (last - following <= near * (1e-3 + last.abs()))


def _own_upstream(
    question: Question, inputs: Sequence[Tensor], head: int, rng: torch.Generator
) -> list[Tensor]:
    outputs = question.definition(head, *inputs)[: question.through]
    return [
        torch.randn(out.shape, generator=rng, device=out.device).to(out.dtype) for out in outputs
    ]


def _one_head(
    question: Question,
    inputs: Sequence[Tensor],
    head: int,
    upstream: list[Tensor],
    dtype: torch.dtype,
) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    outputs = question.definition(head, *leaves)
    pairs = zip(upstream, outputs, strict=False)
    grads = _grads(question, outputs, leaves, [given.to(out.dtype) for given, out in pairs])
    return [x.detach() for x in (*outputs, *grads)]


def _grads(
    question: Question, outputs: Outputs, leaves: list[Tensor], upstream: list[Tensor]
) -> tuple[Tensor, ...]:
    """Of the first inputs, from the first outputs."""
    if not question.leaves:
        return ()
    return torch.autograd.grad(
        outputs[: question.through], leaves[: question.leaves], upstream, retain_graph=False
    )


def _grads_of_q_and_k(
    question: Question, head: int, upstream: list[Tensor], inputs: list[Tensor]
) -> list[Tensor]:
    found = _one_head(question, inputs, head, upstream, torch.float64)
    return found[-question.leaves :][:2]


def _whole(out: Tensor, own: Tensor, heads: list[int]) -> Tensor:
    """Gradients for all heads: those that are compared get what the definition got."""
    upstream = torch.randn_like(out.detach())
    upstream[:, heads] = own.to(out.dtype)
    return upstream


def _compare(name: str, got: Tensor, right: Answer, at: int, *, coarse: bool) -> str | None:
    exact, reference = right.exact[at], right.reference[at]
    error, base = got.double() - exact, reference.double() - exact
    if name == "output 0" and right.chosen_BHQ is not None:
        error, base, exact = (x[right.chosen_BHQ] for x in (error, base, exact))
    if not exact.numel():
        return None
    rounding = COARSE_ROUNDING if coarse else ROUNDING[got.dtype]
    worst, typical = error.abs().amax().item(), _typical(error)
    allowed = 2 * base.abs().amax().item() + 2 * rounding * exact.abs().amax().item()
    usual = 3 * _typical(base) + rounding * _typical(exact)
    if name in right.rounded:
        unit = COARSE_ROUNDING if coarse else UNIT[got.dtype]
        allowed += unit * right.rounded[name].abs().amax().item()
        usual += unit * _typical(right.rounded[name])
    if worst <= allowed and typical <= usual:  # False for NaN
        return None
    return (
        f"{name} off by {worst:.2g}, {typical:.2g} on average (allowed {allowed:.2g}, {usual:.2g})"
    )


def _typical(x: Tensor) -> float:
    return x.square().mean().sqrt().item()
