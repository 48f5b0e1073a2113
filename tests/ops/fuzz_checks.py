"""Checks of one case of `tests.ops.fuzz`: the kernel against the definition, out and gradients.

An error is held to how far the definition in the same dtype is from float64, as in the tests of the
kernels. Every check is an error and what is allowed, numbers that stay on the device: a case is
looked at once, when all of it is computed.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tests.ops.fuzz_inputs import Case
from tests.ops.fuzz_tiles import poisoned_memory

Run = Callable[..., Tensor]  # tensors -> out
SINGLE_EPS = torch.finfo(torch.float32).eps
DOUBT = 1e-4  # scores that are nearer than this may be ordered either way


class Check(NamedTuple):
    """Comparison that fails if the error is above the allowed one."""

    name: str
    error: Tensor
    allowed: Tensor


class Judged(NamedTuple):
    """Comparisons of a case, its blocks of queries without a certificate, and all its blocks."""

    checks: list[Check]
    flagged: Tensor | None = None
    blocks: int = 0


def worst(x: Tensor, exact: Tensor) -> Tensor:
    """Return the largest distance; 0 for empty tensors."""
    return (x.double() - exact).abs().max() if x.numel() else exact.new_zeros(())


def close(
    name: str,
    got: Tensor,
    reference: Tensor,
    exact: Tensor,
    *,
    times: float = 2,
    slack: float | Tensor = 1.0,
    floor: float | Tensor = 1.0,
) -> Check:
    """Allow a multiple of the error of the definition, and rounding, like `assert_no_worse`.

    Args:
        times: how much worse than the definition.
        slack: how much larger rounding is, such as that of exp(score) by the size of scores.
        floor: how large numbers are whose sum this is; it may be small itself.
    """
    assert got.dtype == reference.dtype, f"{name} is {got.dtype}, not {reference.dtype}"
    assert got.shape == exact.shape, f"{name} has shape {tuple(got.shape)}"
    largest = exact.abs().max() if exact.numel() else exact.new_zeros(())
    rounding = torch.finfo(got.dtype).eps * slack * largest.clamp(min=floor)
    return Check(name, worst(got, exact), times * (worst(reference, exact) + 2 * rounding))


def same(name: str, got: Tensor, wanted: Tensor) -> Check:
    """Require equality; the error is the number of different entries."""
    assert got.shape == wanted.shape, f"{name} has shape {tuple(got.shape)}"
    differ = (got != wanted).sum().double()
    return Check(name, differ, torch.zeros_like(differ))


def out_and_gradients(run: Run, tensors: list[Tensor], upstream: Tensor) -> list[Tensor]:
    """Compute the result of `run` and its gradients for an upstream gradient."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = run(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.to(out.dtype))]


def compare(
    kernel: Run,
    definition: Run,
    tensors: list[Tensor],
    upstream: Tensor,
    *,
    floors: dict[str, Tensor],
    slack: Tensor,
    shown: Tensor | None = None,
    times: float = 2,
) -> list[Check]:
    """Compare out, only where `shown`, and the gradient of each tensor."""
    with poisoned_memory():
        got = out_and_gradients(kernel, tensors, upstream)
    reference = out_and_gradients(definition, tensors, upstream)
    exact = out_and_gradients(definition, [x.double() for x in tensors], upstream)
    if shown is not None:
        for results in (got, reference, exact):
            results[0] = results[0].masked_fill(~shown, 0)
    return [
        close(name, *three, times=times, slack=slack, floor=floors[name])
        for name, *three in zip(floors, got, reference, exact, strict=False)
    ]


def upstream_of(case: Case, clear_BHQ: Tensor) -> Tensor:
    """Draw an upstream gradient, 0 in rows where rounding may change the selection."""
    batch, heads, _, n_queries, _ = case.sizes
    drawn = case.randn(batch, heads, n_queries, case.variant.values).to(case.q.dtype)
    return drawn * clear_BHQ[..., None]


def largest_score(scores_BHQK: Tensor) -> Tensor:
    """Return the largest absolute visible score, at least 1."""
    finite = scores_BHQK.masked_fill(scores_BHQK == -torch.inf, 0)
    return finite.abs().max().clamp(min=1) if finite.numel() else finite.new_ones(())


def floors_of(case: Case, change: float) -> dict[str, Tensor]:
    """Return the size of the numbers that are summed, and may cancel, in each result.

    A gradient on scores is a difference of numbers of the size `change`. It reaches q multiplied by
    k and the scale, and k by q, once for every query that looks at it; errors of independent terms
    add up like the root of their number. The rest is of order one, as the inputs are.
    """
    one = torch.ones((), device=case.q.device, dtype=torch.float64)
    sizes = case.sizes
    lookers = max(1, sizes.n_queries * sizes.heads // sizes.groups) ** 0.5
    of_k, of_q = (
        (case.scale * change * terms * x.abs().max().double()).clamp(min=1) if x.numel() else one
        for x, terms in ((case.k, 2.0), (case.q, 2 * lookers))
    )
    return {"out": one, "dq": of_k, "dk": of_q, "dv": one}


def rounding_of_scores(scores_BHQK: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the slack of ops whose scores are in float32, which grows with large scores."""
    return (largest_score(scores_BHQK) * SINGLE_EPS / torch.finfo(dtype).eps).clamp(min=1)


def is_clear(case: Case, scores_BHQK: Tensor, rank: int) -> Tensor:
    """Mark queries for which rounding cannot change the `rank` largest scores, (B, H, Q)."""
    if case.exact or scores_BHQK.shape[-1] <= rank:
        return torch.ones_like(scores_BHQK[..., 0], dtype=torch.bool)
    ordered = scores_BHQK.topk(rank + 1, dim=-1).values
    gap = ordered[..., rank - 1] - ordered[..., rank]
    return (gap > DOUBT) | gap.isnan()
