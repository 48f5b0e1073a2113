"""Pictures of heads: importance, confidence and function by layer, grammar, rare words."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from headwise.recording import HeadTable, Run
from headwise.reporting.role_groups import group_of, short_name
from headwise_papers.core.base import Estimate
from headwise_papers.sparse_transformer._drawing import panels, save

__all__ = ["draw_bars", "draw_grids", "draw_maps", "draw_positions", "draw_roles"]

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


def draw_grids(
    grids: Mapping[str, Mapping[str, Tensor | Sequence[Sequence[str]]]],
    order: Mapping[str, Tensor],
    run: Run,
    name: str,
) -> None:
    """Fig. 1 and 2: a row a model, a column a measure; in each layer the most relevant head first.

    Args:
        grids: model -> measure -> values (L, H), or roles by layer.
        order: model -> relevance (L, H), by which heads are sorted.
        run: where the picture goes.
        name: of the picture.
    """
    columns = max(map(len, grids.values()))
    figure, axes = panels(columns, len(grids), width=3.6, height=2.9)
    for row, (model, measures) in zip(axes, grids.items(), strict=True):
        place_LH = order[model].argsort(dim=1, descending=True)
        for panel, (measure, values) in zip(row, measures.items(), strict=False):
            if isinstance(values, Tensor):
                _draw_values(panel, values.gather(1, place_LH))
            else:
                _draw_roles(panel, values, place_LH.tolist())
            panel.set_title(f"{model}\n{measure}", fontsize=8)
            panel.set_yticks(
                range(len(place_LH)), [str(1 + layer) for layer in range(len(place_LH))]
            )
            panel.set_xticks([])
            panel.set_ylabel("layer", fontsize=8)
    save(figure, run, name)


def _draw_values(panel: Axes, values_LH: Tensor) -> None:
    most = float(values_LH.max())
    panel.imshow(values_LH.numpy(), cmap="Blues", vmin=0, vmax=most, aspect="auto")
    for layer, row in enumerate(values_LH.tolist()):
        for head, value in enumerate(row):
            colour = "white" if value > 0.6 * most else "black"
            panel.text(head, layer, f"{value:.2f}", ha="center", va="center", color=colour, size=6)


def _draw_roles(panel: Axes, roles: Sequence[Sequence[str]], place: list[list[int]]) -> None:
    panel.set_xlim(-0.5, len(place[0]) - 0.5)
    panel.set_ylim(len(place) - 0.5, -0.5)
    for layer, row in enumerate(place):
        for at, head in enumerate(row):
            role = roles[layer][head]
            colour = COLOURS.get(group_of(role) if role else "", OTHER)
            panel.add_patch(
                Rectangle((at - 0.5, layer - 0.5), 1, 1, facecolor=colour, edgecolor="white")
            )
            label = short_name(role) if role else ""
            panel.text(at, layer, label, ha="center", va="center", size=6)


def draw_roles(table: HeadTable, run: Run, name: str) -> None:
    """What each head of a model does, a panel a kind of attention, heads in their order."""
    kinds = table.layers("role")
    figure, axes = panels(len(kinds), width=6.0, height=1 + 0.28 * len(next(iter(kinds.values()))))
    for panel, (kind, layers) in zip(axes[0], kinds.items(), strict=True):
        roles = [[str(role or "") for role in row] for row in layers.values()]
        _draw_roles(panel, roles, [list(range(len(row))) for row in roles])
        panel.set_yticks(range(len(roles)), [str(1 + layer) for layer in layers])
        panel.set_title(kind, fontsize=8)
        panel.set(xlabel="head", ylabel="layer")
    save(figure, run, name)


def draw_bars(
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    baselines: Mapping[str, float],
    run: Run,
    name: str,
) -> None:
    """Fig. 4: a group of bars a relation, a bar a model, and the baseline as a line.

    Args:
        scores: model -> label -> the best head's share, a value a seed.
        baselines: label -> what one fixed distance reaches.
        run: where the picture goes.
        name: of the picture.
    """
    labels = [label for label in baselines if any(label in found for found in scores.values())]
    figure, ((panel,),) = panels(1, width=1.2 * max(4, len(labels)), height=3.4)
    width = 0.8 / len(scores)
    for index, (model, found) in enumerate(scores.items()):
        own = [label for label in labels if label in found]
        at = [labels.index(label) + width * (index + 0.5) - 0.4 for label in own]
        estimates = [Estimate.of(found[label]) for label in own]
        bars = [[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]]
        means = [estimate.mean for estimate in estimates]
        panel.bar(at, means, width=width, yerr=bars, label=model, error_kw={"linewidth": 0.8})
    for place, label in enumerate(labels):
        panel.hlines(baselines[label], place - 0.45, place + 0.45, color="black", linewidth=1.2)
    names = [label.replace("_", " ") for label in labels]
    panel.set_xticks(range(len(labels)), names, rotation=30, ha="right", fontsize=8)
    panel.set_ylabel("share of the best head; line: baseline", fontsize=8)
    panel.legend(frameon=False, fontsize=8)
    save(figure, run, name)


def draw_positions(counts: Mapping[str, Mapping[int, int]], run: Run, name: str) -> None:
    """Fig. 3: where dependents stand relative to their head, a panel a relation."""
    figure, axes = panels(len(counts), width=2.8, height=2.4)
    for panel, (relation, found) in zip(axes[0], counts.items(), strict=True):
        total = sum(found.values())
        places = range(-SHOWN, SHOWN + 1)
        panel.bar(places, [found.get(place, 0) / max(total, 1) for place in places])
        panel.set_title(f"{relation}, {total:,}", fontsize=9)
        panel.set_xlabel("dependent's place, head's 0", fontsize=8)
    axes[0][0].set_ylabel("share", fontsize=8)
    save(figure, run, name)


def draw_maps(maps: Mapping[str, tuple[Sequence[str], Tensor]], run: Run, name: str) -> None:
    """Fig. 5: one head's attention on a sentence, a panel a model.

    Args:
        maps: title -> the sentence's pieces, and weights (T, T), a row a query.
        run: where the picture goes.
        name: of the picture.
    """
    figure, axes = panels(len(maps), width=3.8, height=3.6)
    for panel, (title, (pieces, weights_TT)) in zip(axes[0], maps.items(), strict=True):
        panel.imshow(weights_TT.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
        panel.set_xticks(range(len(pieces)), pieces, rotation=90, fontsize=6)
        panel.set_yticks(range(len(pieces)), pieces, fontsize=6)
        panel.set_title(title, fontsize=8)
    save(figure, run, name)
