"""The attention backend of a saved Hugging Face model: noted when saved, restored when loaded.

transformers does not save it, and it may decide what a model computes: Gemma 2's softcapping is
ignored by sdpa.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from headwise.config import printable
from headwise.hf.adoption import backend_of
from headwise.pruning.own_counts import viewed

# Those that are PyTorch alone. Others (flash attention) are libraries, or code from a hub: a folder
# must not decide that they are run, so there the caller says so.
RESTORED = ("eager", "sdpa", "flex_attention")


def backends_of(model: nn.Module) -> dict[str, str]:
    """Return the backend of each configuration, {path of the first module that has it: name}."""
    found: dict[str, str] = {}
    for path, config in _configs(model).items():
        found[path] = backend_of(config)
    return found


def set_backends(model: nn.Module, saved: Mapping[str, str], wanted: str | None) -> None:
    """Let a model attend with one backend, or with those it was saved with.

    Args:
        model: built anew; one of headwise has no backends, and is left alone.
        saved: as `backends_of` returned them. The model may refuse one of them, as versions and
            devices differ: that is a warning.
        wanted: by the caller, for the whole model; refused by an error.
    """
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if wanted is not None:
        for part in parts:  # not the first alone: it would leave out T5's stacks
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
