"""Fewer heads: gates that learn which, other ways of choosing, and cutting them out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.pruning import choosing
from headwise.pruning.choosing import Keep
from headwise.pruning.gates import Gates
from headwise.pruning.hard_concrete import HardConcrete
from headwise.pruning.penalising import penalised
from headwise.pruning.record import PruningRecord, record_of
from headwise.pruning.target import Target

if TYPE_CHECKING:
    from headwise.pruning.comparing import Speed, speed
    from headwise.pruning.cutting import prune, rebuild
    from headwise.pruning.exporting import Exported, export
    from headwise.pruning.saving import load, save
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
    "choosing",
    "export",
    "load",
    "penalised",
    "prune",
    "rebuild",
    "record_of",
    "save",
    "speed",
]
_LATER = {  # lazy: these import transformers
    "Exported": "exporting",
    "GatesCallback": "trainer",
    "Speed": "comparing",
    "export": "exporting",
    "load": "saving",
    "prune": "cutting",
    "rebuild": "cutting",
    "save": "saving",
    "speed": "comparing",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"headwise.pruning.{_LATER[name]}"), name)
    raise AttributeError(f"headwise.pruning has no name {name!r}; it has {', '.join(__all__)}.")
