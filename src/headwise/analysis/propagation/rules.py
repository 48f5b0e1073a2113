"""The rule of each kind of computation, given the call that was made.

A rule takes (function, arguments, options) of a call of PyTorch and returns what the call would,
with a gradient of its own that carries relevance (see `redistribution`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwise.analysis.propagation.layer_norms import Norm, plain_norm, signed_norm
from headwise.analysis.propagation.redistribution import (
    Rescaling,
    halved,
    passed_on,
    shared_out,
)
from headwise.analysis.propagation.settings import Propagation
from headwise.analysis.propagation.signed_linear import signed_linear

Call = tuple[Any, ...]
Options = dict[str, Any]
Torch = Callable[..., Any]
RuleOf = Callable[[Torch, Call, Options], Any]


def ignored(function: Torch, call: Call, options: Options, *, eps: float) -> Any:
    """A non-linearity, or anything that multiplies its input by what is held constant."""
    x, *others = call
    if not active(x) or any(map(active, (*others, *options.values()))):
        return refused(function, call, options)
    overwritten = options.get("inplace") or any(other is True for other in others)
    given = x.detach().clone() if overwritten else x.detach()
    return passed_on(x, function(given, *others, **options), eps=eps)


def constant(function: Torch, call: Call, options: Options) -> Any:
    """Weights and standard deviations: relevance goes to what they multiply, not through them."""
    return function(*map(held, call), **options)


def quotient(function: Torch, call: Call, options: Options) -> Any:
    """A quotient: its denominator is held constant."""
    above, below, *others = call
    return function(above, held(below), *others, **options)


def attention(function: Torch, call: Call, options: Options) -> Any:
    """Attention: its weights are held constant, so that values alone have relevance."""
    q, k, v, *others = call
    return function(held(q), held(k), v, *map(held, others), **held_options(options))


def layer_norm(function: Torch, call: Call, options: Options) -> Any:
    """w (x - mean) / std + b, linear in x as the standard deviation is held constant."""
    norm = Norm.of(*call, **options)
    centred = norm.x - norm.x.mean(norm.axes, keepdim=True)
    scaled = centred * norm.scale
    return scaled if norm.bias is None else scaled + norm.bias


def refused(function: Torch, call: Call, options: Options) -> Any:
    """What has no rule."""
    name = getattr(function, "__name__", str(function))
    raise ValueError(
        f"Relevance cannot be propagated through {name}: there is no rule for it. Let forward() "
        "return logits as they are, or leave sites before this layer out with where=."
    )


def product(function: Torch, call: Call, options: Options) -> Any:
    """Two activations multiplied: half of the relevance to each."""
    if not _both_active(call):
        return function(*call, **options)
    a, b, *others = call
    return function(halved(a), halved(b), *others, **options)


def product_in_place(function: Torch, call: Call, options: Options) -> Any:
    """Two activations multiplied, written over the first: nobody else would see our gradient."""
    return refused(function, call, options) if _both_active(call) else function(*call, **options)


def product_added(function: Torch, call: Call, options: Options, *, product: RuleOf) -> Any:
    """s + a b, where a and b may both be activations."""
    total, a, b, *others = call
    if not _both_active((a, b)):
        return function(*call, **options)
    if function in (torch.addcmul, Tensor.addcmul) and not others:
        return total + options.get("value", 1) * product(torch.mul, (a, b), {})
    return function(total, halved(a), halved(b), *others, **options)


def linear(function: Torch, call: Call, options: Options) -> Any:
    """x W^T + b, or the like: the plain ratio, or a product if W is computed too."""
    if "weight" in options:
        call = call[0], options["weight"], *call[1:]
        options = {name: value for name, value in options.items() if name != "weight"}
    return product(function, call, options)


def product_as_printed(function: Torch, call: Call, options: Options, *, eps: float) -> Any:
    """Two activations multiplied: u / (u + u') of the relevance to u."""
    if not _both_active(call):
        return function(*call, **options)
    a, b = call[:2]
    return shared_out(function(a, b, **options), lambda a, b: (a + b,), a, b, eps=eps)


def active(value: Any) -> bool:
    """Whether relevance reaches a value, or one of a list of them."""
    if isinstance(value, list | tuple):
        return any(map(active, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, Tensor) and value.requires_grad


def held(value: Any) -> Any:
    """A value held constant, if it is a tensor."""
    return value.detach() if isinstance(value, Tensor) else value


def held_options(options: Options) -> Options:
    """The same for arguments by name."""
    return {name: held(value) for name, value in options.items()}


class Shares:
    """The rules that divide: with alpha-beta all, with the ratio those that leave biases out."""

    def __init__(self, settings: Propagation, items: Callable[[], int | None]):
        self.settings, self.items = settings, items

    def linear(self, function: Torch, call: Call, options: Options) -> Any:
        """x W^T + b."""
        x, weight, bias = _linear_arguments(*call, **options)
        if weight.requires_grad or not x.requires_grad:
            return linear(function, call, options)
        return self._linear(x, weight, bias)

    def addmm(self, function: Torch, call: Call, options: Options) -> Any:
        """b + x W, as GPT-2 writes a linear layer."""
        bias, x, weight = call[:3]
        if options or bias.requires_grad or weight.requires_grad or not x.requires_grad:
            return product_added(function, call, options, product=product)
        return self._linear(x, weight.T, bias)

    def matmul(self, function: Torch, call: Call, options: Options) -> Any:
        """What is held constant times values: A v, or the other way round."""
        a, b = call[:2]
        if _both_active(call) or options:
            return product(function, call, options)
        if self.settings.rule == "ratio":
            return function(a, b)
        if b.requires_grad:
            return self._shared(function(a, b), partial(_signed_product, _swapped(function), a), b)
        return self._shared(function(a, b), partial(_signed_product, function, b), a)

    def matmul_from_the_right(self, function: Torch, call: Call, options: Options) -> Any:
        """v.__rmatmul__(A) is A v."""
        return self.matmul(torch.matmul, (call[1], call[0]), options)

    def einsum(self, function: Torch, call: Call, options: Options) -> Any:
        """A sum of products: of two factors as any product, of more if one is an activation."""
        equation, *factors = call
        if len(factors) == 1 and isinstance(factors[0], list | tuple):
            factors = [*factors[0]]
        if len(factors) == 2:
            return self.matmul(partial(function, equation), tuple(factors), options)
        if sum(map(active, factors)) > 1:
            return refused(function, call, options)
        return function(equation, *factors, **options)

    def norm(self, function: Torch, call: Call, options: Options) -> Any:
        """Layer norm as a linear map with the weights w_j (1[i = j] - 1/M) / std."""
        norm = Norm.of(*call, **options)
        result = layer_norm(function, call, options)
        if self.settings.rule == "ratio":
            return self._shared(result, partial(plain_norm, norm), norm.x)
        counted = norm.bias if self.settings.bias == "neuron" else None
        return self._shared(result, partial(signed_norm, norm, counted), norm.x)

    def addition(self, function: Torch, call: Call, options: Options) -> Any:
        """A residual connection: alpha-beta of the two summands."""
        a, b = call[:2]
        if options or not (isinstance(b, Tensor) and isinstance(a, Tensor) and a.shape == b.shape):
            return function(*call, **options)
        return self._shared(function(a, b), _signed_sum, a, b)

    def attention(self, function: Torch, call: Call, options: Options) -> Any:
        """Attention with constant weights, none of them negative."""
        q, k, value, *others = call

        def attend(v: Tensor) -> Tensor:
            return function(held(q), held(k), v, *map(held, others), **held_options(options))

        return self.of_values(attend, value)

    def of_values(self, attend: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
        """The same for any function that averages values."""

        def parts(v: Tensor) -> tuple[Tensor, ...]:
            return attend(v.clamp(min=0)), attend(v.clamp(max=0))

        return self._shared(attend(value.detach()), parts, value)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.settings.rule == "ratio":
            result = functional.linear(x.detach(), weight, bias)
            return self._shared(result, lambda x: (functional.linear(x, weight),), x)
        return signed_linear(
            x,
            weight,
            bias=bias,
            counted=self.settings.bias == "neuron",
            eps=self.settings.eps,
            rescaling=self._rescaling,
        )

    def _shared(self, result: Tensor, parts: Any, *inputs: Tensor) -> Tensor:
        return shared_out(result, parts, *inputs, eps=self.settings.eps, rescaling=self._rescaling)

    def _rescaling(self) -> Rescaling:
        return Rescaling(self.settings.rule == "alpha_beta", self.items())


def _swapped(function: Torch) -> Torch:
    return lambda x, weight: function(weight, x)


def _signed_product(times: Torch, weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Positive and negative contributions to x times something constant."""
    up, down = x.clamp(min=0), x.clamp(max=0)
    more, less = weight.clamp(min=0), weight.clamp(max=0)
    return times(up, more) + times(down, less), times(up, less) + times(down, more)


def _signed_sum(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return a.clamp(min=0) + b.clamp(min=0), a.clamp(max=0) + b.clamp(max=0)


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Named as PyTorch names them."""
    return input, weight, bias


def _both_active(call: Call) -> bool:
    """Whether a product is of two activations. A leaf is a gate: parameters have no gradient."""
    return len(call) >= 2 and all(active(factor) and not _is_leaf(factor) for factor in call[:2])


def _is_leaf(factor: Tensor) -> bool:
    origin = factor if factor._base is None else factor._base  # pyright: ignore
    return origin.is_leaf and origin.requires_grad
