"""Layer norm as a linear map: its standard deviation is held constant."""

from typing import Any

import torch
from torch import Tensor


class Norm:
    """One call of layer_norm, with its arguments by name."""

    def __init__(self, x: Tensor, axes: tuple[int, ...], scale: Tensor, bias: Tensor | None):
        self.x, self.axes, self.scale, self.bias = x, axes, scale, bias

    @staticmethod
    def of(
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: object,
    ) -> "Norm":
        """Named as PyTorch names them, as some call it by keyword."""
        width = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
        axes = tuple(range(-width, 0))
        variance = input.detach().var(axes, correction=0, keepdim=True)
        scale = (variance + eps).rsqrt()
        return Norm(input, axes, scale if weight is None else scale * weight, bias)


def plain_norm(norm: Norm, x: Tensor) -> tuple[Tensor, ...]:
    """w (x - mean) / std, without the bias."""
    return ((x - x.mean(norm.axes, keepdim=True)) * norm.scale,)


def signed_norm(norm: Norm, bias: Tensor | None, x: Tensor) -> tuple[Tensor, ...]:
    """Positive and negative contributions: x_j itself counts 1 - 1/M, every other x_i -1/M."""
    up, down = x.clamp(min=0), x.clamp(max=0)
    rises = up - (up / _number(x, norm.axes)) - _mean_of_others(down, norm.axes)
    falls = down - (down / _number(x, norm.axes)) - _mean_of_others(up, norm.axes)
    more, less = norm.scale.clamp(min=0), norm.scale.clamp(max=0)
    positive, negative = rises * more + falls * less, rises * less + falls * more
    if bias is None:
        return positive, negative
    return positive + bias.clamp(min=0), negative + bias.clamp(max=0)


def _mean_of_others(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return (x.sum(axes, keepdim=True) - x) / _number(x, axes)


def _number(x: Tensor, axes: tuple[int, ...]) -> int:
    return torch.Size([x.shape[axis] for axis in axes]).numel()
