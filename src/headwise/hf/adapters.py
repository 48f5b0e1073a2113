"""Sites for attention modules that do not ask transformers' attention interface.

Each of these classes has an adapter: a subclass in a file of its own, which computes the same and
attends at a site. Giving a module a site makes it an instance of the adapter, taking the site away
makes it an instance of the host's class again, so nothing else in transformers is changed.
"""

import inspect
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, cast

from torch import nn

from headwise.sites import Site

__all__ = ["Adapter", "adapter_of", "give_site", "take_site"]

# Where the adapter of a class of transformers is, under the same name, so that models print alike.
# Neither is imported before a model has such a module.
ADAPTERS = {
    ("transformers.models.mpnet.modeling_mpnet", "MPNetSelfAttention"): "headwise.hf.mpnet",
    (
        "transformers.models.deberta_v2.modeling_deberta_v2",
        "DisentangledSelfAttention",
    ): "headwise.hf.deberta_v2",
}


class Adapter(nn.Module):
    """Mark a subclass of a host's attention class that attends at its site.

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
    place = ADAPTERS.get((kind.__module__, kind.__qualname__))
    if place is None:
        return None
    adapter: type[Adapter] = getattr(import_module(place), kind.__qualname__)
    return adapter if _fits(adapter) else None


def give_site(module: nn.Module, site: Site) -> None:
    """Let a module attend at a site."""
    module.__dict__["site"] = site
    if adapter := adapter_of(type(module)):
        module.__class__ = adapter


def take_site(module: nn.Module) -> None:
    """Take the site of a module away, if it has one."""
    module.__dict__.pop("site", None)
    if isinstance(module, Adapter):
        cast(Any, module).__class__ = module.host


def _fits(adapter: type[Adapter]) -> bool:
    """Whether the host's forward is the one that the adapter was written for.

    Another version of transformers may compute something else, which an adapter must not undo.
    """
    return adapter.reads == frozenset(inspect.unwrap(adapter.host.forward).__code__.co_names)
