"""Figures of heads: importance, confidence and function by layer, grammar, rare words, gates."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.recording import HeadTable
from headwise.reporting import group_of, short_name
from headwise_papers.core import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_grids", "draw_histograms", "draw_maps", "draw_positions", "draw_roles"]

Grid = Sequence[Sequence[float]]  # by layer and head
# purple, green and orange are the paper's
COLOURS = {
    "positional": "#b9a3dd",
    "syntactic": "#9fd19f",
    "rare words": "#f4b26b",
    "resting": "#c9d3dc",
    "": "white",
}
OTHER = "#e3d7b8"
SHOWN = 10  # distances on either side
COLUMNS = 3  # of histograms


def draw_grids(models: Mapping[str, Sequence[Any]]) -> "Figure":
    """Draw Figures 1 and 2: one row per model; in each layer the most relevant head comes first.

    Args:
        models: relevance, confidence and roles, by title.
    """
    figure, axes = panels(3, len(models), width=3.6, height=2.9)
    for row, (model, (relevance, confidence, roles)) in zip(axes, models.items(), strict=True):
        order = [sorted(range(len(layer)), key=lambda head: -layer[head]) for layer in relevance]
        _draw_values(row[0], _sorted(relevance, order))
        _draw_values(row[1], _sorted(confidence, order))
        _draw_roles(row[2], roles, order)
        for panel, measure in zip(row, ("importance (LRP)", "confidence", "function"), strict=True):
            panel.set_title(f"{model}\n{measure}", fontsize=8)
            panel.set_yticks(range(len(order)), [str(1 + layer) for layer in range(len(order))])
            panel.set_xticks([])
            panel.set_ylabel("layer", fontsize=8)
    return figure


def _sorted(values: Grid, order: Sequence[Sequence[int]]) -> list[list[float]]:
    return [[row[head] for head in heads] for row, heads in zip(values, order, strict=True)]


def _draw_values(panel: "Axes", values: Grid) -> None:
    most = max(map(max, values))
    panel.imshow(values, cmap="Blues", vmin=0, vmax=most, aspect="auto")
    for layer, row in enumerate(values):
        for head, value in enumerate(row):
            colour = "white" if value > 0.6 * most else "black"
            panel.text(head, layer, f"{value:.2f}", ha="center", va="center", color=colour, size=6)


def _draw_roles(
    panel: "Axes", roles: Sequence[Sequence[str]], order: Sequence[Sequence[int]]
) -> None:
    from matplotlib.patches import Rectangle

    panel.set_xlim(-0.5, len(order[0]) - 0.5)
    panel.set_ylim(len(order) - 0.5, -0.5)
    for layer, heads in enumerate(order):
        for at, head in enumerate(heads):
            role = roles[layer][head]
            colour = COLOURS.get(group_of(role) if role else "", OTHER)
            place = (at - 0.5, layer - 0.5)
            panel.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white"))
            label = short_name(role) if role else ""
            panel.text(at, layer, label, ha="center", va="center", size=6)


def draw_roles(table: HeadTable) -> "Figure":
    """Draw what each head of a model does, one panel per kind of attention."""
    kinds = table.layers("role")
    figure, axes = panels(len(kinds), width=6.0, height=1 + 0.28 * len(next(iter(kinds.values()))))
    for panel, (kind, layers) in zip(axes[0], kinds.items(), strict=True):
        roles = [[str(role or "") for role in row] for row in layers.values()]
        _draw_roles(panel, roles, [range(len(row)) for row in roles])
        panel.set_yticks(range(len(roles)), [str(1 + layer) for layer in layers])
        panel.set_title(kind, fontsize=8)
        panel.set(xlabel="head", ylabel="layer")
    return figure


def draw_positions(counts: Mapping[str, Mapping[str, int]]) -> "Figure":
    """Draw Figure 3: the places of dependents relative to their head, one panel per relation."""
    figure, axes = panels(len(counts), width=2.8, height=2.4)
    for panel, (relation, found) in zip(axes[0], counts.items(), strict=True):
        total = sum(found.values())
        places = range(-SHOWN, SHOWN + 1)
        panel.bar(places, [found.get(str(place), 0) / max(total, 1) for place in places])
        panel.set_title(f"{relation}, {total:,}", fontsize=9)
        panel.set_xlabel("place of the dependent, head at 0", fontsize=8)
    axes[0][0].set_ylabel("share", fontsize=8)
    return figure


def draw_maps(maps: Mapping[str, Sequence[Any]]) -> "Figure":
    """Draw Figure 5: one head's attention on a sentence, one panel per model.

    Args:
        maps: tokens and weights (one row per query), by title.
    """
    figure, axes = panels(len(maps), width=3.8, height=3.6)
    for panel, (title, (tokens, weights)) in zip(axes[0], maps.items(), strict=True):
        panel.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        panel.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
        panel.set_yticks(range(len(tokens)), tokens, fontsize=6)
        panel.set_title(title, fontsize=8)
    return figure


def draw_histograms(values: Mapping[str, Sequence[float]]) -> "Figure":
    """Draw P(g > 0) of all gates, one panel per model."""
    columns = min(COLUMNS, len(values))
    figure, axes = panels(columns, -(-len(values) // columns), width=3.2, height=2.6)
    places = [panel for row in axes for panel in row]
    for panel in places[len(values) :]:
        panel.set_axis_off()
    for panel, (title, several) in zip(places, values.items(), strict=False):
        panel.hist(several, bins=20, range=(0, 1))
        panel.set_title(title, fontsize=8)
        panel.set_xlabel("P(open), at the last evaluation")
        panel.set_ylabel("gates")
    return figure
