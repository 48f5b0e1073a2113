"""The gradient that sparsemax and entmax share, whoever found their weights.

With u = w^(2 - alpha) on the support and 0 elsewhere (Peters et al., 2019; alpha = 2 is sparsemax):

    dL/ds = u (dL/dw - sum(u dL/dw) / sum(u))
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.ops._impl import Number, outside_compilation
from headwise.ops.scores import full_precision

NEAR_ONE = 1.1  # below, weights are powers above 10 of rounded numbers

Alpha = Number | Tensor
Solve = Callable[[Tensor, Alpha], Tensor]  # (scores, alpha) -> weights, without gradient


@outside_compilation
def sparse_rows(scores_XK: Tensor, alpha: Alpha, *, solve: Solve) -> Tensor:
    """Weights of each row, with gradients for the scores and, where it is a tensor, for alpha.

    Computed in float64 where alpha is near 1: rounding of the threshold is multiplied by
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


class _SparseRows(torch.autograd.Function):
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
    """dw/dalpha (Correia et al., 2019, Proposition 1); tilted is u over its sum."""
    surprise_XK = torch.special.entr(weights_XK)  # -w log w
    spread_XK = surprise_XK - tilted_XK * surprise_XK.sum(-1, keepdim=True)
    return (weights_XK - tilted_XK) / (alpha - 1) ** 2 + spread_XK / (alpha - 1)
