"""Relevance of heads: how much of a logit comes through each (Voita et al., 2019, appendix A.3).

`linearised` gives a forward pass whose gradient is relevance: rules replace PyTorch's gradients.
"""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace as with_changes
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from headwise.analysis.importance import check_dependence, eval_with_gradients, item_gates, slopes
from headwise.analysis.propagation import rules
from headwise.analysis.propagation.redistribution import pass_through
from headwise.analysis.propagation.rules import (
    Bias,
    Product,
    Propagation,
    Rule,
    RuleOf,
    Shares,
    Torch,
)
from headwise.ops.attended import Attended
from headwise.sites import Attend, Site, Where, constant_parameters, find_sites, replace

Pick = Tensor | Callable[[Tensor], Tensor]
ACTIVATION = re.compile(r"elu|silu|swish|mish|activation", re.IGNORECASE)


def head_relevance(
    model: nn.Module,
    forward: Callable[[], Tensor],
    pick: Pick,
    *,
    rule: Rule = "ratio",
    bias: Bias = "neuron",
    product: Product = "half",
    eps: float = 1e-5,
    centred: bool = False,
    normalise: bool = True,
    where: Where = "*",
) -> dict[str, Float[Tensor, "N H"]]:
    """Compute what each head adds to chosen logits, by layer-wise relevance propagation.

    r_h = sum over the head's features and query positions of (out * coefficient) / |logit|, where
    the coefficient is the gradient of the logit in a model held linear at this input: attention
    weights and standard deviations of norms are constant, non-linearities pass relevance on, biases
    keep their share. With no biases and eps = 0, the heads of a site and the residual connection
    around it sum to the sign of the logit.

    Relevance is positive if a head raises the logit and negative if it lowers it, whatever the sign
    of the logit. Adding one number to all logits, which softmax ignores, changes neither signs nor
    order, and no normalised value. With rule="alpha_beta" or bias="spread" r_h is a share of the
    logit, with its sign. Alpha-beta shares are never negative; an output bias takes part in their
    denominators unless bias="spread".

    There is one forward pass and one backward pass for all heads of all layers, and one more for
    each further row of an item (the steps of one sentence). The model is left as it was.

    Args:
        model: anything with sites.
        forward: calls the model and returns logits, (B, T, V) or (B, C).
        pick: the logits, as rows (item, position, class), or (item, class) of a classifier; or a
            function from the logits to such rows, like `top_class(places)`.
        rule, bias, product, eps: see `Propagation`.
        centred: subtract the mean logit first. The paper does not; but softmax ignores what all
            logits share, and where that dominates (GPT-2) the plain share says little.
        normalise: divide by the sum of the site's absolute relevances instead of the logit, so that
            they sum to 1. If all are positive this is the paper's normalisation; it stays finite
            if signs differ. The only head of a site would always have 1 or -1, so it keeps r_h.
        where: the sites wanted.

    Returns:
        {site name: (N, H)}, one row per row picked. A site called several times in a pass has the
        sum. A head that adds nothing has 0. NaN marks NaN in the model, infinite relevance, and
        shares of a logit of exactly 0.
    """
    settings = Propagation(rule, bias, product, eps)
    with eval_with_gradients(model), constant_parameters(model):
        with linearised(model, settings) as mode, item_gates(model, where=where) as gates:
            logits = forward()
            if centred:
                logits = logits - logits.mean(-1, keepdim=True)
        check_dependence(logits, forward, "logits")
        mode.items = len(logits)
        rows = _checked(pick(logits.detach()) if callable(pick) else pick, logits)
        added = _sweeps(logits, rows, gates)
    logit_N1 = logits.detach()[tuple(rows.T)][:, None]
    # shares have the sign of the logit, sums have their own
    sign_N1 = 1 if rule == "ratio" and bias == "neuron" else logit_N1.sign()
    return {
        name: sign_N1 * _relative(added_NH, logit_N1, normalise=normalise)
        for name, added_NH in added.items()
    }


def top_class(places: Int[Tensor, "N P"]) -> Callable[[Tensor], Tensor]:
    """Return a `pick` for `head_relevance`: the highest logit at each (item, position) or (item,).

    >>> top_class(torch.tensor([[0, 1]]))(torch.tensor([[[5.0, 1.0], [0.0, 2.0]]]))
    tensor([[0, 1, 1]])
    """

    def pick(logits: Tensor) -> Tensor:
        places_NP = places.to(logits.device)
        best_N = logits[tuple(places_NP.T)].argmax(-1)
        return torch.cat([places_NP, best_N[:, None]], dim=1)

    return pick


def _checked(rows: Tensor, logits: Tensor) -> Tensor:
    if rows.dim() != 2 or rows.shape[1] != logits.dim() or rows.is_floating_point():
        raise ValueError(
            f"pick must name one logit a row, {logits.dim()} whole numbers each for logits of "
            f"shape {tuple(logits.shape)}, got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    return rows.to(logits.device)


def _sweeps(logits: Tensor, rows: Tensor, gates: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what heads add, in units of the logit, {site name: (N, H)}.

    One backward pass serves the first rows of all items, another the second rows, and so on.
    """
    found = {name: gate.new_zeros(len(rows), gate.shape[1]) for name, gate in gates.items()}
    rounds = _rounds(rows[:, 0].tolist())
    for number, chosen in enumerate(rounds):
        at = torch.tensor(chosen, device=rows.device)
        logit_N = logits[tuple(rows[at].T)]
        again = number < len(rounds) - 1
        for name, slope_BH in slopes(logit_N.sum(), gates, again=again).items():
            found[name][at] = slope_BH[rows[at, 0]]
    return found


def _rounds(items: Sequence[int]) -> list[list[int]]:
    """Group row numbers so that no group has two rows of one item.

    >>> _rounds([0, 0, 1, 0])
    [[0, 2], [1], [3]]
    """
    seen: dict[int, int] = {}
    rounds: list[list[int]] = []
    for row, item in enumerate(items):
        turn = seen.get(item, 0)
        seen[item] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(row)
    return rounds


def _relative(added_NH: Tensor, logit_N1: Tensor, *, normalise: bool) -> Tensor:
    apart = normalise and added_NH.shape[1] > 1
    size_N1 = added_NH.abs().sum(1, keepdim=True) if apart else logit_N1.abs()
    size_N1 = size_N1.masked_fill((size_N1 == 0) | size_N1.isinf(), torch.nan)
    return torch.where(added_NH == 0, 0, added_NH / size_N1)


class Linearised(TorchFunctionMode):
    """Mode in which calls of PyTorch follow the rules; calls without a rule are refused.

    Set `items` before a backward pass with alpha-beta.
    """

    def __init__(self, settings: Propagation):
        super().__init__()
        self.items: int | None = None  # in the batch; None: the first axis of every activation
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
        names = rules.ADDED.get(func, rules.POSITIONAL)
        call = *args, *(options.pop(name) for name in names if name in options)
        if not any(map(rules.has_relevance, call)):
            return func(*call, **options)
        return rule(func, call, options)

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Run calls of PyTorch without rules."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


def _plain(func: Torch, args: Any, options: dict[str, Any]) -> Any:
    """Run a call whose relevance is its gradient; raise if it is not known to be one."""
    result = func(*args, **options)
    if getattr(func, "__name__", "") in rules.PLAIN:
        return result
    parts: Any = result if isinstance(result, tuple | list) else (result,)
    if any(isinstance(part, Tensor) and part.grad_fn is not None for part in parts):
        return rules.refuse(func, args, options)
    return result


def _rules(settings: Propagation, shares: Shares) -> dict[Torch, RuleOf]:
    product = (
        partial(rules.product_as_printed, eps=settings.eps)
        if settings.product == "paper"
        else rules.product
    )
    plain: dict[Torch, RuleOf] = {
        **dict.fromkeys(rules.NONLINEAR, partial(rules.nonlinearity, eps=settings.eps)),
        **dict.fromkeys(rules.SCALED, partial(rules.nonlinearity, eps=0.0)),
        **dict.fromkeys(rules.CONSTANT, rules.constant),
        **dict.fromkeys(rules.QUOTIENTS, rules.quotient),
        **dict.fromkeys(rules.PRODUCTS, product),
        Tensor.mul_: rules.product_in_place,
        **dict.fromkeys(rules.MATRIX_PRODUCTS, shares.matmul),
        Tensor.__rmatmul__: shares.matmul_from_the_right,
        torch.einsum: shares.einsum,
        functional.linear: rules.linear,
        **dict.fromkeys(rules.WEIGHTED, rules.linear),
        **dict.fromkeys(rules.ADDED, partial(rules.product_added, product=product)),
        **dict.fromkeys(rules.LAYER_NORMS, rules.layer_norm),
        functional.scaled_dot_product_attention: rules.attention,
    }
    if settings.rule == "ratio" and settings.bias == "neuron":
        return plain
    divided: dict[Torch, RuleOf] = {
        functional.linear: shares.linear,
        **dict.fromkeys((torch.addmm, Tensor.addmm), shares.addmm),
        **dict.fromkeys(rules.LAYER_NORMS, shares.norm),
    }
    if settings.rule == "ratio":
        return plain | divided
    signed: dict[Torch, RuleOf] = dict.fromkeys(rules.SUMS, shares.addition)
    return plain | divided | signed | {functional.scaled_dot_product_attention: shares.attention}


@contextmanager
def linearised(
    model: nn.Module, settings: Propagation | None = None
) -> Generator[Linearised, None, None]:
    """Make a model's gradient carry relevance, for forward passes inside the `with` block.

    For any tensor x of such a pass, x * (gradient of the chosen logit by x) is its relevance, in
    units of the logit. Parameters have no gradients inside the block. Compute gradients after it.

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
    """Attend with constant weights."""
    constant = partial(op[0], *rules.detached((q, k)), **rules.detached(options))
    with mode.paused():
        if not (mode.signed and v.requires_grad):
            return constant(v)
        attended: Attended = constant(v.detach())
        return with_changes(
            attended, out=mode.shares.of_values(lambda value: constant(value).out, v)
        )


def _ignore_activations(model: nn.Module, eps: float) -> list[RemovableHandle]:
    """Treat each activation module as one non-linearity, however it is composed."""
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
        return pass_through(x, output, eps=eps) if x.requires_grad else output

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
