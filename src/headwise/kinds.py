"""Kinds of runs and models that other packages bring, found by the entry points `headwise.kinds`.

A run writes its kind into `config.json`, and the folder of a pruned model names the kind that
rebuilds it. Only installed packages (or `register`) say what code belongs to a kind, never a
folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

GROUP = "headwise.kinds"


@dataclass(frozen=True)
class Kind:
    """How the runs or model folders of one kind are used; what a kind cannot do is None.

    Args:
        name: as `config.json` has it.
        subject: opens a folder for `inspect`: (folder, special=, device=) -> Subject.
        task: prepares a folder for `prune`: (folder, config) -> what the workflow prunes.
        rebuild: makes a fresh model from a class name and its settings.
        matches: says if a folder that is no run holds a model of this kind.
        refusal: one sentence saying why a run of this kind is not opened; "" where it is.
    """

    name: str
    subject: Callable[..., Any] | None = None
    task: Callable[..., Any] | None = None
    rebuild: Callable[[str, dict[str, Any]], Any] | None = None
    matches: Callable[[Path], bool] | None = None
    refusal: Callable[[Path], str] | None = None


_REGISTERED: dict[str, Callable[[], Kind]] = {}


def register(name: str, load: Callable[[], Kind]) -> None:
    """Add a kind for this process, for packages that are not installed."""
    _REGISTERED[name] = load


def kinds() -> list[str]:
    """Return the names of all kinds."""
    return sorted({*_REGISTERED, *(point.name for point in entry_points(group=GROUP))})


@cache
def find_kind(name: str) -> Kind:
    """Load one kind, and nothing of the others."""
    if name in _REGISTERED:
        return _REGISTERED[name]()
    for point in entry_points(group=GROUP, name=name):
        return point.load()
    raise ValueError(
        f"No installed package knows the kind {name!r}. Runs of the papers' commands need the "
        "package headwise_papers, which comes with Headwise."
    )
