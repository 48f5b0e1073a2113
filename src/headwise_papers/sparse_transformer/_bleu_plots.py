"""Means of methods beside each other, for papers whose experiments are not yet folded."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from headwise_papers.core.base import Estimate

__all__ = ["draw_methods"]

COLOUR, SEED = "tab:blue", "black"
ENOUGH = 3  # seeds for an interval that says anything


def draw_methods(
    axes: Axes,
    values: Mapping[str, Sequence[float]],
    label: str,
    *,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Means with 95 % intervals over three seeds or more, and each seed as a small dot.

    Args:
        axes: where.
        values: of every method one a seed.
        label: what they are.
        limits: between which they must lie; intervals are not drawn beyond.
    """
    for place, found in enumerate(values.values()):
        estimate = Estimate.of(found, difference=True)
        ends = [max(estimate.low, limits[0]), min(estimate.high, limits[1])]
        if len(found) >= ENOUGH:
            axes.plot(ends, [place, place], color=COLOUR, linewidth=1.5)
        axes.plot(estimate.mean, place, "|", color=COLOUR, markersize=11, markeredgewidth=2)
        axes.plot(found, [place] * len(found), ".", color=SEED, markersize=5)
    axes.set_yticks(range(len(values)), list(values), fontsize=8)
    axes.set_ylim(max(1, len(values)) - 0.5, -0.5)  # the first on top
    interval = "95 % interval, " * any(len(found) >= ENOUGH for found in values.values())
    axes.set_xlabel(f"{label}; mean, {interval}seeds", fontsize=8)
