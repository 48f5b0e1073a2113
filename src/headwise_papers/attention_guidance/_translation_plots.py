"""Pictures of Table 7: how losses fall, and how far the ways to train are apart at the end."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes

from headwise.recording.run import Run
from headwise_papers.sparse_transformer._bleu_plots import draw_methods
from headwise_papers.sparse_transformer._drawing import panels, save

__all__ = ["draw"]

LOSS = "validation_loss"
Runs = Mapping[str, Sequence[Run]]  # of each arm, the first being what others are compared with


def draw(found: Mapping[str, Runs], judged: Mapping[str, str], run: Run) -> None:
    """A row a corpus: what arms differ by from the first, by update and then at the end.

    Args:
        found: the runs of each corpus.
        judged: the kind of BLEU of each corpus.
        run: where the picture goes.
    """
    figure, axes = panels(3, len(found), height=2.6)
    for row, (corpus, runs) in zip(axes, found.items(), strict=True):
        _curves(row[0], runs)
        row[0].set_title(corpus, fontsize=10)
        names = {
            "average_nll": "average NLL",
            judged[corpus]: judged[corpus].replace("_", " ").replace("bleu", "BLEU"),
        }
        for panel, (name, shown) in zip(row[1:], names.items(), strict=True):
            draw_methods(panel, _apart(runs, name), f"{shown} less base")
            panel.axvline(0, color="black", linewidth=0.8)
    save(figure, run, "table-7")


def _curves(axes: Axes, runs: Runs) -> None:
    """Validation NLL less that of the first arm, as far as all were evaluated: means over seeds."""
    logged = {
        arm: [{row["step"]: row[LOSS] for row in run.metrics() if LOSS in row} for run in several]
        for arm, several in runs.items()
    }
    steps = sorted(set.intersection(*(set(own) for arm in logged.values() for own in arm)))
    means = {
        arm: [fmean(own[step] for own in some) for step in steps] for arm, some in logged.items()
    }
    base, *others = means
    for arm in others:
        axes.plot(steps, [a - b for a, b in zip(means[arm], means[base], strict=True)], label=arm)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("updates", fontsize=8)
    axes.set_ylabel(f"validation NLL less {base}", fontsize=8)
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
