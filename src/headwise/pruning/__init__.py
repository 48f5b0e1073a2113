"""Fewer heads: gates that learn which, other ways of choosing, and cutting them out."""

from typing import TYPE_CHECKING, Any

from headwise.pruning import choosing
from headwise.pruning.choosing import Keep
from headwise.pruning.gates import Gates
from headwise.pruning.hard_concrete import HardConcrete
from headwise.pruning.penalising import penalised
from headwise.pruning.target import Target

if TYPE_CHECKING:
    from headwise.pruning.trainer import GatesCallback

__all__ = [
    "Gates",
    "GatesCallback",
    "HardConcrete",
    "Keep",
    "Target",
    "choosing",
    "penalised",
]


def __getattr__(name: str) -> Any:
    if name == "GatesCallback":  # lazy: it imports transformers' Trainer
        from headwise.pruning.trainer import GatesCallback

        return GatesCallback
    raise AttributeError(f"headwise.pruning has no name {name!r}; it has {', '.join(__all__)}.")
