"""The trainings of a task: one a seed, or one a seed and fold."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from headwise_papers.data.tasks import in_checksum_order
from headwise_papers.recipes.tuning.starting import Task

__all__ = ["Split", "folds_of", "splits_of"]


class Split(NamedTuple):
    """Which examples a training learns from, stops by and is judged by."""

    name: str  # "seed-0" or "seed-0-fold-3"
    seed: int
    train: list[int]  # numbers in train, dev and test one after the other, as published
    dev: list[int]
    test: list[int]


def splits_of(task: Task, *, seeds: Sequence[int], folds: int) -> list[Split]:
    """The published parts for each seed; or, with folds, parts of all examples.

    Fold i is judged by, fold i + 1 stopped by, and the others are learnt from. Examples that are
    tied by their texts are in one fold; which one a checksum decides, so that it is the same for
    every model.

    Args:
        task: the examples.
        seeds: of the new head, of dropout and of the order of batches.
        folds: how many; 0 keeps the published parts.
    """
    sizes = [len(part) for part in (task.train, task.dev, task.test)]
    numbers = list(range(sum(sizes)))
    if not folds:
        ends = sizes[0], sizes[0] + sizes[1]
        parts = numbers[: ends[0]], numbers[ends[0] : ends[1]], numbers[ends[1] :]
        return [Split(f"seed-{seed}", seed, *parts) for seed in seeds]
    every: Any = [*task.train, *task.dev, *task.test]
    cut = folds_of(task.groups(every), folds)
    made: list[Split] = []
    for seed in seeds:
        for number, test in enumerate(cut):
            following = (number + 1) % folds
            rest = [fold for at, fold in enumerate(cut) if at not in (number, following)]
            train = sorted(place for fold in rest for place in fold)
            made.append(Split(f"seed-{seed}-fold-{number}", seed, train, cut[following], test))
    return made


def folds_of(groups: Sequence[str], count: int) -> list[list[int]]:
    """Cut places into folds of about equal size, those of one group together.

    >>> [len(fold) for fold in folds_of(["a", "b", "a", "c", "d", "e"], 3)]
    [2, 2, 2]

    Args:
        groups: what each place belongs to.
        count: folds; at least 3, as one is judged by and one stopped by.
    """
    if count < 3 or count > len(set(groups)):
        raise ValueError(
            f"folds must be 3 or more, and at most the {len(set(groups))} different texts, got "
            f"{count}."
        )
    together: dict[str, list[int]] = {}
    for place in in_checksum_order(groups):
        together.setdefault(groups[place], []).append(place)
    cut: list[list[int]] = [[] for _ in range(count)]
    # the largest first, so that small ones can even them out
    for places in sorted(together.values(), key=len, reverse=True):
        min(cut, key=len).extend(places)
    return [sorted(fold) for fold in cut]
