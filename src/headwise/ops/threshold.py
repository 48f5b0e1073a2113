"""The threshold of sparse row functions, by Newton's method instead of a sort.

Weights of sparsemax and entmax are w_j = max(0, z_j - tau)^p with sum(w) = 1, where p is
1 / (alpha - 1) and z are the scores over p, less their largest. For p >= 1 the p-norm of
max(0, z - tau) is convex and falls in tau: Newton's steps from tau = -1, which is never too high,
go up and never too far. With p = 1 they end at the exact solution, otherwise each doubles the
digits. Five to seven do, and each is a few passes over memory that stays in the cache.
"""

import torch
from torch import Tensor

from headwise.ops._impl import Number
from headwise.ops.scores import full_precision

CHUNK_ELEMENTS = 2**17  # worked on at once: half a megabyte in float32
MOST_STEPS = 60  # rounding ends the steps long before


def solve(scores_XK: Tensor, power: Number | Tensor) -> Tensor:
    """The weights of each row; zeros for a row of nothing but -inf.

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
    """Below which step the next one would be lost in rounding."""
    eps = torch.finfo(dtype).eps
    # where each step doubles the digits, the next would be the square of this one
    return eps**0.75 if not isinstance(power, Tensor) and power == 2 else 4 * eps


def _step(above_XK: Tensor, power: Number | Tensor) -> Tensor:
    """How far tau is below the zero of the tangent of ||max(0, z - tau)||_p - 1."""
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
