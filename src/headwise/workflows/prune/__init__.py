"""Prune a model from end to end: choose heads, train, cut, measure, save."""

from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.pruning import (
    dev_text,
    open_task,
    prune_folder,
    run_folder,
    summary,
)
from headwise.workflows.prune.task import (
    IGNORED,
    Batch,
    Data,
    Labelled,
    Pairs,
    Predicted,
    Task,
    as_hugging_face,
    hugging_face_task,
    read_labelled,
    read_pairs,
    task_of,
)

__all__ = [
    "IGNORED",
    "Batch",
    "Data",
    "Labelled",
    "Pairs",
    "Predicted",
    "PruneConfig",
    "Task",
    "as_hugging_face",
    "dev_text",
    "hugging_face_task",
    "open_task",
    "prune_folder",
    "read_labelled",
    "read_pairs",
    "run_folder",
    "summary",
    "task_of",
]
