"""Pictures of pruned models: quality against heads, heads by kind and layer, gates."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from headwise.experiments.sparse._drawing import panels, save
from headwise.pruning.hard_concrete import HardConcrete, logistic
from headwise.recording.run import Run

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
    lines: Mapping[str, float] = {},
    logarithmic: bool = False,
) -> None:
    """Points of several models, one colour each, and a line through their means.

    Level lines are what was before pruning: of a curve's name in its colour, of another in grey.
    """
    figure, axes = panels(1, width=5.5, height=3.8)
    panel = axes[0][0]
    for place, (label, points) in enumerate(curves.items()):
        means = [(x, fmean(y for z, y in points if z == x)) for x in sorted({x for x, _ in points})]
        panel.plot(*zip(*points, strict=True), "o", color=f"C{place}", markersize=3, alpha=0.6)
        panel.plot(*zip(*means, strict=True), "-", color=f"C{place}", label=label)
    for label, level in lines.items():
        colour = f"C{list(curves).index(label)}" if label in curves else "grey"
        shown = None if label in curves else label
        panel.axhline(level, color=colour, linestyle=":", linewidth=1, label=shown)
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
    """Fig. 6: the distribution of gates for some log_alpha, drawn."""
    figure, axes = panels(3, width=3.2, height=2.6)
    random = torch.Generator().manual_seed(0)
    gate = HardConcrete()
    for panel, log_alpha in zip(axes[0], (-2.0, 0.0, 2.0), strict=True):
        noise = logistic(torch.rand(draws, generator=random))
        values = gate.with_noise(torch.full((draws,), log_alpha), noise)
        panel.hist(values.numpy(), bins=50, range=(0, 1), density=True)
        panel.set_title(f"log alpha {log_alpha:g}", fontsize=8)
        panel.set_xlabel("gate")
    save(figure, run, name)
