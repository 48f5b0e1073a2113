"""Pictures of BLEU: methods beside each other, and curves over k."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from headwise.recording.run import Run
from headwise_papers.core.base import Estimate
from headwise_papers.sparse_transformer._drawing import panels, save

__all__ = ["draw_curve", "draw_methods", "draw_table"]

COLOUR, SEED = "tab:blue", "black"
ENOUGH = 3  # seeds for an interval that says anything


def draw_table(
    values: Mapping[str, Mapping[str, Sequence[float]]],
    kinds: Mapping[str, str],
    run: Run,
    name: str,
) -> None:
    """A column a corpus: BLEU of each method, and below it how far it is from the first one.

    Args:
        values: corpus -> method -> a value a seed.
        kinds: the kind of BLEU of each corpus.
        run: where the picture goes.
        name: of the picture.
    """
    figure, axes = panels(len(values), 2, height=2.6)
    for column, (corpus, found) in enumerate(values.items()):
        base, *others = found
        draw_methods(axes[0][column], found, kinds[corpus])
        axes[0][column].set_title(corpus, fontsize=10)
        apart = {
            method: [a - b for a, b in zip(found[method], found[base], strict=True)]
            for method in others
        }
        draw_methods(axes[1][column], apart, f"less {base}, same seed")
        axes[1][column].axvline(0, color="black", linewidth=0.8)
    save(figure, run, name)


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


def draw_curve(
    axes: Axes, values: Mapping[str, Sequence[float]], *, label: str, colour: str = COLOUR
) -> None:
    """Means over seeds with 95 % intervals, a place a name in their order."""
    estimates = [Estimate.of(found, difference=True) for found in values.values()]
    places, means = range(len(estimates)), [estimate.mean for estimate in estimates]
    bars = [[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]]
    axes.errorbar(places, means, bars, color=colour, marker="o", markersize=4, label=label)
    axes.set_xticks(places, list(values))
