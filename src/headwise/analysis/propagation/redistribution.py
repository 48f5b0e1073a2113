"""Redistribution of the relevance of a result among its inputs.

Relevance is written as value times coefficient, r = u c. Coefficients then travel through an
ordinary backward pass: where v = sum_u W_uv u, the weight ratio of Voita et al. (2019, Definition
3) gives u the relevance sum_v (W_uv u / v) (v c_v) = u sum_v W_uv c_v, a gradient. Only functions
other than plain sums need the functions below.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Parts = Callable[..., tuple[Tensor, ...]]  # the inputs -> parts of the result, linear in them


class Rescaling(NamedTuple):
    """Choice whether relevance is rescaled after a redistribution, and the batch size."""

    wanted: bool
    items: int | None = None  # None: the first axis


def pass_through(x: Tensor, result: Tensor, *, eps: float) -> Tensor:
    """Return f(x) such that x has its relevance: non-linearities are ignored.

        c_x = c f(x) / (x + eps sign(x))

    Where x is 0 it has no relevance.

    Args:
        x: the argument of f.
        result: f(x).
        eps: keeps coefficients finite near x = 0 if f(0) is not 0 (sigmoid). It absorbs the share
            eps / (|x| + eps).
    """
    return _PassedOn.apply(x, result.detach(), eps)  # pyright: ignore[reportReturnType]


def halve(factor: Tensor) -> Tensor:
    """Return one of two factors such that it gets half of the product's relevance."""
    return _Halved.apply(factor)  # pyright: ignore[reportReturnType]


def redistribute(
    result: Tensor,
    parts: Parts,
    *inputs: Tensor,
    eps: float,
    rescaling: Callable[[], Rescaling] = lambda: Rescaling(False),
) -> Tensor:
    """Return a result whose relevance is divided evenly among parts, then by weight ratio.

        r_u = 1/n sum_i sum_v (the part of u in part_i,v) / (part_i,v + eps sign(part_i,v)) r_v

    Args:
        result: of any shape.
        parts: n linear functions of the inputs, of the result's shape; called in the backward pass.
        inputs: get the relevance.
        eps: keeps relevance finite at small denominators, and absorbs a little of it.
        rescaling: called in the backward pass. If wanted, the inputs' relevances of each item are
            multiplied so that their absolute values sum to those of the result.
    """
    return _SharedOut.apply(result.detach(), parts, eps, rescaling, *inputs)  # pyright: ignore


class _PassedOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, result: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, result)
        ctx.eps = eps
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *coefficients: Tensor) -> tuple[Tensor, None, None]:
        x, result = ctx.saved_tensors
        return coefficients[0] * ratio(result, x, eps=ctx.eps), None, None


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factor: Tensor) -> Tensor:
        return factor.view_as(factor)

    @staticmethod
    def backward(ctx: Any, *coefficients: Tensor) -> Tensor:
        return coefficients[0] / 2


class _SharedOut(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        result: Tensor,
        parts: Parts,
        eps: float,
        rescaling: Callable[[], Rescaling],
        *inputs: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(result, *inputs)
        ctx.parts, ctx.eps, ctx.rescaling = parts, eps, rescaling
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *coefficients: Tensor) -> tuple[Any, ...]:
        result, *inputs = ctx.saved_tensors
        relevance = result * coefficients[0]
        leaves = [given.detach().requires_grad_() for given in inputs]
        with torch.enable_grad():
            parts = ctx.parts(*leaves)
        even = relevance / len(parts)
        per_part = [ratio(even, part.detach(), eps=ctx.eps) for part in parts]
        found = torch.autograd.grad(parts, leaves, per_part)
        rescaling: Rescaling = ctx.rescaling()
        if rescaling.wanted:
            found = rescaled(found, leaves, relevance, rescaling.items)
        return None, None, None, None, *found


def ratio(numerator: Tensor, denominator: Tensor, *, eps: float) -> Tensor:
    """Divide by a denominator moved away from 0 by eps; return 0 where it is nearly 0.

    NaN in either stays NaN.
    """
    stable = denominator + eps * denominator.sign()
    unsafe = stable.abs() <= min(torch.finfo(stable.dtype).tiny ** 0.5, 1e-4)
    return torch.where(unsafe, numerator * 0, numerator / torch.where(unsafe, 1, stable))


def rescaled(
    coefficients: tuple[Tensor, ...], inputs: list[Tensor], relevance: Tensor, items: int | None
) -> tuple[Tensor, ...]:
    """Rescale coefficients so that relevances have the same absolute sum in each item."""
    number = items or relevance.shape[0]
    wanted_B = _by_item(relevance, number).abs().sum(1)
    pairs = list(zip(coefficients, inputs, strict=True))
    there_B = torch.stack([_by_item(c * u, number).abs().sum(1) for c, u in pairs]).sum(0)
    factor_B1 = ratio(wanted_B, there_B, eps=0.0)[:, None]
    return tuple((_by_item(c, number) * factor_B1).view_as(c) for c in coefficients)


def _by_item(tensor: Tensor, items: int) -> Tensor:
    """View a tensor with one row per item; positions may be part of the first axis."""
    if tensor.shape[0] % items:
        raise ValueError(
            f"rule='alpha_beta' rescales relevances item by item and found an activation of shape "
            f"{tuple(tensor.shape)} in a batch of {items}. Use rule='ratio' for this model."
        )
    return tensor.reshape(items, -1)


def signed_linear(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None,
    counted: bool,
    eps: float,
    rescaling: Callable[[], Rescaling],
) -> Tensor:
    """Compute x W^T + b; its relevance goes half by positive, half by negative contributions.

        r_u = sum_v 1/2 (z+_uv / (sum_u z+_uv + eps) + z-_uv / (sum_u z-_uv - eps)) r_v

    z_uv = W_vu u, and z+ and z- are its positive and negative parts. It equals `redistribute` with
    these two parts, but takes only five matrix products of the rows with relevance.

    Args:
        x: (..., I).
        weight: (O, I).
        bias: (O,), or None.
        counted: whether the bias is in the denominators.
        eps: added to denominators with their sign.
        rescaling: see `redistribute`.
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
