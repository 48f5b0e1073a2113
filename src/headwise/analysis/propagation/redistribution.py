"""How the relevance of one result is shared out among what it was computed from.

Relevance is written as value times coefficient, r = u c. Coefficients then travel through an
ordinary backward pass: where v = sum_u W_uv u, the weight ratio of Voita et al. (2019, Definition
3) gives u the relevance sum_v (W_uv u / v) (v c_v) = u sum_v W_uv c_v, a gradient. Only what is
not a plain sum needs the functions below.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Parts = Callable[..., tuple[Tensor, ...]]  # the inputs -> parts of the result, linear in them


class Rescaling(NamedTuple):
    """Whether relevance is rescaled after a redistribution, and how many items a batch has."""

    wanted: bool
    items: int | None = None  # None: the first axis


def passed_on(x: Tensor, result: Tensor, *, eps: float) -> Tensor:
    """result = f(x), whose relevance is x's as it is: non-linearities are ignored.

        c_x = c f(x) / (x + eps sign(x))

    Where x is 0 it has no relevance, and none reaches what it was computed from.

    Args:
        x: what f was given.
        result: f(x).
        eps: keeps coefficients finite near x = 0, where f(0) is not 0 (sigmoid). It absorbs the
            share eps / (|x| + eps).
    """
    return _PassedOn.apply(x, result.detach(), eps)  # pyright: ignore[reportReturnType]


def halved(factor: Tensor) -> Tensor:
    """One of two factors of a product: half of the product's relevance goes to each."""
    return _Halved.apply(factor)  # pyright: ignore[reportReturnType]


def shared_out(
    result: Tensor,
    parts: Parts,
    *inputs: Tensor,
    eps: float,
    rescaling: Callable[[], Rescaling] = lambda: Rescaling(False),
) -> Tensor:
    """result, whose relevance is divided evenly among parts, and within each by weight ratio.

        r_u = 1/n sum_i sum_v (the part of u in part_i,v) / (part_i,v + eps sign(part_i,v)) r_v

    Args:
        result: what was computed, of any shape.
        parts: n linear functions of the inputs, of the result's shape, repeated when it is needed.
        inputs: what gets the relevance.
        eps: keeps small denominators from blowing relevance up, and absorbs a little instead.
        rescaling: asked when relevance arrives. If wanted, the inputs' relevances of each item are
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
    """numerator / (denominator + eps of its sign), and 0 where that would divide by nearly 0.

    NaN stays NaN, in either.
    """
    stable = denominator + eps * denominator.sign()
    unsafe = stable.abs() <= min(torch.finfo(stable.dtype).tiny ** 0.5, 1e-4)
    return torch.where(unsafe, numerator * 0, numerator / torch.where(unsafe, 1, stable))


def rescaled(
    coefficients: tuple[Tensor, ...], inputs: list[Tensor], relevance: Tensor, items: int | None
) -> tuple[Tensor, ...]:
    """Coefficients of inputs whose relevances, item by item, have the absolute sum of another."""
    number = items or relevance.shape[0]
    wanted_B = _by_item(relevance, number).abs().sum(1)
    pairs = list(zip(coefficients, inputs, strict=True))
    there_B = torch.stack([_by_item(c * u, number).abs().sum(1) for c, u in pairs]).sum(0)
    factor_B1 = ratio(wanted_B, there_B, eps=0.0)[:, None]
    return tuple((_by_item(c, number) * factor_B1).view_as(c) for c in coefficients)


def _by_item(tensor: Tensor, items: int) -> Tensor:
    """A row an item; positions may have been joined to the first axis."""
    if tensor.shape[0] % items:
        raise ValueError(
            f"rule='alpha_beta' rescales relevances item by item and found an activation of shape "
            f"{tuple(tensor.shape)} in a batch of {items}. Use rule='ratio' for this model."
        )
    return tensor.reshape(items, -1)
