"""T5's biases of distances for layers that no longer have the same heads.

The first layer of a stack makes a bias for each head and hands it to the layers above, which use
the same numbers of heads. Once layers have lost different heads, each looks its own columns up in
the table, which stays one for all of them.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.hf.naming import CROSS, attention_modules, interface_forward

TABLE = "relative_attention_bias"


class HeadColumns(nn.Module):
    """The columns of some heads in a table of biases, which several layers share.

    Args:
        weight: a row a distance, a column for each head there was at first.
        kept: the columns in use.
    """

    kept: Tensor

    def __init__(self, weight: nn.Parameter, kept: Tensor) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("kept", kept, persistent=False)

    def forward(self, bucket: Tensor) -> Tensor:
        """The biases of distances, a number a head kept."""
        if not len(self.kept):
            return self.weight.new_zeros(*bucket.shape, 0)
        return nn.functional.embedding(bucket, self.weight[:, self.kept])


def shares_bias(module: nn.Module) -> bool:
    """Whether an attention module is T5's or built like it: it takes the biases of another."""
    forward = interface_forward(type(module))
    takes = forward is not None and "position_bias" in inspect.signature(forward).parameters
    return takes and hasattr(module, "has_relative_attention_bias")


def separate(host: nn.Module) -> None:
    """Let every layer look up its biases itself. Doing it twice changes nothing."""
    modules = attention_modules(host)
    owners = {_stack(path): module for path, module in modules.items() if hasattr(module, TABLE)}
    for path, module in modules.items():
        if not shares_bias(module) or module.__dict__.get("_bias_is_own"):
            continue
        module.__dict__["_bias_is_own"] = True
        module.register_forward_pre_hook(_drop_shared_bias, with_kwargs=True)
        # what looks at the encoder has no bias: T5 makes zeros, as many as the module has heads
        if _looks_at_itself(path):
            table: Any = owners[_stack(path)].get_submodule(TABLE)
            kept = torch.arange(table.weight.shape[1], device=table.weight.device)
            setattr(module, TABLE, HeadColumns(table.weight, kept))
            module.__dict__["has_relative_attention_bias"] = True


def cut_bias(module: nn.Module, keep: Sequence[int]) -> None:
    """Leave these of the heads a layer has now."""
    columns = getattr(module, TABLE, None)
    if isinstance(columns, HeadColumns):
        left = torch.tensor(keep, dtype=torch.long, device=columns.kept.device)
        columns.kept = columns.kept[left]


def tell_tied(host: nn.Module) -> None:
    """Let transformers know which tables are one, as it saves a tensor of several names only then.

    Doing it again, when layers have lost all their heads, tells of those that are left.
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


def _looks_at_itself(path: str) -> bool:
    return CROSS.search(path) is None
