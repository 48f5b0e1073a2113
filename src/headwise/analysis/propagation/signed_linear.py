"""Alpha-beta relevance of a linear layer, in five matrix products of the rows that have any."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.analysis.propagation.redistribution import Rescaling, ratio, rescaled


def signed_linear(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None,
    counted: bool,
    eps: float,
    rescaling: Callable[[], Rescaling],
) -> Tensor:
    """x W^T + b, whose relevance goes half by positive and half by negative contributions.

        r_u = sum_v 1/2 (z+_uv / (sum_u z+_uv + eps) + z-_uv / (sum_u z-_uv - eps)) r_v

    z_uv = W_vu u, and z+ and z- are its positive and negative parts. The same as `shared_out` with
    these two parts, at less cost.

    Args:
        x: (..., I).
        weight: (O, I).
        bias: (O,), or None.
        counted: whether the bias is in the denominators.
        eps: added to denominators with their sign.
        rescaling: as in `shared_out`.
    """
    return _SignedLinear.apply(x, weight, bias, counted, eps, rescaling)  # pyright: ignore


class _SignedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        counted: bool,
        eps: float,
        rescaling: Callable[[], Rescaling],
    ) -> Tensor:
        result = torch.nn.functional.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, bias, result)
        ctx.counted, ctx.eps, ctx.rescaling = counted, eps, rescaling
        return result

    @staticmethod
    def backward(ctx: Any, *coefficients: Tensor) -> tuple[Any, ...]:
        x, weight, bias, result = ctx.saved_tensors
        relevance = result * coefficients[0]
        relevance_XO, x_XI = relevance.flatten(0, -2), x.flatten(0, -2)
        # near the logit few rows have relevance, and in the read-out few columns
        rows, columns = relevance_XO.any(1).nonzero()[:, 0], relevance_XO.any(0).nonzero()[:, 0]
        relevance_RC = relevance_XO[rows][:, columns]
        bias_C = None if bias is None else bias[columns]
        plain_RC = result.flatten(0, -2)[rows][:, columns]
        if bias_C is not None:
            plain_RC = plain_RC - bias_C
        found_RI = _coefficients(
            relevance_RC,
            x_XI[rows],
            weight[columns],
            plain_RC,
            bias_C if ctx.counted else None,
            ctx.eps,
        )
        found = torch.zeros_like(x_XI).index_copy_(0, rows, found_RI).view_as(x)
        rescaling: Rescaling = ctx.rescaling()
        if rescaling.wanted:
            (found,) = rescaled((found,), [x], relevance, rescaling.items)
        return found, None, None, None, None, None


def _coefficients(
    relevance_RC: Tensor,
    x_RI: Tensor,
    weight_CI: Tensor,
    plain_RC: Tensor,
    bias_C: Tensor | None,
    eps: float,
) -> Tensor:
    # the sums of positive and of negative contributions, from their sum and their difference
    apart_RC = x_RI.abs() @ weight_CI.abs().T
    positive_RC = ((apart_RC + plain_RC) / 2).clamp(min=0)
    negative_RC = ((plain_RC - apart_RC) / 2).clamp(max=0)
    if bias_C is not None:
        positive_RC = positive_RC + bias_C.clamp(min=0)
        negative_RC = negative_RC + bias_C.clamp(max=0)
    gain_RC = ratio(relevance_RC / 2, positive_RC, eps=eps)
    loss_RC = ratio(relevance_RC / 2, negative_RC, eps=eps)
    more_CI, less_CI = weight_CI.clamp(min=0), weight_CI.clamp(max=0)
    return torch.where(
        x_RI > 0, gain_RC @ more_CI + loss_RC @ less_CI, gain_RC @ less_CI + loss_RC @ more_CI
    )
