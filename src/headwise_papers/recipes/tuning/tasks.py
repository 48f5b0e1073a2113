"""What is learnt: the examples of a task, and their classes as numbers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from headwise.config import suggestion
from headwise_papers.data.tasks import (
    TAGGING_SETS,
    TEXT_TASKS,
    TaggedTask,
    TextTask,
    in_checksum_order,
    read_tagged_files,
    read_tagged_task,
    read_text_files,
    read_text_task,
)
from headwise_papers.recipes.tuning.classifier import Reads
from headwise_papers.recipes.tuning.config import FinetuningConfig
from headwise_papers.recipes.tuning.starting import Task

__all__ = ["class_name", "examples_of", "labels_of", "read_task", "reads_of"]


def read_task(config: FinetuningConfig) -> Task:
    """The examples of the settings' task.

    Where only so many are wanted, a checksum decides which: some sets are published in order of
    their classes.
    """
    if config.task == "files":
        paths = [Path(path) for path in (config.train, config.dev, config.test)]
        tagged = paths[0].suffix == ".conll"
        task = read_tagged_files(*paths) if tagged else read_text_files(*paths)
    elif config.task in TAGGING_SETS:
        task = read_tagged_task(config.task)
    elif config.task in TEXT_TASKS or "filipino" in config.task:
        task = read_text_task(config.task)
    else:
        known = [*TEXT_TASKS, *TAGGING_SETS, "files"]
        raise ValueError(f"There is no task {config.task!r}. {suggestion(config.task, known)}")
    return _some(task, config)


def examples_of(task: Task) -> list[Any]:
    """All examples: train, dev and test one after the other."""
    return [*task.train, *task.dev, *task.test]


def labels_of(task: Task) -> list[list[int]]:
    """Of each example its class, or the classes of its words."""
    if isinstance(task, TextTask):
        return [[example.label] for example in examples_of(task)]
    number = {tag: place for place, tag in enumerate(task.classes)}
    return [[number[tag] for tag in sentence.tags] for sentence in examples_of(task)]


def reads_of(task: Task) -> Reads:
    """What a model of the task reads."""
    if isinstance(task, TaggedTask):
        return "words"
    second = {example.second is not None for example in examples_of(task)}
    return "either" if len(second) > 1 else "pair" if True in second else "text"


def class_name(task: Task, numbers: Sequence[int]) -> str | list[str]:
    """How an example's class is called, or its tags."""
    names = [task.classes[number] for number in numbers]
    return names if isinstance(task, TaggedTask) else names[0]


def _some(task: Task, config: FinetuningConfig) -> Task:
    """A task with only as many examples as are wanted."""

    def some(part: list[Any], count: int) -> list[Any]:
        chosen = in_checksum_order(task.groups(part))[:count]
        return [part[at] for at in sorted(chosen)] if count else part

    counts = config.train_examples, config.dev_examples, config.test_examples
    parts = zip((task.train, task.dev, task.test), counts, strict=True)
    train, dev, test = (some(cast("list[Any]", part), count) for part, count in parts)
    return dataclasses.replace(task, train=train, dev=dev, test=test)
