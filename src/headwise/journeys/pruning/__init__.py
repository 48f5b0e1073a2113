"""The parts of `prune`: tasks of models, how heads are chosen, and what is told at the end."""

from headwise.journeys.pruning.config import PruneConfig

__all__ = ["PruneConfig"]
