"""Rows of sparsemax and entmax: the definition, Newton's method, and the gradient.

Weights are w_j = max(0, z_j - tau)^p with sum(w) = 1, where p = 1 / (alpha - 1) and z are the
scores over p, less their largest; alpha = 2 is sparsemax.

Newton's method finds tau without a sort. For p >= 1 the p-norm of max(0, z - tau) is convex and
falls in tau: steps from tau = -1, which is never too high, go up and never too far. With p = 1 they
end at the exact solution, otherwise each doubles the digits. Five to seven are enough, and each is
a few passes over memory that stays in the cache.

With u = w^(2 - alpha) on the support and 0 elsewhere (Peters et al., 2019), the gradient is

    dL/ds = u (dL/dw - sum(u dL/dw) / sum(u))
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.ops._impl import Number, outside_compilation
from headwise.ops.scores import full_precision

NEAR_ONE = 1.1  # below, weights are powers above 10 of rounded numbers
CHUNK_ELEMENTS = 2**17  # solved at once: half a megabyte in float32
MOST_STEPS = 60  # rounding ends Newton's steps long before
HALVINGS = 50  # of an interval of length 1: below float64's resolution of the weights

Alpha = Number | Tensor  # a tensor broadcasts against the rows with a last axis of 1
Solve = Callable[[Tensor, Alpha], Tensor]  # (scores, alpha) -> weights, without gradient


@outside_compilation
def sparse_rows(scores_XK: Tensor, alpha: Alpha, *, solve: Solve) -> Tensor:
    """Compute the weights of each row, with gradients for the scores and a tensor of alphas.

    Where alpha is near 1 this is done in float64: rounding of the threshold is multiplied by
    1 / (alpha - 1) in the weights, and by its square in the gradient for alpha.
    """
    near_one = (alpha < NEAR_ONE).any() if isinstance(alpha, Tensor) else alpha < NEAR_ONE
    dtype = torch.float64 if bool(near_one) else scores_XK.dtype
    if isinstance(alpha, Tensor):
        alpha = alpha.to(dtype)
    weights_XK: Tensor = _SparseRows.apply(  # pyright: ignore[reportAssignmentType]
        scores_XK.to(dtype), alpha, solve
    )
    return weights_XK.to(scores_XK.dtype)


def solve_by_definition(scores_XK: Tensor, alpha: Alpha) -> Tensor:
    """Compute the weights of each row by sorting (alpha = 1.5) or by halving an interval."""
    if not isinstance(alpha, Tensor):
        alpha = scores_XK.new_tensor(alpha)
    exact = alpha.dim() == 0 and alpha.item() == 1.5
    return _solve_sorted(scores_XK) if exact else _solve_by_halving(scores_XK, alpha)


def project_sorted(scores_XK: Tensor, alpha: Alpha) -> Tensor:
    """Compute sparsemax by its definition: a key is in the support if those above leave room."""
    top_X1 = scores_XK.amax(dim=-1, keepdim=True)
    empty_X1 = top_X1 == -torch.inf
    # Relative to the largest score, so that large scores cost no precision.
    scores_XK = (scores_XK - top_X1).masked_fill(empty_X1, 0)
    sorted_XK = scores_XK.sort(dim=-1, descending=True).values
    rank_K = torch.arange(1, scores_XK.shape[-1] + 1, device=scores_XK.device)
    excess_XK = sorted_XK.cumsum(dim=-1) - 1
    in_support_XK = rank_K * sorted_XK > excess_XK
    # no key is in the support of a row with a NaN or an infinite score, which comes out as NaN
    size_X1 = in_support_XK.sum(dim=-1, keepdim=True).clamp(min=1)
    threshold_X1 = excess_XK.gather(-1, size_X1 - 1) / size_X1
    return (scores_XK - threshold_X1).clamp(min=0).masked_fill(empty_X1, 0)


def _solve_by_halving(scores_XK: Tensor, alpha: Tensor) -> Tensor:
    """Halve the interval that holds the threshold, then normalise to remove rounding errors."""
    top_X1 = scores_XK.amax(dim=-1, keepdim=True)
    empty_X1 = top_X1 == -math.inf
    rise_XK = (alpha - 1) * (scores_XK - top_X1.masked_fill(empty_X1, 0))
    low_X1 = torch.full_like(top_X1, -1) * torch.ones_like(rise_XK[..., :1])
    width = 1.0
    for _ in range(HALVINGS):
        width /= 2
        weights_XK = _weights_above(rise_XK, low_X1 + width, alpha)
        enough_X1 = weights_XK.sum(-1, keepdim=True) >= 1
        low_X1 = torch.where(enough_X1, low_X1 + width, low_X1)
    weights_XK = _weights_above(rise_XK, low_X1, alpha)
    weights_XK = weights_XK / weights_XK.sum(-1, keepdim=True).clamp(min=1e-30)
    return weights_XK.masked_fill(empty_X1, 0)


def _weights_above(rise_XK: Tensor, threshold_X1: Tensor, alpha: Tensor) -> Tensor:
    return (rise_XK - threshold_X1).clamp(min=0) ** (1 / (alpha - 1))


def _solve_sorted(scores_XK: Tensor) -> Tensor:
    """Solve alpha = 1.5 exactly: sort, then solve a quadratic for every possible support size."""
    top_X1 = scores_XK.amax(dim=-1, keepdim=True)
    empty_X1 = top_X1 == -math.inf
    rise_XK = (scores_XK - top_X1.masked_fill(empty_X1, 0)) / 2
    rise_XK = rise_XK.clamp(min=-2)  # below -1: weight 0
    sorted_XK = rise_XK.sort(dim=-1, descending=True).values
    size_K = torch.arange(1, scores_XK.shape[-1] + 1, device=scores_XK.device)
    mean_XK = sorted_XK.cumsum(-1) / size_K
    mean_square_XK = sorted_XK.square().cumsum(-1) / size_K
    variance_XK = size_K * (mean_square_XK - mean_XK.square())
    threshold_XK = mean_XK - ((1 - variance_XK) / size_K).clamp(min=0).sqrt()
    # no key is in the support of a row with a NaN or an infinite score, which comes out as NaN
    size_X1 = (threshold_XK <= sorted_XK).sum(-1, keepdim=True).clamp(min=1)
    threshold_X1 = threshold_XK.gather(-1, size_X1 - 1)
    return (rise_XK - threshold_X1).clamp(min=0).square().masked_fill(empty_X1, 0)


def solve_by_newton(scores_XK: Tensor, alpha: Alpha) -> Tensor:
    """Compute the weights of each row by Newton's method; above alpha = 2 by the definition.

    Above 2 Newton's steps may go too far.
    """
    if bool((alpha > 2).any() if isinstance(alpha, Tensor) else alpha > 2):
        return solve_by_definition(scores_XK, alpha)
    return solve(scores_XK, 1 / (alpha - 1))


def solve(scores_XK: Tensor, power: Number | Tensor) -> Tensor:
    """Solve rows by Newton's method, in chunks; a row of nothing but -inf gives zeros.

    Args:
        power: p, at least 1; a tensor broadcasts against the rows with a last axis of 1.
    """
    rows_XK = scores_XK.reshape(-1, scores_XK.shape[-1])
    if isinstance(power, Tensor):
        power = power.expand(*scores_XK.shape[:-1], 1).reshape(-1, 1)
    weights_XK = torch.empty_like(rows_XK)
    step = max(1, CHUNK_ELEMENTS // max(1, rows_XK.shape[-1]))
    for start in range(0, len(rows_XK), step):
        rows = slice(start, start + step)
        power_of_rows = power[rows] if isinstance(power, Tensor) else power
        with full_precision(scores_XK):
            weights_XK[rows] = _solve_chunk(rows_XK[rows], power_of_rows)
    return weights_XK.view(scores_XK.shape)


def _solve_chunk(scores_XK: Tensor, power: Number | Tensor) -> Tensor:
    top_X1 = scores_XK.amax(dim=-1, keepdim=True)
    z_XK = scores_XK - top_X1.masked_fill_(top_X1 == -torch.inf, 0)
    if isinstance(power, Tensor) or power != 1:
        z_XK /= power
    tau_X1 = torch.full_like(top_X1, -1)
    above_XK = torch.empty_like(z_XK)
    tolerance = _tolerance(power, scores_XK.dtype)
    for _ in range(MOST_STEPS):
        torch.sub(z_XK, tau_X1, out=above_XK).clamp_(min=0)
        step_X1 = _step(above_XK, power)
        tau_X1 += step_X1
        if not bool((step_X1 > tolerance).any()):
            break
    return _to_power(torch.sub(z_XK, tau_X1, out=above_XK).clamp_(min=0), power)


def _tolerance(power: Number | Tensor, dtype: torch.dtype) -> float:
    """Return the step below which the next one would be lost in rounding."""
    eps = torch.finfo(dtype).eps
    # where each step doubles the digits, the next would be the square of this one
    return eps**0.75 if not isinstance(power, Tensor) and power == 2 else 4 * eps


def _step(above_XK: Tensor, power: Number | Tensor) -> Tensor:
    """Compute Newton's step from tau to the zero of the tangent of ||max(0, z - tau)||_p - 1."""
    if not isinstance(power, Tensor) and power == 1:
        count_X1 = above_XK.sign().sum(-1, keepdim=True)
        return (above_XK.sum(-1, keepdim=True) - 1) / count_X1.clamp_(min=1)
    if not isinstance(power, Tensor) and power == 2:
        slope_XK = above_XK
    else:
        slope_XK = above_XK.pow(power - 1).mul_(above_XK.sign())  # 0^0 is not on the support
    total_X1 = torch.linalg.vecdot(slope_XK, above_XK)[..., None]
    slope_X1 = slope_XK.sum(-1, keepdim=True).clamp_(min=1e-30)
    return (total_X1 - total_X1 ** (1 - 1 / power)) / slope_X1


def _to_power(above_XK: Tensor, power: Number | Tensor) -> Tensor:
    if not isinstance(power, Tensor) and power in (1, 2):
        return above_XK.square_() if power == 2 else above_XK
    weights_XK = above_XK.pow_(power)
    return weights_XK.div_(weights_XK.sum(-1, keepdim=True).clamp_(min=1e-30))


class _SparseRows(torch.autograd.Function):
    """Autograd function of the weights; `solve` itself needs no gradient."""

    @staticmethod
    def forward(ctx: Any, scores_XK: Tensor, alpha: Alpha, solve: Solve) -> Tensor:
        weights_XK = solve(scores_XK, alpha)
        learned = alpha if isinstance(alpha, Tensor) else None
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(weights_XK, learned)
        return weights_XK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights_XK, learned = ctx.saved_tensors
        alpha: Alpha = ctx.alpha if learned is None else learned
        (grad_XK,) = grads
        slope_XK = _slope(weights_XK, alpha)
        total_X1 = slope_XK.sum(-1, keepdim=True).clamp(min=1e-30)
        with full_precision(slope_XK):
            mean_X1 = torch.linalg.vecdot(slope_XK, grad_XK)[..., None] / total_X1
        grad_scores_XK = (grad_XK - mean_X1) * slope_XK
        if learned is None or not ctx.needs_input_grad[1]:
            return grad_scores_XK, None, None
        change_XK = _change_with_alpha(weights_XK, slope_XK / total_X1, learned)
        return grad_scores_XK, (grad_XK * change_XK).sum_to_size(learned.shape), None


def _slope(weights_XK: Tensor, alpha: Alpha) -> Tensor:
    if not isinstance(alpha, Tensor) and alpha in (1.5, 2):
        return weights_XK.sqrt() if alpha == 1.5 else weights_XK.sign()
    return torch.where(weights_XK > 0, weights_XK ** (2 - alpha), 0)


def _change_with_alpha(weights_XK: Tensor, tilted_XK: Tensor, alpha: Tensor) -> Tensor:
    """Compute dw/dalpha (Correia et al., 2019, Proposition 1); tilted is u over its sum."""
    surprise_XK = torch.special.entr(weights_XK)  # -w log w
    spread_XK = surprise_XK - tilted_XK * surprise_XK.sum(-1, keepdim=True)
    return (weights_XK - tilted_XK) / (alpha - 1) ** 2 + spread_XK / (alpha - 1)
