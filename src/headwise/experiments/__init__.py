"""The papers' experiments: one folder a paper, one file an experiment, each runs by its name."""

from headwise.experiments.base import Estimate, Expected, Experiment
from headwise.experiments.shelf import experiment_names, load_experiment, summary_of

__all__ = [
    "Estimate",
    "Expected",
    "Experiment",
    "experiment_names",
    "load_experiment",
    "summary_of",
]
