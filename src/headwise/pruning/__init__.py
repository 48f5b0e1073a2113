"""Prune heads: choose them with gates or otherwise, cut them out, save, time and export."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.pruning import choosing
from headwise.pruning.choosing import Keep
from headwise.pruning.gates import Gates, HardConcrete, logistic
from headwise.pruning.record import PruningRecord, check_whole, record_of
from headwise.pruning.target import Target, penalised

if TYPE_CHECKING:
    from headwise.pruning.cutting import prune, rebuild
    from headwise.pruning.exporting import Exported, export
    from headwise.pruning.saving import check_replaceable, load, save, seal
    from headwise.pruning.timing import Speed, speed
    from headwise.pruning.trainer import GatesCallback

__all__ = [
    "Exported",
    "Gates",
    "GatesCallback",
    "HardConcrete",
    "Keep",
    "PruningRecord",
    "Speed",
    "Target",
    "check_replaceable",
    "check_whole",
    "choosing",
    "export",
    "load",
    "logistic",
    "penalised",
    "prune",
    "rebuild",
    "record_of",
    "save",
    "seal",
    "speed",
]
_LATER = {  # lazy: these import transformers
    "cutting": ("prune", "rebuild"),
    "exporting": ("Exported", "export"),
    "saving": ("check_replaceable", "load", "save", "seal"),
    "timing": ("Speed", "speed"),
    "trainer": ("GatesCallback",),
}


def __getattr__(name: str) -> Any:
    for home, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"headwise.pruning.{home}"), name)
    raise AttributeError(f"headwise.pruning has no name {name!r}; it has {', '.join(__all__)}.")
