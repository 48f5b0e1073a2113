"""Attention at sites, through transformers' attention interface.

A host asks the interface for a function by name, `get_interface(name, default)`, and calls it with
its attention module as the first argument. Importing this module wraps `get_interface` once: what
it returns calls the same function, at the module's site if it has one. No configuration is
touched, so a model without sites, or built from an adopted model's configuration, is unchanged.
"""

import inspect
import math
import threading
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from headwise.hf.backends import (
    ADAPTER,
    Attention,
    Backend,
    HostCall,
    check_followed,
    classify,
    extras_of,
    scores_of,
    tag_masks,
    visibility,
)
from headwise.ops.attended import Attended
from headwise.ops.rows import softmax_rows
from headwise.sites import Attend, Site, in_backward

WRAPPED = "headwise_wraps"  # the attribute of our get_interface that names transformers' own
ROUTED = "headwise_routes"  # the attribute of an attention function that caches its routed form
ORIGINAL = getattr(AttentionInterface.get_interface, WRAPPED, AttentionInterface.get_interface)


class Request(NamedTuple):
    """Attention function that a host asked the interface for.

    Args:
        name: of the backend.
        function: that transformers found.
        is_default: whether it is the eager attention of the host's own file.
    """

    name: str
    function: Attention
    is_default: bool


class _Running(threading.local):
    """Modules whose unknown attention function runs in this thread; it may ask for another."""

    def __init__(self) -> None:
        self.modules: set[int] = set()


_running = _Running()


def install() -> None:
    """Wrap `AttentionInterface.get_interface`, unless another tool has replaced it."""
    if AttentionInterface.get_interface is not ORIGINAL:
        return

    def get_interface(
        self: AttentionInterface, attn_implementation: str | None, default: Attention
    ) -> Attention:
        function = ORIGINAL(self, cast(str, attn_implementation), default)
        return _routed(Request(attn_implementation or "eager", function, function is default))

    setattr(get_interface, WRAPPED, ORIGINAL)
    AttentionInterface.get_interface = get_interface
    tag_masks()


def is_installed() -> bool:
    """Return whether the wrapper is in place; another tool may have replaced it."""
    return hasattr(AttentionInterface.get_interface, WRAPPED)


def _routed(asked: Request) -> Attention:
    """Return the requested function, wrapped to attend at the site of the module it gets.

    The wrapped form is cached on the function, so that a host gets the same one each time. Compiled
    graphs do not cache it, because that would compile them again.
    """
    if torch.compiler.is_compiling() or not isinstance(asked.function, FunctionType):
        return partial(_attend_at_site, asked)
    kept: dict[tuple[str, bool], Attention] = asked.function.__dict__.setdefault(ROUTED, {})
    key = asked.name, asked.is_default
    if key not in kept:
        kept[key] = partial(_attend_at_site, asked)
    return kept[key]


def _attend_at_site(
    asked: Request,
    module: nn.Module,
    /,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *positional: Any,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    arguments = module, query, key, value, attention_mask, *positional
    # getattr, not module.__dict__: compiled graphs notice a new attribute, not a new key
    site = getattr(module, "site", None)
    if not isinstance(site, Site) or _runs_already(module):
        return asked.function(*arguments, **others)
    site.mark_called()
    if not site.changes:
        return asked.function(*arguments, **others)
    named = dict(others)
    scaling, dropout = named.pop("scaling", None), named.pop("dropout", 0.0)
    # nobody knows what more positional arguments mean
    backend = Backend("unknown") if positional else classify(*asked)
    start = module, site, asked.name, backend
    call = HostCall(*start, query, key, value, attention_mask, scaling, dropout, named)
    if site.replacements:
        return _replaced(call)
    out, weights = _run_host(call, asked.function, arguments, others)
    if _scores_wanted(site):
        scores = scores_of(call)
        site.call_taps(scores)
        if site.watchers:
            site.show(Attended(out.transpose(1, 2), scores, softmax_rows))
    return (_gated(call, out) if site.gates else out), weights


def _runs_already(module: nn.Module) -> bool:
    """Return whether an attention function of this module is running and asked again."""
    return not torch.compiler.is_compiling() and id(module) in _running.modules


def _run_host(
    call: HostCall, function: Attention, arguments: tuple[Any, ...], others: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Run the host's function. An unknown one may ask the interface for another itself."""
    if call.backend.kind != "unknown" or torch.compiler.is_compiling():
        return function(*arguments, **others)
    _running.modules.add(id(call.module))
    try:
        return function(*arguments, **others)
    finally:
        _running.modules.discard(id(call.module))


def _gated(call: HostCall, out: Tensor) -> Tensor:
    """Apply gates to an output of shape (B, Q, H, E), (B, Q, H * E) or, paged, (T, H, E)."""
    heads = call.site.num_heads
    by_head = out
    if out.dim() == 3:
        by_head = out[None] if call.backend.kind == "paged" else out.unflatten(2, (heads, -1))
    if by_head.dim() != 4 or by_head.shape[2] != heads:
        raise ValueError(
            f"The attention function {call.name!r} of {call.site.name} returns {tuple(out.shape)}, "
            f"which does not show the {heads} heads, so they cannot be masked or gated."
        )
    gated = call.site.gated(by_head.transpose(1, 2)).transpose(1, 2).contiguous()
    return gated.view(out.shape)


def attend_in_adapter(
    module: nn.Module,
    function: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend at the site of a module with an adapter, which does not ask the interface.

    Args:
        module: with the site.
        function: computes what the host computes, called like transformers' attention functions.
        query: (B, H, Q, D).
        key: (B, H, K, D).
        value: (B, H, K, E).
        mask: boolean, True where a query attends, or added to scores.
        others: `scaling`, `dropout`, `position_bias` (B, H, Q, K), `output_attentions` (whether
            the host returns weights), and more arguments of the function.
    """
    asked = Request(ADAPTER, function, is_default=False)
    return _attend_at_site(asked, module, query, key, value, mask, **others)


def _scores_wanted(site: Site) -> bool:
    """Return whether watchers or taps want scores, which may cost reading the mask."""
    wanted = site.watchers or (site.taps and torch.is_grad_enabled())
    return bool(wanted) and not in_backward()


def _replaced(call: HostCall) -> tuple[Tensor, Tensor | None]:
    check_followed(call)
    seen, extras, op = visibility(call), extras_of(call), call.site.replacements[-1]
    if extras and not torch.compiler.is_compiling():
        _check_takes(op, extras, call.site)
    attended = op(
        call.query,
        call.key,
        call.value,
        mask=seen.mask,
        bias=seen.bias,
        causal=seen.causal,
        lengths=None,
        scale=_unusual(call.scaling, call.query.shape[-1]),
        dropout=call.dropout,
        **extras,
    )
    call.site.show(attended)
    call.site.call_taps(attended.scores)
    out_BQHE = call.site.gated(attended.out).transpose(1, 2).contiguous()
    return out_BQHE, attended.weights if _attentions_wanted(call) else None


def _check_takes(op: Attend, extras: dict[str, Any], site: Site) -> None:
    """Raise if an op does not take the cap or the sink of a host."""
    known = inspect.signature(op).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    if missing := [name for name in extras if name not in known]:
        raise ValueError(
            f"{site.name} computes with {' and '.join(f'{name}=' for name in missing)}, which the "
            "op that replaces it does not take. Give it that argument, or leave this site out with "
            "where=."
        )


def _attentions_wanted(call: HostCall) -> bool:
    """Return whether the host keeps the weights that attention returns.

    An adapter gets an argument that says so, and most hosts have a collector. Without a collector
    the host itself may use them.
    """
    if call.backend.kind != "eager":
        return call.backend.kind == "adapter" and call.others["output_attentions"]
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()  # pyright: ignore[reportPrivateUsage]
    return collected is None or any("attentions" in name for name in collected)


def _unusual(scaling: float | None, width: int) -> float | None:
    """Return None for the default scale, so that ops which take no scale can replace hosts."""
    return None if scaling is not None and math.isclose(scaling, width**-0.5) else scaling


def placeholder(*_: Any, **__: Any) -> Attended:
    """Stand for the op of a host's site; the host computes, so nobody calls this.

    Unpickling an adopted model imports it from here, which installs the wrapper.
    """
    raise AssertionError("an adopted site is computed by its host")


install()
