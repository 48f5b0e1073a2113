"""Rules of relevance propagation: which PyTorch function follows which, and what each computes.

A rule takes (function, arguments, options) of a call of PyTorch and returns what the call would,
with a gradient of its own that carries relevance (see `redistribution`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.nn import functional

from headwise.analysis.propagation.redistribution import (
    Rescaling,
    halve,
    pass_through,
    redistribute,
    signed_linear,
)

Rule = Literal["ratio", "alpha_beta"]
Bias = Literal["neuron", "spread"]
Product = Literal["half", "paper"]
Call = tuple[Any, ...]
Options = dict[str, Any]
Torch = Callable[..., Any]
RuleOf = Callable[[Torch, Call, Options], Any]

# Functions of PyTorch by the rule that they follow; all others are refused.
NONLINEAR = (
    *(functional.relu, functional.gelu, functional.silu, functional.leaky_relu, functional.elu),
    *(functional.selu, functional.celu, functional.prelu, functional.softplus, functional.mish),
    *(functional.relu6, functional.hardtanh, functional.hardswish, functional.hardsigmoid),
    *(functional.tanh, functional.sigmoid, functional.logsigmoid, functional.softsign),
    *(functional.threshold, functional.hardshrink, functional.softshrink, functional.tanhshrink),
    *(torch.relu, torch.selu, torch.celu, torch.prelu, torch.tanh, torch.sigmoid, torch.erf),
    *(torch.exp, torch.expm1, torch.log, torch.log1p, torch.abs, torch.square, torch.pow),
    *(torch.sqrt, torch.clamp, torch.clip, torch.sin, torch.cos, torch.nan_to_num),
    *(Tensor.relu, Tensor.prelu, Tensor.tanh, Tensor.sigmoid, Tensor.erf, Tensor.exp),
    *(Tensor.expm1, Tensor.log, Tensor.log1p, Tensor.abs, Tensor.square, Tensor.pow),
    # x ** 2 calls Tensor.__pow__
    *(Tensor.__pow__, Tensor.__rpow__, Tensor.sqrt, Tensor.clamp, Tensor.clip, Tensor.sin),
    *(Tensor.cos, Tensor.nan_to_num),
)
SCALED = (functional.rms_norm, torch.rms_norm, functional.normalize)  # by a constant
CONSTANT = (
    *(functional.softmax, torch.softmax, Tensor.softmax, torch.rsqrt, Tensor.rsqrt),
    *(torch.var, Tensor.var, torch.std, Tensor.std, torch.reciprocal, Tensor.reciprocal),
    *(torch.norm, Tensor.norm, torch.linalg.vector_norm, torch.linalg.norm, Tensor.__rdiv__),
)
QUOTIENTS = (
    *(torch.div, torch.divide, torch.true_divide),
    *(Tensor.div, Tensor.divide, Tensor.true_divide, Tensor.div_),
)
PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply)
MATRIX_PRODUCTS = (
    *(torch.matmul, torch.bmm, torch.mm, torch.mv, torch.dot, torch.inner, torch.outer),
    *(Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.mv, Tensor.dot, Tensor.inner, Tensor.outer),
)
WEIGHTED = (  # convolutions and mixtures of experts follow the rule of linear layers
    *(torch.conv1d, torch.conv2d, functional.conv1d, functional.conv2d),
    *(functional.grouped_mm, torch._grouped_mm),  # pyright: ignore
)
LAYER_NORMS = (functional.layer_norm, torch.layer_norm)
SUMS = (torch.add, Tensor.add)

# arguments that may be given by name, but rules want in order
POSITIONAL = ("input", "other", "query", "key", "value")
ADDED = {  # s + a b
    **dict.fromkeys((torch.addmm, Tensor.addmm), ("input", "mat1", "mat2")),
    **dict.fromkeys((torch.addmv, Tensor.addmv), ("input", "mat", "vec")),
    **dict.fromkeys((torch.addr, Tensor.addr), ("input", "vec1", "vec2")),
    **dict.fromkeys((torch.addbmm, Tensor.addbmm), ("input", "batch1", "batch2")),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), ("input", "batch1", "batch2")),
    **dict.fromkeys((torch.addcmul, Tensor.addcmul), ("input", "tensor1", "tensor2")),
}

# Names of functions and methods that are linear, copy or select: their relevance is value times
# gradient.
_PLAIN = """
__get__ __getitem__ __rsub__ adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d
adaptive_max_pool2d add add_ adjoint amax amin as_strided atleast_1d atleast_2d atleast_3d
avg_pool1d avg_pool2d batch_norm bfloat16 block_diag broadcast_tensors broadcast_to cat chunk clone
column_stack concat concatenate contiguous copy_ cpu cuda cumsum detach diagonal diff double dropout
dropout1d dropout2d dstack embedding expand expand_as feature_dropout fill_ flatten flip float fmax
fmin gather half hstack index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put
index_put_ index_select interpolate masked_fill masked_fill_ masked_scatter masked_scatter_
masked_select max max_pool1d max_pool2d maximum mean min minimum moveaxis movedim narrow neg
negative pad permute positive ravel repeat repeat_interleave requires_grad_ reshape reshape_as roll
rsub scatter scatter_ scatter_add scatter_add_ select select_scatter slice_scatter sort split
split_with_sizes squeeze stack sub sub_ subtract sum swapaxes swapdims t take take_along_dim
tensor_split tile to topk transpose tril tril_ triu triu_ type type_as unbind unflatten unfold
unsqueeze view view_as view_as_complex view_as_real vstack where zero_
"""
PLAIN = frozenset(_PLAIN.split())


@dataclass(frozen=True)
class Propagation:
    """Settings of layer-wise relevance propagation.

    Args:
        rule: "ratio" is the weight ratio of Voita et al. (2019, appendix A): contributions divided
            by their sum. "alpha_beta" divides positive and negative contributions by their own
            sums and takes half of each, so that all relevance is positive; relevances are rescaled
            after every layer, item by item.
        bias: "neuron": a constant input that keeps its share of the relevance; "spread": left out
            of the denominators, so that the other inputs get that share.
        product: of two activations: "half" gives each half, "paper" gives u / (u + u'), which
            depends on the units of u and u'.
        eps: added to denominators with their sign; absorbs a little relevance. The weight ratio
            with bias="neuron" and product="half" is a plain gradient without denominators; f(x) / x
            of non-linearities has the denominator x with any rule.
    """

    rule: Rule = "ratio"
    bias: Bias = "neuron"
    product: Product = "half"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for name, choices in (("rule", Rule), ("bias", Bias), ("product", Product)):
            if getattr(self, name) not in get_args(choices):
                wanted = " or ".join(map(repr, get_args(choices)))
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)!r}.")
        if not self.eps >= 0:
            raise ValueError(f"eps must be 0 or more, got {self.eps}.")


def nonlinearity(function: Torch, call: Call, options: Options, *, eps: float) -> Any:
    """Pass relevance through a non-linearity, or a product with a constant."""
    x, *others = call
    if not has_relevance(x) or has_relevance((*others, *options.values())):
        return refuse(function, call, options)
    overwritten = options.get("inplace") or any(other is True for other in others)
    given = x.detach().clone() if overwritten else x.detach()
    return pass_through(x, function(given, *others, **options), eps=eps)


def constant(function: Torch, call: Call, options: Options) -> Any:
    """Hold attention weights and standard deviations constant."""
    return function(*detached(call), **options)


def quotient(function: Torch, call: Call, options: Options) -> Any:
    """Hold the denominator of a quotient constant."""
    above, below, *others = call
    return function(above, detached(below), *others, **options)


def attention(function: Torch, call: Call, options: Options) -> Any:
    """Hold attention weights constant, so that only values have relevance."""
    q, k, v, *others = call
    return function(*detached((q, k)), v, *detached(others), **detached(options))


def layer_norm(function: Torch, call: Call, options: Options) -> Any:
    """Compute w (x - mean) / std + b with a constant standard deviation, linear in x."""
    norm = Norm.of(*call, **options)
    (scaled,) = plain_norm(norm, norm.x)
    return scaled if norm.bias is None else scaled + norm.bias


def refuse(function: Torch, call: Call, options: Options) -> Any:
    """Raise for a call that has no rule."""
    name = getattr(function, "__name__", str(function))
    raise ValueError(
        f"Relevance cannot be propagated through {name}: there is no rule for it. Let forward() "
        "return logits as they are, or leave sites before this layer out with where=."
    )


def product(function: Torch, call: Call, options: Options) -> Any:
    """Give half of the relevance to each of two multiplied activations."""
    if not _both_active(call):
        return function(*call, **options)
    a, b, *others = call
    return function(halve(a), halve(b), *others, **options)


def product_in_place(function: Torch, call: Call, options: Options) -> Any:
    """Refuse an in-place product of two activations: others would not see our gradient."""
    return refuse(function, call, options) if _both_active(call) else function(*call, **options)


def product_added(function: Torch, call: Call, options: Options, *, product: RuleOf) -> Any:
    """Compute s + a b, where a and b may both be activations."""
    total, a, b, *others = call
    if not _both_active((a, b)):
        return function(*call, **options)
    if function in (torch.addcmul, Tensor.addcmul) and not others:
        return total + options.get("value", 1) * product(torch.mul, (a, b), {})
    return function(total, halve(a), halve(b), *others, **options)


def linear(function: Torch, call: Call, options: Options) -> Any:
    """Compute x W^T + b or similar: the plain ratio, or a product if W is an activation."""
    if "weight" in options:
        call = call[0], options["weight"], *call[1:]
        options = {name: value for name, value in options.items() if name != "weight"}
    return product(function, call, options)


def product_as_printed(function: Torch, call: Call, options: Options, *, eps: float) -> Any:
    """Give u / (u + u') of the relevance to each of two multiplied activations."""
    if not _both_active(call):
        return function(*call, **options)
    a, b = call[:2]
    return redistribute(function(a, b, **options), lambda a, b: (a + b,), a, b, eps=eps)


def has_relevance(value: Any) -> bool:
    """Return whether relevance reaches a value, or one of a list of values."""
    if isinstance(value, list | tuple):
        return any(map(has_relevance, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, Tensor) and value.requires_grad


def detached(value: Any) -> Any:
    """Detach a tensor, or the tensors of a list of arguments or of arguments by name."""
    if isinstance(value, dict):
        return {name: _detached(item) for name, item in cast(Options, value).items()}
    if isinstance(value, list | tuple):
        return [_detached(item) for item in cast(list[Any], value)]
    return _detached(value)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


class Shares:
    """Rules with denominators: all of alpha-beta, and those of the ratio without biases."""

    def __init__(self, settings: Propagation, items: Callable[[], int | None]):
        self.settings, self.items = settings, items

    def linear(self, function: Torch, call: Call, options: Options) -> Any:
        """Compute x W^T + b."""
        x, weight, bias = _linear_arguments(*call, **options)
        if weight.requires_grad or not x.requires_grad:
            return linear(function, call, options)
        return self._linear(x, weight, bias)

    def addmm(self, function: Torch, call: Call, options: Options) -> Any:
        """Compute b + x W, a linear layer as in GPT-2."""
        bias, x, weight = call[:3]
        if options or bias.requires_grad or weight.requires_grad or not x.requires_grad:
            return product_added(function, call, options, product=product)
        return self._linear(x, weight.T, bias)

    def matmul(self, function: Torch, call: Call, options: Options) -> Any:
        """Compute the product of a constant and an activation, in either order."""
        a, b = call[:2]
        if _both_active(call) or options:
            return product(function, call, options)
        if self.settings.rule == "ratio":
            return function(a, b)
        if b.requires_grad:
            return self._shared(function(a, b), partial(_signed_product, _swapped(function), a), b)
        return self._shared(function(a, b), partial(_signed_product, function, b), a)

    def matmul_from_the_right(self, function: Torch, call: Call, options: Options) -> Any:
        """Compute v.__rmatmul__(A), which is A v."""
        return self.matmul(torch.matmul, (call[1], call[0]), options)

    def einsum(self, function: Torch, call: Call, options: Options) -> Any:
        """Compute an einsum of two factors, or of more with one activation."""
        equation, *factors = call
        if len(factors) == 1 and isinstance(factors[0], list | tuple):
            factors = [*factors[0]]
        if len(factors) == 2:
            return self.matmul(partial(function, equation), tuple(factors), options)
        if sum(map(has_relevance, factors)) > 1:
            return refuse(function, call, options)
        return function(equation, *factors, **options)

    def norm(self, function: Torch, call: Call, options: Options) -> Any:
        """Compute layer norm as a linear map with weights w_j (1[i = j] - 1/M) / std."""
        norm = Norm.of(*call, **options)
        result = layer_norm(function, call, options)
        if self.settings.rule == "ratio":
            return self._shared(result, partial(plain_norm, norm), norm.x)
        counted = norm.bias if self.settings.bias == "neuron" else None
        return self._shared(result, partial(signed_norm, norm, counted), norm.x)

    def addition(self, function: Torch, call: Call, options: Options) -> Any:
        """Add a residual connection: alpha-beta of the two summands."""
        a, b = call[:2]
        if options or not (isinstance(b, Tensor) and isinstance(a, Tensor) and a.shape == b.shape):
            return function(*call, **options)
        return self._shared(function(a, b), _signed_sum, a, b)

    def attention(self, function: Torch, call: Call, options: Options) -> Any:
        """Attend with constant weights, none of them negative."""
        q, k, value, *others = call
        return self.of_values(lambda v: attention(function, (q, k, v, *others), options), value)

    def of_values(self, attend: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
        """Share the relevance of an average of values among positive and negative values."""

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
        return redistribute(
            result, parts, *inputs, eps=self.settings.eps, rescaling=self._rescaling
        )

    def _rescaling(self) -> Rescaling:
        return Rescaling(self.settings.rule == "alpha_beta", self.items())


class Norm:
    """Call of layer_norm, with its arguments by name."""

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
        """Read the arguments of layer_norm, which some callers give by keyword."""
        width = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
        axes = tuple(range(-width, 0))
        variance = input.detach().var(axes, correction=0, keepdim=True)
        scale = (variance + eps).rsqrt()
        return Norm(input, axes, scale if weight is None else scale * weight, bias)


def plain_norm(norm: Norm, x: Tensor) -> tuple[Tensor, ...]:
    """Compute w (x - mean) / std, without the bias."""
    return ((x - x.mean(norm.axes, keepdim=True)) * norm.scale,)


def signed_norm(norm: Norm, bias: Tensor | None, x: Tensor) -> tuple[Tensor, ...]:
    """Return positive and negative contributions; x_j counts 1 - 1/M, any other x_i -1/M."""
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


def _swapped(function: Torch) -> Torch:
    return lambda x, weight: function(weight, x)


def _signed_product(times: Torch, weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Return positive and negative contributions to the product of x and a constant."""
    up, down = x.clamp(min=0), x.clamp(max=0)
    more, less = weight.clamp(min=0), weight.clamp(max=0)
    return times(up, more) + times(down, less), times(up, less) + times(down, more)


def _signed_sum(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return a.clamp(min=0) + b.clamp(min=0), a.clamp(max=0) + b.clamp(max=0)


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Read the arguments of a linear layer, which some callers give by keyword."""
    return input, weight, bias


def _both_active(call: Call) -> bool:
    """Return whether a product is of two activations. Leaves are gates, not activations."""
    factors = call[:2]
    return len(factors) == 2 and all(has_relevance(x) and not _is_leaf(x) for x in factors)


def _is_leaf(factor: Tensor) -> bool:
    origin = factor if factor._base is None else factor._base  # pyright: ignore
    return origin.is_leaf and origin.requires_grad
