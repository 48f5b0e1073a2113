"""The definition every other implementation is tested against. Clear before fast."""

import math

import torch
from torch import Tensor

from headwise.ops._impl import Number

HALVINGS = 50  # of an interval of length 1: below float64's resolution of the weights


def solve(scores_XK: Tensor, alpha: Number | Tensor) -> Tensor:
    """Weights of each row; alpha a number or a tensor broadcastable against (…, 1)."""
    if not isinstance(alpha, Tensor):
        alpha = scores_XK.new_tensor(alpha)
    exact = alpha.dim() == 0 and alpha.item() == 1.5
    return _solve_sorted(scores_XK) if exact else _solve_by_halving(scores_XK, alpha)


def _solve_by_halving(scores_XK: Tensor, alpha: Tensor) -> Tensor:
    """Halve the interval that holds the threshold, then normalise what rounding left over."""
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
    """alpha = 1.5 exactly: sort, then solve a quadratic for every possible support size."""
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
