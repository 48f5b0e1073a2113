"""Pictures of pruned models: quality against heads, heads by kind and layer, gates."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from headwise.pruning.hard_concrete import HardConcrete, logistic
from headwise.recording.run import Run
from headwise_papers.sparse_transformer._drawing import panels, save

__all__ = ["draw_counts", "draw_curves", "draw_gates", "draw_histograms"]

Points = Sequence[tuple[float, float]]
COLUMNS = 3
MOST_INSIDE = 5  # names that a legend may have inside of a panel


def draw_curves(
    curves: Mapping[str, Points],
    run: Run,
    name: str,
    *,
    across: str,
    up: str,
    lines: Mapping[str, Sequence[float]] = {},
    apart: Mapping[str, Points] = {},
    logarithmic: bool = False,
) -> None:
    """Points of several models, one colour each, and a line through their means.

    Args:
        curves: points by name.
        run: where the picture goes.
        name: of the picture.
        across: what the horizontal axis shows.
        up: what the vertical one does.
        lines: levels before pruning; those of a curve have its name and colour, others are grey.
        apart: points of a curve, by its name, that come from a fixed lambda: no line joins them.
        logarithmic: whether the vertical axis is.
    """
    figure, axes = panels(1, width=5.5, height=3.8)
    panel = axes[0][0]
    for place, (label, points) in enumerate(curves.items()):
        means = [(x, fmean(y for z, y in points if z == x)) for x in sorted({x for x, _ in points})]
        panel.plot(*zip(*points, strict=True), "o", color=f"C{place}", markersize=3, alpha=0.6)
        panel.plot(*zip(*means, strict=True), "-", color=f"C{place}", label=label)
    names = list(curves)
    for label, points in apart.items():
        at = names.index(label)
        shown = None if at else "with a fixed lambda"
        panel.plot(*zip(*points, strict=True), "x", color=f"C{at}", markersize=5, label=shown)
    for label, levels in lines.items():
        colour = f"C{names.index(label)}" if label in curves else "grey"
        shown = label if label not in curves else None if names.index(label) else "before pruning"
        for number, level in enumerate(levels):
            told = None if number else shown
            panel.axhline(level, color=colour, linestyle=":", linewidth=1, label=told)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    if logarithmic:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.yaxis.set_minor_formatter(FormatStrFormatter("%g"))
    if len(curves) > MOST_INSIDE:
        panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        panel.legend(fontsize=7)
    save(figure, run, name)


def draw_counts(
    counts: Mapping[str, Mapping[str, Mapping[int, float]]], run: Run, name: str, *, across: str
) -> None:
    """Panels of counts: title -> line -> {place: count}."""
    figure, places = _in_rows(len(counts), width=4.2, height=3.2)
    for panel, (title, lines) in zip(places, counts.items(), strict=False):
        for label, values in lines.items():
            panel.plot(list(values), list(values.values()), "o-", label=label, markersize=4)
        panel.set_title(title, fontsize=8)
        panel.set_xlabel(across)
        panel.set_ylabel("heads left")
        panel.legend(fontsize=7)
    save(figure, run, name)


def draw_histograms(values: Mapping[str, Sequence[float]], run: Run, name: str) -> None:
    """P(open) of all gates, a panel a model."""
    figure, places = _in_rows(len(values), width=3.2, height=2.6)
    for panel, (title, several) in zip(places, values.items(), strict=False):
        panel.hist(several, bins=20, range=(0, 1))
        panel.set_title(title, fontsize=8)
        panel.set_xlabel("P(open), at the last evaluation")
        panel.set_ylabel("gates")
    save(figure, run, name)


def _in_rows(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """So many panels, some to a row; places that are left over are empty."""
    columns = min(COLUMNS, max(1, count))
    figure, axes = panels(columns, max(1, -(-count // columns)), width=width, height=height)
    places = [panel for row in axes for panel in row]
    for panel in places[count:]:
        panel.set_axis_off()
    return figure, places


def draw_gates(run: Run, name: str, *, draws: int = 200_000) -> None:
    """Fig. 6, drawn: how the distribution is stretched and clipped, and gates by log_alpha."""
    figure, axes = panels(4, width=3.2, height=2.6)
    random = torch.Generator().manual_seed(0)
    gate = HardConcrete()
    stretched, *others = axes[0]
    _draw_stretched(stretched, gate, logistic(torch.rand(draws, generator=random)))
    for panel, log_alpha in zip(others, (-2.0, 0.0, 2.0), strict=True):
        noise = logistic(torch.rand(draws, generator=random))
        values = gate.with_noise(torch.full((draws,), log_alpha), noise)
        panel.hist(values.numpy(), bins=50, range=(0, 1), density=True)
        panel.set_title(f"log alpha {log_alpha:g}", fontsize=8)
        panel.set_xlabel("gate")
    for panel in axes[0]:
        panel.set_ylabel("density")
    save(figure, run, name)


def _draw_stretched(panel: Axes, gate: HardConcrete, noise: torch.Tensor) -> None:
    low, high = gate.limits
    concrete = torch.sigmoid(noise / gate.temperature)
    stages = {"Concrete": concrete, "stretched": concrete * (high - low) + low}
    stages["clipped"] = gate.with_noise(torch.zeros(len(noise)), noise)
    for label, values in stages.items():
        panel.hist(
            values.numpy(), 60, range=(low, high), density=True, histtype="step", label=label
        )
    panel.set_title("log alpha 0, step by step", fontsize=8)
    panel.set_xlabel("value")
    panel.legend(fontsize=7)
