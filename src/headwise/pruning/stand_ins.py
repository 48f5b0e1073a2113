"""Modules and configurations that replace those of a Hugging Face model when heads are cut.

- `JustBias` and `Headless`: attention without any heads. The output projection then adds its bias.
- `HeadColumns`: T5's biases of distances, for layers that no longer have the same heads. The first
  layer of a stack makes a bias for each head and passes it to the layers above. After pruning,
  each layer looks up its own columns of the table, which stays one for all of them.
- `OwnCounts`: a configuration with other numbers of heads for a single module.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig

from headwise.hf.naming import CROSS, attention_modules, interface_forward

# What an attention module may have after its output projection, in this order. Everything else
# that `obstacle` knows comes before the heads are mixed, and goes with them.
AFTER = ("output_dropout", "resid_dropout", "out_drop", "proj_drop", "projection_dropout")
NORM = "LayerNorm"  # ALBERT adds its input and normalises inside the module


class JustBias(nn.Module):
    """A replacement for an output projection without inputs: its bias at every position.

    Args:
        projection: the projection that is replaced.
        width: the width of the model.
    """

    bias: nn.Parameter | None

    def __init__(self, projection: nn.Module, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_parameter("bias", cast(nn.Parameter | None, projection.bias))

    def forward(self, nothing: Tensor) -> Tensor:
        """Return one vector for each position."""
        if self.bias is None:
            return nothing.new_zeros(*nothing.shape[:-1], self.width)
        return self.bias.expand(*nothing.shape[:-1], self.width)


class Headless(nn.Module):
    """A replacement for an attention module of a Hugging Face model.

    It returns what its layer expects, and counts positions in a cache.

    Args:
        attention: the module that is replaced; what comes after its heads is kept.
        output: the name of its output projection, now a JustBias; None if that is outside the
            module, as in BERT.
        cross: whether it attended to the encoder, whose keys need no cache.
        results: the number of values that the layer expects.
    """

    def __init__(
        self, attention: nn.Module, *, output: str | None, cross: bool, results: int
    ) -> None:
        super().__init__()
        self.cross, self.results = cross, results
        self.had = list(attention.state_dict())
        self.layer_idx = cast(int | None, getattr(attention, "layer_idx", None))
        self.then = [name for name in (output, *AFTER) if name and hasattr(attention, name)]
        for name in [*self.then, NORM]:
            if isinstance(child := getattr(attention, name, None), nn.Module):
                self.add_module(name, child)

    @property
    def lost(self) -> list[str]:
        """The names of tensors that the replaced module had and this one has not."""
        left = self.state_dict()
        return [name for name in self.had if name not in left]

    def forward(
        self, hidden_states: Tensor, *others: Any, past_key_values: Any = None, **named: Any
    ) -> Any:
        """Return the output of attention without heads; the other arguments are ignored."""
        cache = past_key_values if past_key_values is not None else named.get("layer_past")
        if cache is not None and not self.cross:
            _remember_length(cache, hidden_states, self.layer_idx)
        out = hidden_states.new_zeros(*hidden_states.shape[:-1], 0)
        for name in self.then:
            out = self.get_submodule(name)(out)
        if NORM in self._modules:
            out = self.get_submodule(NORM)(hidden_states + out)
        return out if self.results == 1 else (out, *[None] * (self.results - 1))


def _remember_length(cache: Any, hidden_states: Tensor, layer: int | None) -> None:
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    # transformers reads the length of the text from the first layer, where an empty one counts as 0
    stub = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
    assert layer is not None
    own.update(stub, stub, layer)


TABLE = "relative_attention_bias"


class HeadColumns(nn.Module):
    """The columns of some heads in a table of biases that several layers share.

    Args:
        weight: one row per distance, one column per head of the unpruned model.
        kept: the columns in use.
    """

    kept: Tensor

    def __init__(self, weight: nn.Parameter, kept: Tensor) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("kept", kept, persistent=False)

    def forward(self, bucket: Tensor) -> Tensor:
        """Return the biases of distances, one for each head kept."""
        if not len(self.kept):
            return self.weight.new_zeros(*bucket.shape, 0)
        return nn.functional.embedding(bucket, self.weight[:, self.kept])


def shares_bias(module: nn.Module) -> bool:
    """Return whether a module takes its biases from another layer, as T5's attention does."""
    forward = interface_forward(type(module))
    takes = forward is not None and "position_bias" in inspect.signature(forward).parameters
    return takes and hasattr(module, "has_relative_attention_bias")


def separate(host: nn.Module) -> None:
    """Let every layer look up its biases itself; a second call does nothing."""
    modules = attention_modules(host)
    owners = {_stack(path): module for path, module in modules.items() if hasattr(module, TABLE)}
    for path, module in modules.items():
        if not shares_bias(module) or module.__dict__.get("_bias_is_own"):
            continue
        module.__dict__["_bias_is_own"] = True
        module.register_forward_pre_hook(_drop_shared_bias, with_kwargs=True)
        # cross-attention has no bias: T5 makes zeros, as many as the module has heads
        if CROSS.search(path) is None:
            table: Any = owners[_stack(path)].get_submodule(TABLE)
            kept = torch.arange(table.weight.shape[1], device=table.weight.device)
            setattr(module, TABLE, HeadColumns(table.weight, kept))
            module.__dict__["has_relative_attention_bias"] = True


def cut_bias(module: nn.Module, keep: Sequence[int]) -> None:
    """Keep the biases of these heads of a layer."""
    columns = getattr(module, TABLE, None)
    if isinstance(columns, HeadColumns):
        left = torch.tensor(keep, dtype=torch.long, device=columns.kept.device)
        columns.kept = columns.kept[left]


def tell_tied(host: nn.Module) -> None:
    """Tell transformers which tables are shared; it saves a tensor with several names only then.

    A later call, when layers have lost all their heads, updates the names.
    """
    tables = {
        f"{path}.weight": module.weight
        for path, module in host.named_modules()
        if isinstance(module, HeadColumns)
    }
    first = {id(weight): name for name, weight in reversed(tables.items())}
    tied = {name: first[id(weight)] for name, weight in tables.items()}
    if tables:
        known: dict[str, str] = getattr(host, "_tied_weights_keys", None) or {}
        others = {name: one for name, one in known.items() if not name.endswith(f"{TABLE}.weight")}
        ours = {name: one for name, one in tied.items() if name != one}
        host.__dict__["_tied_weights_keys"] = {**others, **ours}


def _drop_shared_bias(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return inputs, {**named, "position_bias": None}


def _stack(path: str) -> str:
    return re.split(r"\.\d+\.", path)[0]


class OwnCounts:
    """A view of a model's configuration in which some settings are replaced.

    Some modules (Phi-3's) read their number of heads from the configuration at each call, and it
    has one number for all layers.

    Args:
        config: the configuration of the model.
        counts: {setting: number}.
    """

    def __init__(self, config: PreTrainedConfig, counts: Mapping[str, int]) -> None:
        self.__dict__["_viewed"] = config
        self.__dict__["_counts"] = dict(counts)

    @property
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._viewed)  # so that isinstance accepts it as a configuration

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        counts = self.__dict__["_counts"]
        return counts[name] if name in counts else getattr(self.__dict__["_viewed"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it in the model's configuration, unless it is one of the counts."""
        if name not in self.__dict__["_counts"]:
            setattr(self.__dict__["_viewed"], name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnCounts, (self.__dict__["_viewed"], self.__dict__["_counts"])


def with_counts(config: PreTrainedConfig, counts: Mapping[str, int]) -> PreTrainedConfig:
    """Return a view of a configuration with these numbers."""
    return cast(PreTrainedConfig, OwnCounts(viewed(config), counts))


def viewed(config: Any) -> Any:
    """Return the configuration behind an OwnCounts, or the configuration itself."""
    return config.__dict__["_viewed"] if type(config) is OwnCounts else config
