"""Pruning from end to end: choose heads, train, cut, measure, save."""

from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.pruning import prune_folder

__all__ = ["PruneConfig", "prune_folder"]
