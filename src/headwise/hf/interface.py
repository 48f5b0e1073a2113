"""The function that stands in transformers' attention interface and calls our sites.

It is registered under one neutral name for each host backend, together with that backend's own
mask function, so that the host computes what it would have computed without us.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from headwise.hf.masks import eager_mask_or_none, only_hides, sdpa_mask_or_none, stored_once
from headwise.hf.naming import interface_forward
from headwise.ops.attended import Attended
from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Scores
from headwise.sites import Site, in_backward

MASKS: dict[str, Callable[..., Any]] = {"eager": eager_mask_or_none, "sdpa": sdpa_mask_or_none}
# an additive mask hides by this or less: -10,000 as people write it, also as bfloat16 rounds it
HIDING = -9e3
PREFIX = "headwise_over_"  # no backend's name at its start: transformers treats some specially

# Arguments of the host that change the scores and that we do not follow.
SCORE_CHANGING = frozenset({"softcap", "s_aux", "indices", "block_indices", "sinks", "score_mod"})
# Arguments that leave the scores alone, or act through the mask that is handed to us.
HARMLESS = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "is_causal",
        "layer_idx",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
        "use_top_left_mask",
    }
)


class Host(NamedTuple):
    """Where a module's file looks its attention function up."""

    registry: Any  # an AttentionInterface
    eager: Callable[..., tuple[Tensor, Tensor | None]]

    @staticmethod
    def of(kind: type[nn.Module]) -> "Host":
        """Read from the file in which the class's attention is written."""
        forward = interface_forward(kind)
        assert forward is not None
        names = forward.__globals__
        if "eager_attention_forward" not in names:
            raise ValueError(
                f"{kind.__name__} has an eager attention of its own, under a name that headwise "
                "does not know, so it cannot be adopted."
            )
        return Host(names["ALL_ATTENTION_FUNCTIONS"], names["eager_attention_forward"])

    def function(self, backend: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """What the host itself would call."""
        return self.registry.get_interface(backend, self.eager)


class Visibility(NamedTuple):
    """A host's mask in our terms."""

    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    first: int  # where the first query stands among the keys


@dataclass(frozen=True, eq=False)
class HostCall:
    """One attention computation as the host asked for it."""

    module: nn.Module
    site: Site
    backend: str
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Tensor | None
    scaling: float | None
    dropout: float
    others: dict[str, Any]  # arguments of this host, by name


def register() -> None:
    """Make our names known to transformers. Doing it twice changes nothing."""
    for backend, mask_function in MASKS.items():
        AttentionInterface.register(PREFIX + backend, FUNCTIONS[backend])
        AttentionMaskInterface.register(PREFIX + backend, mask_function)


def resolves_to_us(kind: type[nn.Module], backend: str) -> bool:
    """False when something else has taken our name in the registry this class reads."""
    return Host.of(kind).function(PREFIX + backend) is FUNCTIONS[backend]


def _attend_at_site(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    backend: str,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    site: Site | None = module.__dict__.get("site")
    if site is not None and site.replacements:
        return _replaced(
            HostCall(
                module, site, backend, query, key, value, attention_mask, scaling, dropout, others
            )
        )
    # a model that shares its configuration with an adopted one has no site, and no host noted
    host: Host = module.__dict__.get("host") or Host.of(type(module))
    out_BQHE, weights = host.function(backend)(
        module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others
    )
    if site is not None and _somebody_looks(site):
        call = HostCall(
            module, site, backend, query, key, value, attention_mask, scaling, dropout, others
        )
        scores = _scores(call)
        site.hand_on(scores)
        if site.watchers:
            site.show(Attended(out_BQHE.transpose(1, 2), scores, softmax_rows))
    if site is not None and site.gates:
        out_BQHE = site.gated(out_BQHE.transpose(1, 2)).transpose(1, 2).contiguous()
    return out_BQHE, weights


def _somebody_looks(site: Site) -> bool:
    """Whether scores are wanted, which may cost a look at the mask; taps are for gradients."""
    wanted = site.watchers or (site.taps and torch.is_grad_enabled())
    return bool(wanted) and not in_backward()


FUNCTIONS = {backend: partial(_attend_at_site, backend=backend) for backend in MASKS}


def _replaced(call: HostCall) -> tuple[Tensor, Tensor | None]:
    refuse_unknown(call)
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
    )
    call.site.show(attended)
    call.site.hand_on(attended.scores)
    out_BQHE = call.site.gated(attended.out).transpose(1, 2).contiguous()
    wanted = call.backend == "eager" and _attentions_wanted()
    return out_BQHE, attended.weights if wanted else None


def _attentions_wanted() -> bool:
    """Whether somebody called the model with output_attentions=True."""
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()  # pyright: ignore[reportPrivateUsage]
    return any("attentions" in name for name in collected or ())


def _unusual(scaling: float | None, width: int) -> float | None:
    """None for the scale all ops use anyway, so that ops which take no scale can replace hosts."""
    return None if scaling is not None and math.isclose(scaling, width**-0.5) else scaling


def _scores(call: HostCall) -> Scores:
    refuse_unknown(call)
    seen = visibility(call)
    return Scores(
        call.query,
        call.key,
        seen.mask,
        seen.bias,
        seen.causal,
        scale=call.scaling,
        first=seen.first,
    )


def refuse_unknown(call: HostCall) -> None:
    """Raise if the host changes scores in a way that we would miss."""
    given = {
        name for name, value in call.others.items() if value is not None and value is not False
    }
    unknown = given - HARMLESS - {"position_bias"}
    changing = unknown & SCORE_CHANGING
    if unknown:
        why = "changes the scores" if changing else "may change the scores"
        name = min(changing or unknown)
        raise ValueError(
            f"{call.site.name} attends with {name}=, which {why} and which headwise does not "
            "follow; this site cannot be observed or replaced. Leave it out with where=."
        )


def visibility(call: HostCall) -> Visibility:
    """Translate the host's mask: boolean or additive, or None with a causal flag under sdpa."""
    bias = call.others.get("position_bias")
    given = call.attention_mask
    if given is None:
        return _without_mask(call, bias)
    mask = stored_once(given)
    if mask.dtype != torch.bool:
        additive = mask
        mask = additive > HIDING
        added = additive.masked_fill(~mask, 0)
        if not only_hides(given, added):
            bias = added if bias is None else bias + added
    first = _first_position(call, mask)
    return Visibility(mask, bias, _is_last(call, first), first)


def _first_position(call: HostCall, mask: Tensor) -> int:
    """Where the first query stands: in cached decoding the last one sees its own key, and no later.

    Batch items may be padded on the left, so the furthest of all counts.
    """
    n_queries, n_keys = call.query.shape[2], call.key.shape[2]
    if n_queries == n_keys or not _looks_back(call):
        return 0
    last_key = mask[..., -1, :].flatten(0, -2).any(dim=0).nonzero()
    return int(last_key[-1]) - (n_queries - 1) if len(last_key) else n_keys - n_queries


def _looks_back(call: HostCall) -> bool:
    """Whether this is a decoder's self-attention, whose keys may come from a cache."""
    return call.site.keys == call.site.queries == "decoder"


def _is_last(call: HostCall, first: int) -> bool:
    """Whether a lone query stands at the last key; `causal` then hides nothing and says so."""
    n_queries, n_keys = call.query.shape[2], call.key.shape[2]
    return _looks_back(call) and n_queries == 1 and first == n_keys - 1


def _without_mask(call: HostCall, bias: Tensor | None) -> Visibility:
    """No mask: eager then sees everything; sdpa obeys the causal flag, counted from position 0."""
    n_queries, n_keys = call.query.shape[2], call.key.shape[2]
    is_causal = call.others.get("is_causal")
    if is_causal is None:
        is_causal = getattr(call.module, "is_causal", True)
    if n_queries == 1 and _looks_back(call):
        return Visibility(None, bias, True, n_keys - 1)
    if call.backend == "eager" or not is_causal or n_queries == 1:
        return Visibility(None, bias, False, 0)
    if n_queries == n_keys:
        return Visibility(None, bias, True, 0)
    position_K = torch.arange(n_keys, device=call.query.device)
    mask = (position_K <= position_K[:n_queries, None])[None, None]
    return Visibility(mask, bias, False, 0)


def placeholder(*_: Any, **__: Any) -> Attended:
    """What a host's site is born with: the host computes, so nobody calls this."""
    raise AssertionError("an adopted site is computed by its host")
