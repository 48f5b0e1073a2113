"""What the configuration of a pruned Hugging Face model can truthfully say.

A configuration has one number of heads for all layers. Where every layer has the same number left,
and the model takes the width of a head from its configuration, the new numbers are written there:
such a model loads with `from_pretrained` as well. Few hosts take numbers by layer, from
`config.per_layer_config`; there those are written when a model is saved. Else a configuration
keeps what it said before.
"""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from headwise.hf.naming import attention_modules, head_count
from headwise.pruning.own_counts import viewed
from headwise.pruning.record import PruningRecord

READS_WIDTH = re.compile(r'getattr\(config, "head_dim"|config\.head_dim')
SETTINGS = ("num_attention_heads", "num_key_value_heads", "head_dim")


def tell_config(model: nn.Module, record: PruningRecord) -> PruningRecord:
    """Write the number of heads into a model's configuration, or take it back.

    Returns:
        The record, with what the configuration said at first.
    """
    if not isinstance(model, PreTrainedModel):
        return record
    config: Any = model.config
    modules = list(attention_modules(model).values())
    if not modules or any(viewed(module.config) is not config for module in modules):
        return record
    if _told_apart(config) or not all(_reads(module, READS_WIDTH) for module in modules):
        return record
    before = dict(record.settings) or {name: getattr(config, name, None) for name in SETTINGS}
    counts = {(head_count(module), _key_value_heads(module)) for module in modules}
    heads, shared = counts.pop()
    now: dict[str, Any] = before
    if not counts and all(record.kept.values()) and config.hidden_size % heads == 0:
        width: Any = modules[0].head_dim
        now = {"num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": width}
    for name, value in now.items():
        if value is not None and (hasattr(config, name) or name == "head_dim"):
            setattr(config, name, value)
    return dataclasses.replace(record, settings=before)


def layers_in_config(model: PreTrainedModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What to write into config.json for a host that takes numbers of heads by layer from there.

    Nothing where the host does not: a model of its class is built without weights, and must have
    the shapes of this one. Gemma 4 takes the sets of keys and values by layer, Step 3.7 the heads.

    Args:
        model: pruned, with at least a head in each layer.
        settings: what config.json would say else.
    """
    config: Any = model.config
    modules = list(attention_modules(model).values())
    numbers: list[Any] = [getattr(x, "layer_idx", place) for place, x in enumerate(modules)]
    if len({number for number in numbers if isinstance(number, int)}) < len(modules):
        return {}  # no stack of numbered layers, as in an encoder and a decoder
    if not modules or any(viewed(module.config) is not config for module in modules):
        return {}
    counts = [(head_count(module), _key_value_heads(module)) for module in modules]
    uneven = len({*counts}) > 1 or _told_apart(config)
    if not uneven or not hasattr(config, "per_layer_config"):
        return {}
    held: dict[str, Any] = settings.get("per_layer_config") or {}
    layers = {int(number): dict(layer) for number, layer in held.items()}
    told: dict[str, Any] = {}
    for name, values in zip(SETTINGS, zip(*counts, strict=True), strict=False):
        same = len({*values}) == 1
        told |= {name: values[0]} if same else {}
        for number, value in zip(numbers, values, strict=True):
            layer = layers.setdefault(number, {})
            layer.pop(name, None)
            layer |= {} if same else {name: value}
    told["per_layer_config"] = {str(number): layers[number] for number in sorted(layers)}
    return told if _builds(model, {**settings, **told}) else {}


def _told_apart(config: Any) -> bool:
    """Whether a configuration has some number of heads, or their width, by layer."""
    return not {*SETTINGS}.isdisjoint(getattr(config, "per_layer_attributes", None) or ())


def _builds(model: PreTrainedModel, settings: Mapping[str, Any]) -> bool:
    """Whether the host makes a model of these shapes of these settings."""
    kind: Any = type(model)
    try:
        with torch.device("meta"), no_init_weights():
            made = kind(kind.config_class.from_dict(dict(settings)))
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, StrictDataclassError):
        return False
    return _shapes(made) == _shapes(model)


def _shapes(model: PreTrainedModel) -> dict[str, Any]:
    told = ("head_dim", "num_key_value_groups")
    modules = attention_modules(model).items()
    counts = {path: [getattr(module, name, None) for name in told] for path, module in modules}
    return {name: tensor.shape for name, tensor in model.state_dict().items()} | counts


def _reads(module: nn.Module, pattern: re.Pattern[str]) -> bool:
    return pattern.search(inspect.getsource(type(module).__init__)) is not None


def _key_value_heads(module: nn.Module) -> int:
    each: Any = getattr(module, "num_key_value_groups", 1)
    return head_count(module) // each
