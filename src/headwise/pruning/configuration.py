"""The configuration of a pruned Hugging Face model: numbers of heads and attention backends.

A configuration has one number of heads for all layers. Where every layer has the same number left,
and the model reads the width of a head from its configuration, the new number is written there, so
that `from_pretrained` loads the model too. A few hosts read numbers by layer from
`config.per_layer_config`; these are written when a model is saved. Otherwise the configuration
stays as it was.

transformers does not save the attention backend, and it may decide what a model computes: sdpa
ignores Gemma 2's softcapping. So it is saved and restored too.
"""

import dataclasses
import inspect
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.initialization import no_init_weights

from headwise.config import printable
from headwise.hf.adoption import backend_of
from headwise.hf.naming import attention_modules, head_count
from headwise.pruning.record import PruningRecord
from headwise.pruning.stand_ins import viewed

READS_WIDTH = re.compile(r'getattr\(config, "head_dim"|config\.head_dim')
SETTINGS = ("num_attention_heads", "num_key_value_heads", "head_dim")


def tell_config(model: nn.Module, record: PruningRecord) -> PruningRecord:
    """Write the number of heads into a model's configuration, or restore the original one.

    Returns:
        The record, with the original settings of the configuration.
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
    """Return what to write into config.json for a host that reads numbers of heads by layer.

    Empty if the host does not: a model of its class, built without weights, must have the shapes
    of this one. Gemma 4 reads the sets of keys and values by layer, Step 3.7 the heads.

    Args:
        model: pruned, with at least one head in each layer.
        settings: the other settings of config.json.
    """
    config: Any = model.config
    modules = list(attention_modules(model).values())
    numbers: list[Any] = [getattr(x, "layer_idx", place) for place, x in enumerate(modules)]
    if len({number for number in numbers if isinstance(number, int)}) < len(modules):
        return {}  # layers are not numbered, as in an encoder and a decoder
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
    """Return whether a configuration has numbers or widths of heads by layer."""
    return not {*SETTINGS}.isdisjoint(getattr(config, "per_layer_attributes", None) or ())


def _builds(model: PreTrainedModel, settings: Mapping[str, Any]) -> bool:
    """Return whether the class of a model builds the same shapes from these settings."""
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


# Backends of PyTorch alone. Others (flash attention) are libraries, or code from a hub: a folder
# must not decide that they are run, only the caller.
RESTORED = ("eager", "sdpa", "flex_attention")


def backends_of(model: nn.Module) -> dict[str, str]:
    """Return the backend of each configuration, {path of the first module that has it: name}."""
    return {path: backend_of(config) for path, config in _configs(model).items()}


def set_backends(model: nn.Module, saved: Mapping[str, str], wanted: str | None) -> None:
    """Set the attention backends of a model: one for all, or those it was saved with.

    Args:
        model: a fresh model; one that is not of Hugging Face is left alone.
        saved: what `backends_of` returned. A backend that the model refuses gives a warning.
        wanted: the caller's choice for the whole model; raises if the model refuses it.
    """
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if wanted is not None:
        for part in parts:  # the first one alone would leave out T5's stacks
            part.set_attn_implementation(wanted)
        return
    for path, config in _configs(model).items():
        name, module = saved.get(path), model.get_submodule(path)
        if name is None or name == backend_of(config):
            continue
        if name in RESTORED:
            _restore(module if isinstance(module, PreTrainedModel) else parts[0], config, name)
        else:
            warnings.warn(
                f"The model was saved with {printable(name)} attention and is loaded with "
                f"{backend_of(config)}, so outputs may differ; pass attn_implementation= to load.",
                stacklevel=4,
            )


def _restore(host: PreTrainedModel, config: PreTrainedConfig, name: str) -> None:
    try:
        host.get_correct_attn_implementation(name)
    except (ValueError, ImportError) as problem:
        warnings.warn(
            f"{type(host).__name__} was saved with {name} attention, which it refuses here "
            f"({str(problem).strip().splitlines()[0]}); outputs may differ.",
            stacklevel=4,
        )
    else:
        config._attn_implementation_internal = name  # pyright: ignore[reportPrivateUsage]


def _configs(model: nn.Module) -> dict[str, PreTrainedConfig]:
    found: dict[int, tuple[str, PreTrainedConfig]] = {}
    for path, module in model.named_modules():
        config: Any = viewed(getattr(module, "config", None))
        if isinstance(config, PreTrainedConfig):
            found.setdefault(id(config), (path, config))
    return dict(found.values())
