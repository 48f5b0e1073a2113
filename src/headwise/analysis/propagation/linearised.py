"""A forward pass whose gradient is relevance: rules put in the place of PyTorch's own gradients."""

import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace as with_changes
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from headwise.analysis._gates import constant_parameters
from headwise.analysis.propagation import calls, rules
from headwise.analysis.propagation.redistribution import passed_on
from headwise.analysis.propagation.rules import RuleOf, Shares, Torch
from headwise.analysis.propagation.settings import Propagation
from headwise.ops.attended import Attended
from headwise.sites import Attend, Site, find_sites, replace

ACTIVATION = re.compile(r"elu|silu|swish|mish|activation", re.IGNORECASE)


class Linearised(TorchFunctionMode):
    """Answers PyTorch's calls by the rules, and refuses those that have none.

    Set `items` before a backward pass with alpha-beta.
    """

    def __init__(self, settings: Propagation):
        super().__init__()
        self.items: int | None = None  # of the batch; None: the first axis of every activation
        self.shares = Shares(settings, lambda: self.items)
        self.signed = settings.rule == "alpha_beta"
        self.eps = settings.eps
        self._rules = _rules(settings, self.shares)
        self._paused = False

    def __torch_function__(
        self, func: Torch, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        rule = self._rules.get(func)
        options = dict(kwargs or {})
        if self._paused or not torch.is_grad_enabled():
            return func(*args, **options)
        if rule is None:
            return _plain(func, args, options)
        names = calls.ADDED.get(func, calls.FIRST)
        call = *args, *(options.pop(name) for name in names if name in options)
        if not any(map(rules.active, call)):
            return func(*call, **options)
        return rule(func, call, options)

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """PyTorch as it is."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


def _plain(func: Torch, args: Any, options: dict[str, Any]) -> Any:
    """A call whose relevance is its gradient; refused if it is not known to be one."""
    result = func(*args, **options)
    if getattr(func, "__name__", "") in calls.PLAIN:
        return result
    parts: Any = result if isinstance(result, tuple | list) else (result,)
    if any(isinstance(part, Tensor) and part.grad_fn is not None for part in parts):
        return rules.refused(func, args, options)
    return result


def _rules(settings: Propagation, shares: Shares) -> dict[Torch, RuleOf]:
    product = (
        partial(rules.product_as_printed, eps=settings.eps)
        if settings.product == "paper"
        else rules.product
    )
    plain: dict[Torch, RuleOf] = {
        **dict.fromkeys(calls.IGNORED, partial(rules.ignored, eps=settings.eps)),
        **dict.fromkeys(calls.SCALED, partial(rules.ignored, eps=0.0)),
        **dict.fromkeys(calls.CONSTANT, rules.constant),
        **dict.fromkeys(calls.QUOTIENTS, rules.quotient),
        **dict.fromkeys(calls.PRODUCTS, product),
        Tensor.mul_: rules.product_in_place,
        **dict.fromkeys(calls.MATRIX_PRODUCTS, shares.matmul),
        Tensor.__rmatmul__: shares.matmul_from_the_right,
        torch.einsum: shares.einsum,
        functional.linear: rules.linear,
        **dict.fromkeys(calls.WEIGHTED, rules.linear),
        **dict.fromkeys(calls.ADDED, partial(rules.product_added, product=product)),
        **dict.fromkeys(calls.LAYER_NORMS, rules.layer_norm),
        functional.scaled_dot_product_attention: rules.attention,
    }
    if settings.rule == "ratio" and settings.bias == "neuron":
        return plain
    divided: dict[Torch, RuleOf] = {
        functional.linear: shares.linear,
        **dict.fromkeys((torch.addmm, Tensor.addmm), shares.addmm),
        **dict.fromkeys(calls.LAYER_NORMS, shares.norm),
    }
    if settings.rule == "ratio":
        return plain | divided
    signed: dict[Torch, RuleOf] = dict.fromkeys(calls.SUMS, shares.addition)
    return plain | divided | signed | {functional.scaled_dot_product_attention: shares.attention}


@contextmanager
def linearised(
    model: nn.Module, settings: Propagation | None = None
) -> Generator[Linearised, None, None]:
    """Make a model's gradient carry relevance, for forward passes inside the `with` block.

    For any tensor x of such a pass, x * (gradient of the chosen logit by x) is its relevance, in
    units of the logit. Parameters have no gradients meanwhile; everything is undone afterwards.
    Compute gradients after the block.

        with linearised(model):
            logits = model(tokens)
        (coefficient,) = torch.autograd.grad(logits[0, -1, 7], state)
        relevance = state * coefficient

    Args:
        model: anything with sites, in eval mode.
        settings: the rules, see `Propagation`.
    """
    mode = Linearised(settings or Propagation())
    with ExitStack() as stack:
        stack.enter_context(constant_parameters(model))
        for site in find_sites(model):
            if not site.hosted or site.replacements:
                attend = partial(_attend, site.replacements[-1:] or [site.attend], mode)
                stack.enter_context(replace(model, attend, where=_only(site)))
        for handle in _ignore_activations(model, mode.eps):
            stack.callback(handle.remove)
        stack.enter_context(mode)
        yield mode


def _only(site: Site) -> Callable[[Site], bool]:
    return lambda other: other is site


def _attend(
    op: list[Attend],
    mode: Linearised,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: Any,
) -> Attended:
    """An op of ours with its weights held constant."""
    constant = partial(op[0], rules.held(q), rules.held(k), **rules.held_options(options))
    with mode.paused():
        if not (mode.signed and v.requires_grad):
            return constant(v)
        attended: Attended = constant(v.detach())
        return with_changes(
            attended, out=mode.shares.of_values(lambda value: constant(value).out, v)
        )


def _ignore_activations(model: nn.Module, eps: float) -> list[RemovableHandle]:
    """Activation modules as one non-linearity each, however they are composed."""
    handles: list[RemovableHandle] = []
    for module in model.modules():
        if ACTIVATION.search(type(module).__name__) and not any(True for _ in module.parameters()):
            handles += _ignore(module, eps)
    return handles


def _ignore(module: nn.Module, eps: float) -> list[RemovableHandle]:
    waiting: list[Tensor] = []

    def enter(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        waiting.append(inputs[0])
        given = inputs[0].detach()
        return given.clone() if getattr(module, "inplace", False) else given, *inputs[1:]

    def leave(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        x = waiting.pop()
        return passed_on(x, output, eps=eps) if x.requires_grad else output

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
