"""Pictures with one panel or one group of bars for each set of texts."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from headwise_papers.output_relevance._plots import OTHER, draw_bars, panels

__all__ = ["bars_with_baseline", "legend_above", "scale_to_means", "set_panels"]

COLUMNS = 3


def set_panels(names: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A grid with a panel for each set, for hr against updates."""
    columns = min(COLUMNS, len(names))
    figure, lines = panels(columns, -(-len(names) // columns))
    cells = [axis for line in lines for axis in line]
    for axis, name in zip(cells, names, strict=False):
        axis.set(title=name, xlabel="update", ylabel="hr")
    for axis in cells[len(names) :]:
        axis.set_visible(False)
    return figure, cells[: len(names)]


def scale_to_means(axis: Axes, *curves_ES: Tensor) -> None:
    """An axis for the means of curves: the interval of very few runs may leave it."""
    top = max(curve_ES.mean(1).max().item() for curve_ES in curves_ES)
    axis.set_ylim(0, min(1.0, 1.3 * top) or 1.0)


def legend_above(axis: Axes, *, columns: int) -> None:
    """A legend over the axes, where it hides no bar."""
    axis.legend(
        frameon=False, fontsize=8, ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )


def bars_with_baseline(
    axis: Axes,
    names: Sequence[str],
    bars: Mapping[str, Sequence[float]],
    baseline: Sequence[float],
    *,
    colours: Sequence[str],
) -> None:
    """Groups of bars, each crossed by a dashed line at its random baseline."""
    draw_bars(axis, names, bars, colours=colours)
    for place, height in enumerate(baseline):
        label = "random baseline" if place == 0 else None
        ends = [place - 0.45, place + 0.45]
        axis.plot(ends, [height, height], color=OTHER, linestyle="--", label=label)
    legend_above(axis, columns=len(bars) + 1)
