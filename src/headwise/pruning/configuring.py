"""What the configuration of a pruned Hugging Face model can truthfully say.

A configuration has one number of heads for all layers. Where every layer has the same number left,
and the model takes the width of a head from its configuration, the new numbers are written there:
such a model loads with `from_pretrained` as well. Else it keeps what it said before.
"""

import dataclasses
import inspect
import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headwise.hf.naming import attention_modules, head_count
from headwise.pruning.record import PruningRecord

READS_WIDTH = re.compile(r'getattr\(config, "head_dim"|config\.head_dim')
READS_LAYER = re.compile(r"layer_config\.num_attention_heads")
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
    if not modules or any(module.config is not config for module in modules):
        return record
    if not all(_reads(module, READS_WIDTH) for module in modules):
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


def layers_in_config(model: PreTrainedModel) -> dict[str, dict[str, int]] | None:
    """`per_layer_config` of a model whose attention reads it; None where it would not be read.

    Where it is not read, a host could not even be built with it: asking for the number of heads of
    the whole model is then an error.
    """
    modules = list(attention_modules(model).values())
    if not modules or not all(_reads(module, READS_LAYER) for module in modules):
        return None
    layers: dict[str, dict[str, int]] = {}
    for place, module in enumerate(modules):
        number: Any = getattr(module, "layer_idx", place)
        layers[str(number)] = {
            "num_attention_heads": head_count(module),
            "num_key_value_heads": _key_value_heads(module),
        }
    return layers


def _reads(module: nn.Module, pattern: re.Pattern[str]) -> bool:
    return pattern.search(inspect.getsource(type(module).__init__)) is not None


def _key_value_heads(module: nn.Module) -> int:
    each: Any = getattr(module, "num_key_value_groups", 1)
    return head_count(module) // each
