"""Kinds of runs, and other parts that installed packages bring by entry points.

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
    """Functions that use runs or model folders of one kind; None for what a kind cannot do.

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


_REGISTERED: dict[tuple[str, str], Callable[[], Any]] = {}


def register(name: str, load: Callable[[], Any], *, group: str = GROUP) -> None:
    """Add a kind for this process, or a part of another group, for packages not installed."""
    _REGISTERED[group, name] = load


def names(group: str) -> list[str]:
    """Return the names of all that is known of a group."""
    registered = {name for place, name in _REGISTERED if place == group}
    return sorted({*registered, *(point.name for point in entry_points(group=group))})


def kinds() -> list[str]:
    """Return the names of all kinds."""
    return names(GROUP)


def find(group: str, name: str) -> Any:
    """Load what has a name in a group, and nothing else; None if there is no such name."""
    if (group, name) in _REGISTERED:
        return _REGISTERED[group, name]()
    return next((point.load() for point in entry_points(group=group, name=name)), None)


@cache
def find_kind(name: str) -> Kind:
    """Load one kind, and nothing of the others."""
    if (found := find(GROUP, name)) is not None:
        return found
    raise ValueError(
        f"No installed package knows the kind {name!r}. Runs of the papers' commands need the "
        "package headwise_papers, which comes with Headwise."
    )
