"""What the attention modules of a Hugging Face model are called here."""

import inspect
import re
from collections import Counter
from functools import cache
from types import FunctionType
from typing import cast

from torch import nn

from headwise.hf.adapters import adapter_of

CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that can have sites, by path: they ask the interface or have an adapter."""
    return {path: m for path, m in model.named_modules() if interface_forward(type(m)) is not None}


@cache
def interface_forward(kind: type[nn.Module]) -> FunctionType | None:
    """The forward in which a class, or one it calls through super(), asks the interface.

    For a class with an adapter it is the adapter's.
    """
    if adapter := adapter_of(kind):
        return cast(FunctionType, vars(adapter)["forward"])
    for base in kind.__mro__:
        forward = inspect.unwrap(base.__dict__["forward"]) if "forward" in base.__dict__ else None
        if not isinstance(forward, FunctionType) or base is nn.Module:
            continue
        try:
            source = inspect.getsource(forward)
        except OSError:  # typed into a prompt
            return None
        if "ALL_ATTENTION_FUNCTIONS.get_interface(" in source:
            return forward
        if "super().forward(" not in source:
            return None
    return None


def asks_registry_directly(kind: type[nn.Module]) -> bool:
    """Whether a class takes attention functions from the registry by index, past the interface."""
    forward = interface_forward(kind)
    return forward is not None and "ALL_ATTENTION_FUNCTIONS[" in inspect.getsource(forward)


def unreachable_attention(model: nn.Module) -> set[str]:
    """Classes that look like attention of their own, outside the interface."""
    reached = list(attention_modules(model))
    return {
        type(module).__name__
        for path, module in model.named_modules()
        if "Attention" in type(module).__name__
        and sum(isinstance(child, nn.Linear) for child in module.children()) >= 3
        and not any(f"{other}.".startswith(f"{path}.") for other in reached)
        and not any(f"{path}.".startswith(f"{other}.") for other in reached)
    }


def site_names(modules: dict[str, nn.Module]) -> dict[str, str]:
    """A site name for each path: `encoder.3.self`, `decoder.3.cross`, …

    The stack is "decoder" where a path says so or, in a model of one stack, where attention is
    causal. The layer is the first number in the path, or a running number where those repeat.
    Two stacks of the same kind (a text and an image encoder) get their first path part in front.
    """
    stacks = {path: _stack(path, module) for path, module in modules.items()}
    if len(set(stacks.values())) < len(set(_placed(stacks, modules))):
        stacks = {path: f"{path.split('.')[0]}.{stack}" for path, stack in stacks.items()}
    kinds = {path: f"{stacks[path]}.{_kind(path, module)}" for path, module in modules.items()}
    numbers = _layer_numbers(kinds)
    return {
        path: f"{stacks[path]}.{numbers[path]}.{kinds[path].rpartition('.')[2]}" for path in modules
    }


def head_count(module: nn.Module) -> int:
    """How many query heads an attention module has."""
    for holder in (module, getattr(module, "config", None)):
        for name in HEAD_COUNTS:
            count = getattr(holder, name, None)
            if isinstance(count, int):
                return count
    if isinstance(groups := getattr(module, "groups", None), int):  # of channels, in Florence-2
        return groups
    raise ValueError(f"{type(module).__name__} does not say how many heads it has.")


def _kind(path: str, module: nn.Module) -> str:
    last = path.split(".")[-2:]
    return (
        "cross" if CROSS.search(".".join(last)) or CROSS.search(type(module).__name__) else "self"
    )


def _stack(path: str, module: nn.Module) -> str:
    parts = path.split(".")
    if "decoder" in parts:
        return "decoder"
    if _kind(path, module) == "cross" or getattr(module, "is_causal", False):
        return "decoder"
    return "encoder"


def _placed(stacks: dict[str, str], modules: dict[str, nn.Module]) -> set[tuple[str, str]]:
    """Distinct (part of the model before the layers, stack), to notice twin stacks."""
    return {
        (re.split(r"\.\d+\.", path)[0], stacks[path])
        for path, module in modules.items()
        if _kind(path, module) == "self"
    }


def _layer_numbers(kinds: dict[str, str]) -> dict[str, int]:
    """The layer of each path, counted anew where the paths' own numbers are not unique."""
    own = {path: next((int(x) for x in path.split(".") if x.isdigit()), 0) for path in kinds}
    repeats = Counter((kinds[path], own[path]) for path in kinds)
    running: Counter[str] = Counter()
    numbers: dict[str, int] = {}
    for path, kind in kinds.items():
        alone = all(repeats[kind, own[other]] == 1 for other in kinds if kinds[other] == kind)
        numbers[path] = own[path] if alone else running[kind]
        running[kind] += 1
    return numbers
