"""The function that stands in transformers' attention interface and calls our sites.

It is registered under one neutral name for each host backend, together with that backend's own
mask function, so that the host computes exactly what it would have computed without us.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from headwise.ops.attended import Attended
from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Scores
from headwise.sites import Site

MASKS: dict[str, Callable[..., Any]] = {"eager": eager_mask, "sdpa": sdpa_mask}
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
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
        "use_top_left_mask",
    }
)


class Visibility(NamedTuple):
    """A host's mask in our terms."""

    mask: Tensor | None
    bias: Tensor | None
    causal: bool


def register() -> None:
    """Make our names known to transformers. Doing it twice changes nothing."""
    for backend, mask_function in MASKS.items():
        AttentionInterface.register(PREFIX + backend, FUNCTIONS[backend])
        AttentionMaskInterface.register(PREFIX + backend, mask_function)


def host_function(module: nn.Module, backend: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function the host itself would have called."""
    file = sys.modules[type(module).__module__]
    return file.ALL_ATTENTION_FUNCTIONS.get_interface(backend, file.eager_attention_forward)


def resolves_to_us(module: nn.Module, backend: str) -> bool:
    """False when something else has taken our name in the registry this module reads."""
    return host_function(module, PREFIX + backend) is FUNCTIONS[backend]


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
    **host_arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    site: Site | None = module.__dict__.get("site")
    if site is not None and site.replacements:
        return _replaced(
            site,
            module,
            query,
            key,
            value,
            attention_mask,
            backend,
            scaling,
            dropout,
            host_arguments,
        )
    out_BQHE, weights = host_function(module, backend)(
        module,
        query,
        key,
        value,
        attention_mask,
        scaling=scaling,
        dropout=dropout,
        **host_arguments,
    )
    if site is None:  # a model that shares its configuration with an adopted one
        return out_BQHE, weights
    if site.watchers:
        scores = _scores(site, module, query, key, attention_mask, backend, scaling, host_arguments)
        site.show(Attended(out_BQHE.transpose(1, 2), scores, softmax_rows))
    if site.gates:
        out_BQHE = site.gated(out_BQHE.transpose(1, 2)).transpose(1, 2).contiguous()
    return out_BQHE, weights


FUNCTIONS = {backend: partial(_attend_at_site, backend=backend) for backend in MASKS}


def _replaced(
    site: Site,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    backend: str,
    scaling: float | None,
    dropout: float,
    host_arguments: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    refuse_unknown(site, host_arguments)
    seen = visibility(module, query, key, attention_mask, backend, host_arguments)
    attended = site.replacements[-1](
        query,
        key,
        value,
        mask=seen.mask,
        bias=seen.bias,
        causal=seen.causal,
        lengths=None,
        scale=_unusual(scaling, query.shape[-1]),
        dropout=dropout,
    )
    site.show(attended)
    out_BQHE = site.gated(attended.out).transpose(1, 2).contiguous()
    # eager hosts hand their weights on, so that output_attentions keeps working
    return out_BQHE, attended.weights if backend == "eager" else None


def _unusual(scaling: float | None, width: int) -> float | None:
    """None for the scale all ops use anyway, so that ops which take no scale can replace hosts."""
    return None if scaling is not None and math.isclose(scaling, width**-0.5) else scaling


def _scores(
    site: Site,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    backend: str,
    scaling: float | None,
    host_arguments: dict[str, Any],
) -> Scores:
    refuse_unknown(site, host_arguments)
    seen = visibility(module, query, key, attention_mask, backend, host_arguments)
    return Scores(query, key, seen.mask, seen.bias, seen.causal, scale=scaling)


def refuse_unknown(site: Site, host_arguments: dict[str, Any]) -> None:
    """Raise if the host changes scores in a way that we would miss."""
    given = {name for name, value in host_arguments.items() if value is not None}
    unknown = given - HARMLESS - {"position_bias"}
    changing = unknown & SCORE_CHANGING
    if unknown:
        why = "changes the scores" if changing else "may change the scores"
        name = min(changing or unknown)
        raise ValueError(
            f"{site.name} attends with {name}=, which {why} and which headwise does not follow; "
            "this site cannot be observed or replaced. Leave it out with where=."
        )


def visibility(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    backend: str,
    host_arguments: dict[str, Any],
) -> Visibility:
    """Translate the host's mask: boolean or additive, or None with a causal flag under sdpa."""
    bias = host_arguments.get("position_bias")
    if attention_mask is None:
        return _without_mask(module, query, key, backend, host_arguments.get("is_causal"), bias)
    if attention_mask.dtype == torch.bool:
        return Visibility(attention_mask, bias, False)
    mask = attention_mask > torch.finfo(attention_mask.dtype).min / 2
    added = attention_mask.masked_fill(~mask, 0)
    return Visibility(mask, added if bias is None else bias + added, False)


def _without_mask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    backend: str,
    is_causal: bool | None,
    bias: Tensor | None,
) -> Visibility:
    """No mask: eager then sees everything; sdpa obeys the causal flag, counted from position 0."""
    n_queries, n_keys = query.shape[2], key.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if backend == "eager" or not is_causal or n_queries == 1:
        return Visibility(None, bias, False)
    if n_queries == n_keys:
        return Visibility(None, bias, True)
    position_K = torch.arange(n_keys, device=query.device)
    return Visibility((position_K <= position_K[:n_queries, None])[None, None], bias, False)


def placeholder(*_: Any, **__: Any) -> Attended:
    """What a host's site is born with: the host computes, so nobody calls this."""
    raise AssertionError("an adopted site is computed by its host")
