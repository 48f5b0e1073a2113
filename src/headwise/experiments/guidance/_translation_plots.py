"""Pictures of Table 7: how losses fall, and how far the ways to train are apart at the end."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes

from headwise.experiments.sparse._bleu_plots import draw_methods
from headwise.experiments.sparse._drawing import panels, save
from headwise.recording.run import Run

__all__ = ["draw"]

LOSS = "validation_loss"
Runs = Mapping[str, Sequence[Run]]  # of each arm, the first being what others are compared with


def draw(found: Mapping[str, Runs], judged: Mapping[str, str], run: Run) -> None:
    """A column a corpus: validation NLL by update, then differences of average NLL and BLEU.

    Args:
        found: the runs of each corpus.
        judged: the kind of BLEU of each corpus.
        run: where the picture goes.
    """
    figure, axes = panels(len(found), 3, height=2.6)
    for column, (corpus, runs) in enumerate(found.items()):
        _curves(axes[0][column], runs)
        axes[0][column].set_title(corpus, fontsize=10)
        names = {"average_nll": "average NLL", judged[corpus]: judged[corpus].replace("_", " ")}
        for row, (name, shown) in enumerate(names.items(), start=1):
            draw_methods(axes[row][column], _apart(runs, name), f"{shown} less base")
            axes[row][column].axvline(0, color="black", linewidth=0.8)
    save(figure, run, "table-7")


def _curves(axes: Axes, runs: Runs) -> None:
    """Means over seeds, as far as all of them were evaluated."""
    for arm, several in runs.items():
        logged = [
            {row["step"]: row[LOSS] for row in run.metrics() if LOSS in row} for run in several
        ]
        steps = sorted(set.intersection(*(set(own) for own in logged)))
        axes.plot(steps, [fmean(own[step] for own in logged) for step in steps], label=arm)
    axes.set_xlabel("updates", fontsize=8)
    axes.set_ylabel("validation NLL", fontsize=8)
    axes.legend(fontsize=7)


def _apart(runs: Runs, name: str) -> dict[str, list[float]]:
    base, *others = runs
    return {
        arm: [
            own.figures()[name] - first.figures()[name]
            for own, first in zip(runs[arm], runs[base], strict=True)
        ]
        for arm in others
    }
