"""Costs of trainings, as results."""

from collections.abc import Mapping, Sequence

from headwise.recording import Run
from headwise_papers.core import Result, trained_in_parallel

__all__ = ["costs"]

TIMES = ("minutes", "tokens_per_second")


def costs(runs: Sequence[Run], names: Mapping[str, str]) -> dict[str, Result]:
    """Return figures of trainings, one value per run, by the name that is shown.

    Times are left out if any of the models shared the machine, as they would say nothing.

    Args:
        runs: of models that differ by seed.
        names: shown names by name of the figure.
    """
    figures = [run.figures() for run in runs]
    left_out = TIMES if trained_in_parallel(runs) else ()
    return {
        shown: Result([float(own[name]) for own in figures])
        for name, shown in names.items()
        if name not in left_out
    }
