"""Figures in one style: bars with intervals, lines with bands, panels."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.recording import Run
from headwise_papers.core.experiment import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "bar_chart",
    "draw_bars",
    "draw_lines",
    "legend_beside",
    "lines",
    "metric_curve",
    "panels",
]

SMALL = 8  # font size of labels and legends
MAX_POINTS = 400  # of a line; more cannot be seen
LEGEND_WIDTH = 2.0  # inches
Curve = Mapping[float, Result] | Mapping[int, Result]  # results by x


def panels(
    columns: int, rows: int = 1, *, width: float = 4.0, height: float = 3.0
) -> "tuple[Figure, list[list[Axes]]]":
    """Return a figure and its axes by row and column; width and height are of one panel."""
    from matplotlib.figure import Figure  # lazy: training does not need matplotlib

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [[axes[row, column] for column in range(columns)] for row in range(rows)]


def bar_chart(
    results: Mapping[str, Result],
    *,
    where: Callable[[str], bool] = lambda name: True,
    label: Callable[[str], str] = lambda name: name,
    ylabel: str = "",
) -> "Figure":
    """Draw one bar per result, with its interval and each seed as a dot.

    Args:
        results: by name.
        where: chooses results by name.
        label: returns what stands below a bar.
        ylabel: what the bars show.
    """
    chosen = {label(name): result for name, result in results.items() if where(name)}
    figure, axes = panels(1, width=max(4.0, 0.6 * len(chosen) + 1))
    draw_bars(axes[0][0], {"": chosen}, ylabel=ylabel)
    return figure


def draw_bars(
    axes: "Axes", groups: Mapping[str, Mapping[str, Result]], *, ylabel: str = ""
) -> None:
    """Draw bars side by side, with intervals and seeds; what was not measured has no bar.

    Args:
        axes: to draw on.
        groups: series -> place on the horizontal axis -> result. Series have a colour each.
        ylabel: what the bars show.
    """
    places = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / len(groups)
    for index, (series, group) in enumerate(groups.items()):
        at = [places.index(name) + (index + 0.5) * width - 0.4 for name in group]
        found = list(group.values())
        ends = [[r.mean - r.low for r in found], [r.high - r.mean for r in found]]
        means, colour = [r.mean for r in found], f"C{index}"
        axes.bar(at, means, width, yerr=ends, label=series, color=colour, alpha=0.7)
        seeds = [(x, value) for x, r in zip(at, found, strict=True) for value in r.values]
        axes.plot(*zip(*seeds, strict=True), ".", color="black", markersize=3)
    axes.set_xticks(range(len(places)), places, rotation=20, ha="right", fontsize=SMALL)
    axes.set_ylabel(ylabel, fontsize=SMALL)
    if any(groups):
        axes.legend(frameon=False, fontsize=SMALL)


def lines(
    curves: Mapping[str, Curve], *, xlabel: str = "", ylabel: str = "", title: str = ""
) -> "Figure":
    """Draw curves of means over seeds in one panel; see `draw_lines`."""
    figure, axes = panels(1, width=5.0, height=3.5)
    draw_lines(axes[0][0], curves, xlabel=xlabel, ylabel=ylabel, title=title)
    return figure


def draw_lines(
    axes: "Axes",
    curves: Mapping[str, Curve],
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    colours: Mapping[str, str] = {},
    marker: str = "",
    legend: bool = True,
) -> None:
    """Draw means over seeds, with their 95 % intervals as bands.

    Args:
        axes: to draw on.
        curves: label -> x -> result.
        xlabel: what the horizontal axis shows.
        ylabel: what the vertical axis shows.
        title: of the panel.
        colours: by label; others take the next one.
        marker: of points, for example "o" where they are few.
        legend: whether labels are shown inside; `legend_beside` shows them once for all panels.
    """
    for index, (label, curve) in enumerate(curves.items()):
        points = _thinned(sorted(curve.items()))
        x, found = [at for at, _ in points], [result for _, result in points]
        colour, mean = colours.get(label, f"C{index}"), [r.mean for r in found]
        axes.plot(x, mean, marker=marker, markersize=4, label=label, color=colour)
        low, high = [r.low for r in found], [r.high for r in found]
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel(xlabel, fontsize=SMALL)
    axes.set_ylabel(ylabel, fontsize=SMALL)
    axes.set_title(title, fontsize=SMALL + 1)
    axes.tick_params(labelsize=SMALL)
    if legend:
        axes.legend(frameon=False, fontsize=SMALL)


def metric_curve(runs: Sequence[Run], metric: str) -> dict[int, Result]:
    """Return a logged metric by step, over seeds, at the steps that all runs have."""
    logged = [
        {int(row["step"]): float(row[metric]) for row in run.metrics() if metric in row}
        for run in runs
    ]
    steps = sorted(set[int].intersection(*map(set, logged)))
    return {step: Result([own[step] for own in logged]) for step in steps}


def legend_beside(figure: "Figure", axes: "Sequence[Axes]", *, title: str = "") -> None:
    """Show one legend for all panels, at their right, where it covers no line."""
    known = {}
    for panel in axes:
        known |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.set_figwidth(figure.get_figwidth() + LEGEND_WIDTH)
    figure.legend(
        known.values(),
        known.keys(),
        loc="outside right upper",
        frameon=False,
        fontsize=SMALL,
        title=title or None,
        title_fontsize=SMALL,
        alignment="left",
    )


def _thinned(points: list[Any]) -> list[Any]:
    """Keep evenly spaced points, the first and the last among them."""
    count = min(len(points), MAX_POINTS)
    last = max(count - 1, 1)
    return [points[round(index * (len(points) - 1) / last)] for index in range(count)]
