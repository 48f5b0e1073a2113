"""Sites in transformers' attention interface.

A host asks the interface for a function by name, `get_interface(name, default)`, and calls it with
its attention module as the first argument. Importing this module wraps `get_interface` once: what
it returns calls the same function, at the module's site if it has one. No configuration is
touched, so a model without sites, or built from an adopted model's configuration, is itself.
"""

import math
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from headwise.hf.backends import (
    ADAPTER,
    Attention,
    HostCall,
    check_followed,
    classify,
    extras_of,
    scores_of,
    visibility,
)
from headwise.hf.masks import tag_masks
from headwise.ops.attended import Attended
from headwise.ops.rows import softmax_rows
from headwise.sites import Site, in_backward

WRAPPED = "headwise_wraps"  # the attribute of our get_interface that names transformers' own


def install() -> None:
    """Wrap `AttentionInterface.get_interface`. Doing it twice changes nothing."""
    own = AttentionInterface.get_interface
    if hasattr(own, WRAPPED):
        return

    def get_interface(
        self: AttentionInterface, attn_implementation: str | None, default: Attention
    ) -> Attention:
        function = own(self, cast(str, attn_implementation), default)
        routed = _routed if torch.compiler.is_compiling() else _routed_once
        return routed(attn_implementation or "eager", function, function is default)

    setattr(get_interface, WRAPPED, own)
    AttentionInterface.get_interface = get_interface
    tag_masks()


def is_installed() -> bool:
    """Whether hosts still reach us: another tool may have put its own function there."""
    return hasattr(AttentionInterface.get_interface, WRAPPED)


def _routed(name: str, function: Attention, is_default: bool) -> Attention:
    """The same function, at the site of the module it is called with."""
    return partial(_attend_at_site, name=name, function=function, is_default=is_default)


_routed_once = cache(_routed)  # compiled graphs do without: they would watch the cache change


def _attend_at_site(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *positional: Any,
    name: str,
    function: Attention,
    is_default: bool,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    # not module.__dict__: compiled graphs notice a new attribute, not a new key
    site = getattr(module, "site", None)
    if not isinstance(site, Site):
        return function(module, query, key, value, attention_mask, *positional, **others)
    site.mark_called()
    if not site.changes:
        return function(module, query, key, value, attention_mask, *positional, **others)
    named = dict(others)
    scaling, dropout = named.pop("scaling", None), named.pop("dropout", 0.0)
    call = HostCall(
        module,
        site,
        name,
        classify(name, function, is_default),
        query,
        key,
        value,
        attention_mask,
        scaling,
        dropout,
        named,
    )
    if site.replacements:
        return _replaced(call)
    out_BQHE, weights = _own(call, function, *positional, **others)
    if _somebody_looks(site):
        scores = scores_of(call)
        site.hand_on(scores)
        if site.watchers:
            site.show(Attended(out_BQHE.transpose(1, 2), scores, softmax_rows))
    if site.gates:
        out_BQHE = site.gated(out_BQHE.transpose(1, 2)).transpose(1, 2).contiguous()
    return out_BQHE, weights


def attend_in_adapter(
    module: nn.Module,
    function: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float,
    dropout: float,
    position_bias: Tensor | None,
    output_attentions: bool,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend at the site of a module that does not ask the interface, see `headwise.hf.adapters`.

    Args:
        module: that has the site.
        function: computes what the host computes, called like transformers' attention functions.
        query: of shape (B, H, Q, D), as keys and values.
        key: as many heads.
        value: as many heads.
        mask: boolean, True where a query attends, or added to scores.
        scaling: of the product of queries and keys.
        dropout: of weights, 0 when evaluated.
        position_bias: added to scores, (B, H, Q, K).
        output_attentions: whether the host returns weights.
        others: more arguments of the function.
    """
    given = {"scaling": scaling, "dropout": dropout, "position_bias": position_bias, **others}
    return _attend_at_site(
        module,
        query,
        key,
        value,
        mask,
        name=ADAPTER,
        function=function,
        is_default=False,
        output_attentions=output_attentions,
        **given,
    )


def _own(
    call: HostCall, function: Attention, *positional: Any, **others: Any
) -> tuple[Tensor, Tensor | None]:
    """Let the host's function compute. An unknown one may ask the interface for another itself."""
    arguments = call.module, call.query, call.key, call.value, call.attention_mask, *positional
    if call.backend.kind != "unknown":
        return function(*arguments, **others)
    del call.module.__dict__["site"]
    try:
        return function(*arguments, **others)
    finally:
        call.module.__dict__["site"] = call.site


def _somebody_looks(site: Site) -> bool:
    """Whether scores are wanted, which may cost a look at the mask; taps are for gradients."""
    wanted = site.watchers or (site.taps and torch.is_grad_enabled())
    return bool(wanted) and not in_backward()


def _replaced(call: HostCall) -> tuple[Tensor, Tensor | None]:
    check_followed(call)
    seen = visibility(call)
    attended = call.site.replacements[-1](
        call.query,
        call.key,
        call.value,
        mask=seen.mask,
        bias=seen.bias,
        causal=seen.causal,
        lengths=None,
        scale=_unusual(call.scaling, call.query.shape[-1]),
        dropout=call.dropout,
        **extras_of(call),
    )
    call.site.show(attended)
    call.site.hand_on(attended.scores)
    out_BQHE = call.site.gated(attended.out).transpose(1, 2).contiguous()
    return out_BQHE, attended.weights if _attentions_wanted(call) else None


def _attentions_wanted(call: HostCall) -> bool:
    """Whether the weights that attention returns, if it does, are kept by the host.

    An adapter is told so. Most hosts have a collector, which says so. Without one the host itself
    may use them.
    """
    if call.backend.kind != "eager":
        return call.backend.kind == "adapter" and call.others["output_attentions"]
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()  # pyright: ignore[reportPrivateUsage]
    return collected is None or any("attentions" in name for name in collected)


def _unusual(scaling: float | None, width: int) -> float | None:
    """None for the scale all ops use anyway, so that ops which take no scale can replace hosts."""
    return None if scaling is not None and math.isclose(scaling, width**-0.5) else scaling


def placeholder(*_: Any, **__: Any) -> Attended:
    """Stand for the op of a host's site: the host computes, so nobody calls this.

    Unpickling an adopted model looks it up here, which installs the interface.
    """
    raise AssertionError("an adopted site is computed by its host")


install()
