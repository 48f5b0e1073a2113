"""Figures of pre-trainings: losses by arm, how far arms are apart seed by seed, and costs.

A training that diverged has no loss: it is left out of losses and, with its partner, of
differences; it did not converge, and was on the plateau throughout. How many there are is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headwise.recording.run import Run
from headwise_papers.attention_guidance._frequencies import CONVERGED
from headwise_papers.attention_guidance._pretraining import FREQUENCIES, diverged, in_company
from headwise_papers.core.base import Trials
from headwise_papers.core.claims import sure

__all__ = [
    "LOSSES",
    "Runs",
    "apart",
    "claim_figures",
    "converged",
    "convergence_figures",
    "cost_figures",
    "difference",
    "difference_figures",
    "frequency_loss_of",
    "loss_figures",
    "lower",
    "pairwise",
    "plateau_figures",
    "updates_on_plateau",
    "values_of",
]

Runs = Mapping[str, Sequence[Run]]  # of each arm, one a seed
Values = dict[str, list[float]]

LOSSES = {"train": "train_loss", "validation": "validation_loss", "average": "average_loss"}
COSTS = {
    "updates": ("updates", 1),
    "million pieces seen": ("tokens_seen", 1e6),
    "minutes": ("minutes", 1),
    "thousand pieces a second": ("tokens_per_second", 1e3),
    "share of an H200's arithmetic": ("model_flops_utilisation", 1),
    "million parameters": ("parameters", 1e6),
}
SPEEDS = ("minutes", "tokens_per_second", "model_flops_utilisation")


def lower(part: str, what: str, first: str, second: str) -> str:
    """The name of the claim that a loss is lower."""
    return f"{part}: {what} loss of {first} lower than of {second}"


def difference(part: str, what: str, first: str, second: str) -> str:
    """The name of how far two losses are apart."""
    return f"{part}: {what} loss of {first} less {second}"


def values_of(runs: Sequence[Run], name: str) -> list[float]:
    """A figure of each run that did not diverge; nothing where one of these lacks it."""
    found: list[Any] = [run.figures().get(name) for run in runs if not diverged(run)]
    return [] if None in found else [float(value) for value in found]


def pairwise(first: Sequence[Run], second: Sequence[Run], name: str) -> list[float]:
    """Differences of a figure, seed by seed of those that both have and that did not diverge."""
    both = [
        pair for pair in zip(first, second, strict=False) if not any(diverged(run) for run in pair)
    ]
    own, other = (values_of([pair[at] for pair in both], name) for at in (0, 1))
    return apart(own, other)


def loss_figures(part: str, runs: Runs) -> Values:
    """Train, validation and average loss of each arm; beside, the guidance loss at the end.

    Where trainings diverged, how many.
    """
    figures: Values = {
        f"{part}: trainings that diverged, {arm}": [float(number)]
        for arm, several in runs.items()
        if (number := sum(map(diverged, several)))
    }
    for what, name in (LOSSES | {"guidance": "guidance_loss"}).items():
        for arm, several in runs.items():
            if several and (values := values_of(several, name)):
                figures[f"{part}: {what} loss of {arm}"] = values
    return figures


def difference_figures(part: str, runs: Runs, pairs: Sequence[tuple[str, str]]) -> Values:
    """For each loss and pair of arms the differences, seed by seed of those that both have."""
    return {difference(part, what, *pair): found for what, pair, found in _differences(runs, pairs)}


def claim_figures(part: str, runs: Runs, pairs: Sequence[tuple[str, str]]) -> Values:
    """For each loss and pair of arms whether that of the first is surely lower, see `sure`."""
    return {
        lower(part, what, *pair): [sure([-x for x in found])]
        for what, pair, found in _differences(runs, pairs)
    }


def _differences(
    runs: Runs, pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, tuple[str, str], list[float]]]:
    for what, name in LOSSES.items():
        for first, second in pairs:
            if found := pairwise(runs.get(first, ()), runs.get(second, ()), name):
                yield what, (first, second), found


def cost_figures(part: str, runs: Runs) -> Values:
    """Updates, tokens, minutes and speed of each arm.

    Minutes and speed are of those beside which no others were trained at the same time.
    """
    figures: Values = {}
    for what, (name, unit) in COSTS.items():
        for arm, several in runs.items():
            alone = [run for run in several if not in_company([run])]
            if values := values_of(alone if name in SPEEDS else several, name):
                figures[f"{part}: {what}, {arm}"] = [value / unit for value in values]
    return figures


def plateau_figures(part: str, runs: Runs) -> Values:
    """Which arms leave the loss that frequencies alone give, and after which share of updates."""
    figures: Values = {}
    for arm, several in runs.items():
        if several:
            figures[f"{part}: loss from frequencies alone"] = [frequency_loss_of(several[0])]
            figures[f"{part}: {arm} converges"] = Trials(float(converged(run)) for run in several)
            shares = [
                1.0 if diverged(run) else updates_on_plateau(run) / run.figures()["updates"]
                for run in several
            ]
            figures[f"{part}: share of updates on the plateau, {arm}"] = shares
    return figures


def convergence_figures(part: str, runs: Runs, failing: str, beside: str) -> Values:
    """Whether one arm does not converge, of seeds in which the other does.

    In others the training may only have been too short; where there are no such seeds nothing is
    said.
    """
    both = zip(runs.get(failing, ()), runs.get(beside, ()), strict=False)
    failed = Trials(float(not converged(one)) for one, other in both if converged(other))
    return {f"{part}: {failing} does not converge": failed} if failed else {}


def frequency_loss_of(run: Run) -> float:
    """What a model loses on a pre-training's text that only knows how common pieces are."""
    return float(run.read_json(FREQUENCIES)["loss"])


def converged(run: Run) -> bool:
    """Whether an encoder ended a nat or more below what frequencies alone give."""
    if diverged(run):
        return False
    return run.figures()["validation_loss"] < frequency_loss_of(run) - CONVERGED


def updates_on_plateau(run: Run) -> int:
    """Updates until the training loss is a nat below that; all of them where it never is."""
    limit = frequency_loss_of(run) - CONVERGED
    below = (int(row["step"]) for row in run.metrics() if row.get("task_loss", limit) < limit)
    return min(below, default=int(run.figures()["updates"]))


def apart(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Differences seed by seed, of the seeds that both have.

    >>> apart([3.0, 2.0, 1.0], [1.0, 1.0])
    [2.0, 1.0]
    """
    return [a - b for a, b in zip(first, second, strict=False)]
