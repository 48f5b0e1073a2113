"""Attention modules of a Hugging Face model: which they are, their adapters, their site names.

A module attends at a site if it asks transformers' attention interface or if its class has an
adapter: a subclass in `headwise.hf.adapted` which computes the same and attends at a site. Giving a
module a site makes it an instance of the adapter; taking the site away makes it an instance of the
host's class again, so nothing else in transformers is changed.
"""

import inspect
import re
from collections import Counter
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, ClassVar, cast

from torch import nn

from headwise.sites import Site

CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
# Classes with an adapter of the same name in `headwise.hf.adapted`, so that models print alike. It
# is imported only when a model has such a module.
ADAPTED = {
    ("transformers.models.mpnet.modeling_mpnet", "MPNetSelfAttention"),
    ("transformers.models.deberta_v2.modeling_deberta_v2", "DisentangledSelfAttention"),
}


class Adapter(nn.Module):
    """Subclass of a host's attention class that attends at its site.

    Args:
        site: where it attends.
        host: the class that it is a subclass of.
        reads: the names in the code of that class's forward, see `_fits`.
    """

    site: Site
    host: ClassVar[type[nn.Module]]
    reads: ClassVar[frozenset[str]]


@cache
def adapter_of(kind: type[nn.Module]) -> type[Adapter] | None:
    """Return the adapter of a host's class, or of an adapter itself; None if there is none."""
    if issubclass(kind, Adapter):
        return kind
    if (kind.__module__, kind.__qualname__) not in ADAPTED:
        return None
    adapter: type[Adapter] = getattr(import_module("headwise.hf.adapted"), kind.__qualname__)
    return adapter if _fits(adapter) else None


def give_site(module: nn.Module, site: Site) -> None:
    """Make a module attend at a site."""
    module.__dict__["site"] = site
    if adapter := adapter_of(type(module)):
        module.__class__ = adapter


def take_site(module: nn.Module) -> None:
    """Remove the site of a module, if it has one."""
    module.__dict__.pop("site", None)
    if isinstance(module, Adapter):
        cast(Any, module).__class__ = module.host


def _fits(adapter: type[Adapter]) -> bool:
    """Return whether the adapter was written for this version of the host's forward.

    Another version of transformers may compute something else, which an adapter must not undo.
    """
    return adapter.reads == frozenset(inspect.unwrap(adapter.host.forward).__code__.co_names)


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that can have sites, by path."""
    return {path: m for path, m in model.named_modules() if interface_forward(type(m)) is not None}


@cache
def interface_forward(kind: type[nn.Module]) -> FunctionType | None:
    """Return the forward in which a class, or a parent called by super(), asks the interface.

    For a class with an adapter, return the adapter's.
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
    """Return whether a class reads attention functions from the registry past the interface."""
    forward = interface_forward(kind)
    return forward is not None and "ALL_ATTENTION_FUNCTIONS[" in inspect.getsource(forward)


def unreachable_attention(model: nn.Module) -> set[str]:
    """Return the names of classes that seem to compute attention outside the interface."""
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
    """Return a site name for each path: `encoder.3.self`, `decoder.3.cross`, …

    The stack is "decoder" where a path says so or, in a model of one stack, where attention is
    causal. The layer is the first number in the path, or a running number where those repeat.
    Two stacks of one kind (a text and an image encoder) get the first part of their path as prefix.
    """
    stacks = {path: _stack(path, module) for path, module in modules.items()}
    if len(set(stacks.values())) < len(_stack_paths(stacks, modules)):
        stacks = {path: f"{path.split('.')[0]}.{stack}" for path, stack in stacks.items()}
    kinds = {path: f"{stacks[path]}.{_kind(path, module)}" for path, module in modules.items()}
    numbers = _layer_numbers(kinds)
    return {
        path: f"{stacks[path]}.{numbers[path]}.{kinds[path].rpartition('.')[2]}" for path in modules
    }


def head_count(module: nn.Module) -> int:
    """Return the number of query heads of an attention module."""
    for holder in (module, getattr(module, "config", None)):
        for name in HEAD_COUNTS:
            count = getattr(holder, name, None)
            if isinstance(count, int):
                return count
    if isinstance(groups := getattr(module, "groups", None), int):  # of channels, in Florence-2
        return groups
    raise ValueError(f"{type(module).__name__} does not say how many heads it has.")


def _kind(path: str, module: nn.Module) -> str:
    names = ".".join(path.split(".")[-2:]), type(module).__name__
    return "cross" if any(map(CROSS.search, names)) else "self"


def _stack(path: str, module: nn.Module) -> str:
    parts = path.split(".")
    if "decoder" in parts:
        return "decoder"
    if _kind(path, module) == "cross" or getattr(module, "is_causal", False):
        return "decoder"
    return "encoder"


def _stack_paths(stacks: dict[str, str], modules: dict[str, nn.Module]) -> set[tuple[str, str]]:
    """Return distinct (path before the layers, stack) pairs, to find two stacks of one kind."""
    return {
        (re.split(r"\.\d+\.", path)[0], stacks[path])
        for path, module in modules.items()
        if _kind(path, module) == "self"
    }


def _layer_numbers(kinds: dict[str, str]) -> dict[str, int]:
    """Return the layer of each path, a running number where those in paths are not unique."""
    own = {path: next((int(x) for x in path.split(".") if x.isdigit()), 0) for path in kinds}
    repeats = Counter((kinds[path], own[path]) for path in kinds)
    running: Counter[str] = Counter()
    numbers: dict[str, int] = {}
    for path, kind in kinds.items():
        alone = all(repeats[kind, own[other]] == 1 for other in kinds if kinds[other] == kind)
        numbers[path] = own[path] if alone else running[kind]
        running[kind] += 1
    return numbers
