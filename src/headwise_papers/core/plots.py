"""Figures in one style: bars, lines with bands, paths, histograms and matrices on panels."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.recording import Run
from headwise_papers.core.experiment import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

__all__ = [
    "bar_chart",
    "curve",
    "draw_bars",
    "draw_function",
    "draw_histogram",
    "draw_lines",
    "draw_matrix",
    "draw_paths",
    "legend_beside",
    "lines",
    "metric_curve",
    "named_panels",
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


def named_panels(
    names: Sequence[str], *, columns: int = 3, width: float = 4.0, height: float = 3.0
) -> "tuple[Figure, dict[str, Axes]]":
    """Return a figure with one panel per name, and the axes by name; a row has so many columns."""
    columns = min(columns, len(names))
    figure, rows = panels(columns, -(-len(names) // columns), width=width, height=height)
    cells = [axes for row in rows for axes in row]
    for axes in cells[len(names) :]:
        axes.set_visible(False)
    return figure, dict(zip(names, cells, strict=False))


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


def curve(x: "Tensor", values: "Tensor") -> dict[float, Result]:
    """Return results by x, as `draw_lines` takes them; values have one column per seed."""
    rows = values.double().tolist()
    return {float(at): Result(row) for at, row in zip(x.tolist(), rows, strict=True)}


def draw_paths(
    axes: "Axes", x: "Tensor", y: "Tensor", *, theory: "Callable[[Tensor], Tensor]", label: str
) -> None:
    """Draw y against x through training, one path per seed with a dot at its end, and a theory.

    Args:
        axes: to draw on.
        x: one row per record, one column per seed.
        y: of the same shape.
        theory: returns the expected y for some x.
        label: of the theory.
    """
    for seed, path in enumerate(zip(x.T.tolist(), y.T.tolist(), strict=True)):
        points = _thinned(list(zip(*path, strict=True)))
        (line,) = axes.plot(*zip(*points, strict=True), label=f"seed {seed}", alpha=0.8)
        axes.plot(*points[-1], "o", color=line.get_color(), markersize=4)
    draw_function(axes, theory, x.max().item(), label=label)


def draw_function(
    axes: "Axes", function: "Callable[[Tensor], Tensor]", until: float, *, label: str
) -> None:
    """Draw a function as a dashed line from 0 to a value of x."""
    import torch  # lazy: listing experiments does not need it

    x = torch.linspace(0, max(until, 0.1), 200, dtype=torch.float64)
    axes.plot(x.tolist(), function(x).tolist(), "k--", label=label, linewidth=1)


def draw_histogram(
    axes: "Axes",
    groups: "Mapping[str, Tensor]",
    *,
    bins: int = 20,
    xlabel: str = "",
    ylabel: str = "",
) -> None:
    """Draw the share of values in each bin, groups overlaid, with intervals over seeds.

    Args:
        axes: to draw on.
        groups: label -> values, one row per seed.
        bins: number of bins.
        xlabel: what the values are.
        ylabel: what the shares are of.
    """
    import numpy as np

    edges = np.histogram_bin_edges(np.concatenate([x.flatten() for x in groups.values()]), bins)
    for label, rows in groups.items():
        shares = [np.histogram(row, edges)[0] / len(row) for row in rows]
        found = [Result(own) for own in zip(*shares, strict=True)]
        means, middles = [r.mean for r in found], (edges[1:] + edges[:-1]) / 2
        # no share is below 0
        ends = [[min(r.mean, r.mean - r.low) for r in found], [r.high - r.mean for r in found]]
        axes.bar(
            middles,
            means,
            edges[1] - edges[0],
            yerr=ends,
            label=label,
            alpha=0.55,
            error_kw={"elinewidth": 0.8},
        )
    axes.set(xlabel=xlabel, ylabel=ylabel)


def draw_matrix(
    axes: "Axes",
    values: Sequence[Sequence[float]],
    *,
    texts: Sequence[Sequence[str]] = (),
    xticks: Sequence[str] = (),
    yticks: Sequence[str] = (),
    cmap: str = "Blues",
    highest: float | None = None,
) -> None:
    """Draw a matrix as colours from 0 on, with a text in each cell where texts are given.

    Args:
        axes: to draw on.
        values: by row and column.
        texts: by row and column.
        xticks: names of the columns.
        yticks: names of the rows.
        cmap: name of the colours.
        highest: value with the darkest colour; unless given, the largest there is.
    """
    highest = max(map(max, values)) if highest is None else highest
    axes.imshow(values, cmap=cmap, vmin=0, vmax=highest, aspect="auto")
    for row, own in enumerate(texts):
        for column, text in enumerate(own):
            colour = "white" if values[row][column] > 0.6 * highest else "black"
            axes.text(column, row, text, ha="center", va="center", color=colour, size=6)
    axes.set_xticks(range(len(xticks)), xticks, rotation=90, fontsize=6)
    axes.set_yticks(range(len(yticks)), yticks, fontsize=6)


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
