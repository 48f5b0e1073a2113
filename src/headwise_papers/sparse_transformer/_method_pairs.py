"""Several ways to attend, each trained with the same seeds: differences are taken seed by seed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from headwise.recording.run import Run
from headwise.training import progress_bar
from headwise_papers.core.at_once import make_at_once
from headwise_papers.core.base import Estimate

__all__ = ["Pair", "folder_name", "less_than_base", "surely", "train_pairs", "values_by_attention"]

BASE = "softmax"  # what the others are compared with


class Pair(NamedTuple):
    """One training."""

    attention: str  # as in headwise.ops.named
    seed: int

    @property
    def folder(self) -> str:
        """Where it lies in the run of its experiment."""
        return folder_name(self.attention, self.seed)


def folder_name(attention: str, seed: int) -> str:
    """Of the run of one attention and seed.

    >>> folder_name("topk:8", 2)
    'topk-8-seed-2'
    """
    return f"{attention.replace(':', '-')}-seed-{seed}"


def train_pairs(
    train: Callable[[Run, Pair], Run],
    attentions: Sequence[str],
    seeds: int,
    *,
    run: Run,
    processes: int,
) -> dict[str, list[Run]]:
    """Train every way to attend with every seed; by attention, a run a seed.

    Args:
        train: a training below the run, found if it was made; for `make_at_once`.
        attentions: how to attend.
        seeds: how many.
        run: of the experiment.
        processes: trainings at a time.
    """
    pairs = [Pair(attention, seed) for seed in range(seeds) for attention in attentions]
    make_at_once(train, pairs, run=run, processes=processes)
    runs: dict[str, list[Run]] = {attention: [] for attention in attentions}
    with progress_bar(len(pairs), label="trainings") as show:
        for done, pair in enumerate(pairs, start=1):
            runs[pair.attention].append(train(run, pair))
            show(done, {})
    return runs


def values_by_attention(
    runs: Mapping[str, Sequence[Run]], read: Callable[[Run], float | None]
) -> dict[str, list[float]]:
    """A figure of each run, by attention; without those that lack it in any of their runs."""
    found = {attention: [read(run) for run in several] for attention, several in runs.items()}
    return {
        attention: [value for value in values if value is not None]
        for attention, values in found.items()
        if None not in values
    }


def less_than_base(
    values: Mapping[str, Sequence[float]], *, better: Literal["lower", "higher"]
) -> dict[str, list[float]]:
    """For every attention but softmax: its figure less softmax's, seed by seed, and what that says.

    "better than softmax" is 1, 0.5 or 0, see `surely`.

    >>> found = less_than_base({"softmax": [3.0, 4.0], "topk:8": [2.0, 3.0]}, better="lower")
    >>> found["topk:8 less softmax"], found["topk:8 better than softmax"]
    ([-1.0, -1.0], [1.0])
    """
    figures: dict[str, list[float]] = {}
    for attention, own in values.items():
        if attention == BASE or BASE not in values:
            continue
        apart = [a - b for a, b in zip(own, values[BASE], strict=True)]
        figures[f"{attention} less softmax"] = apart
        gains = [-x for x in apart] if better == "lower" else apart
        figures[f"{attention} better than softmax"] = [surely(gains)]
    return figures


def surely(gains: Sequence[float]) -> float:
    """1 if the 95 % interval of gains is above 0, 0.5 if only their mean is, and 0 if not even it.

    One gain alone has no interval, and is never sure.

    >>> surely([0.5, 0.6, 0.7]), surely([0.5, -0.4, 0.7]), surely([-1.0]), surely([1.0])
    (1.0, 0.5, 0.0, 0.5)
    """
    gain = Estimate.of(gains, difference=True)
    if gain.mean <= 0:
        return 0.0
    return 1.0 if len(gains) > 1 and gain.low > 0 else 0.5
