"""Measures of one model's heads from its table, and figures of importance and function by layer."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from headwise.analysis import POSITIONAL_SHARE, rare_gold
from headwise.recording import HeadTable
from headwise.reporting import group_of, short_name
from headwise.sites import Head
from headwise_papers.core import draw_matrix, panels
from headwise_papers.measures.ranks import rank_correlation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Grid = Sequence[Sequence[Any]]  # by layer and head
KIND = "encoder.self"
FEW = 2  # heads of a layer that are a few
HALF = 0.5  # of a layer's relevance: as much as all the others have together
AMONG = 3  # so many of a layer's heads are its most relevant ones
CONFIDENT = 0.8  # section 5.1
COLOURS = {  # purple, green and orange are the paper's
    "positional": "#b9a3dd",
    "syntactic": "#9fd19f",
    "rare words": "#f4b26b",
    "resting": "#c9d3dc",
    "": "white",
}
OTHER = "#e3d7b8"


class Best(NamedTuple):
    """Head with the largest share of a column, and the share's 95 % interval."""

    head: Head
    share: float
    low: float
    high: float


def grid(table: HeadTable, column: str) -> Tensor:
    """Return a column of the encoder as (layers, heads); NaN where there is no value."""
    layers = table.layers(column)[KIND]
    rows = [
        [float(value) if isinstance(value, float | int) else float("nan") for value in row]
        for row in layers.values()
    ]
    return torch.tensor(rows, dtype=torch.float64)


def role_grid(table: HeadTable) -> list[list[str]]:
    """Return the roles of the encoder's heads by layer, "" for none."""
    return [[str(role or "") for role in row] for row in table.layers("role")[KIND].values()]


def grids_of(
    table: HeadTable, roles: HeadTable | None = None
) -> tuple[list[list[float]], list[list[float]], list[list[str]]]:
    """Return relevance, confidence and roles by layer and head, as Figure 1 shows them.

    Args:
        table: with the columns relevance and confidence.
        roles: another table of the same heads with the column role.
    """
    relevance_LH = shares_by_layer(grid(table, "relevance"))
    return relevance_LH.tolist(), grid(table, "confidence").tolist(), role_grid(roles or table)


def shares_by_layer(relevance_LH: Tensor) -> Tensor:
    """Return relevance as shares of a layer's, the absolute values of which sum to 1.

    >>> shares_by_layer(torch.tensor([[5.0, 2.0, -1.0]])).tolist()
    [[0.625, 0.25, -0.125]]
    """
    return relevance_LH / relevance_LH.abs().sum(dim=1, keepdim=True)


def best_head(table: HeadTable, column: str, *, stack: str = "encoder.") -> Best:
    """Return the head for which a column is largest.

    Args:
        table: with the column and its interval, `_low` and `_high`.
        column: a share.
        stack: how the sites of the heads begin that are compared.
    """
    found = [
        Best(
            head, float(share), float(row[f"{column}_low"] or 0), float(row[f"{column}_high"] or 0)
        )
        for head, row in table
        if head.site.startswith(stack) and isinstance(share := row[column], float | int)
    ]
    if not found:
        raise ValueError(f"No head of {stack or 'the model'} has a value of {column}.")
    return max(found, key=lambda best: best.share)


def importance_figures(table: HeadTable) -> dict[str, float]:
    """Return what Figures 1 and 2 show, as numbers of one model.

    Layers are counted from 1, as in the paper. Needs the columns relevance, confidence, role and
    offset; without two_rarest nothing is said of the first layer.
    """
    relevance_LH = shares_by_layer(grid(table, "relevance"))
    confidence_LH = grid(table, "confidence")
    few_L = relevance_LH.topk(FEW, dim=1).values.sum(dim=1)
    agreement_L = rank_correlation(relevance_LH, confidence_LH)
    figures = {
        "share of the two most relevant heads": float(few_L.mean()),
        "share of the two most relevant heads, sign aside": float(
            relevance_LH.abs().topk(FEW, dim=1).values.sum(dim=1).mean()
        ),
        "layers in which two heads have half of the relevance": _share(few_L >= HALF),
        "rank correlation of relevance and confidence, layer 1": float(agreement_L[0]),
        "rank correlation of relevance and confidence, other layers": float(agreement_L[1:].mean()),
    }
    first = _first_layer(table) if "two_rarest" in table.columns else {}
    return figures | _positional(table, relevance_LH, confidence_LH) | first


def _positional(table: HeadTable, relevance_LH: Tensor, confidence_LH: Tensor) -> dict[str, float]:
    """Return how relevant and confident positional heads are, if there are any."""
    is_LH = torch.tensor(
        [[role in ("previous", "next") or role.startswith("offset ") for role in row]
         for row in role_grid(table)]
    )  # fmt: skip
    figures = {"positional heads": float(is_LH.sum())}
    if is_LH.any():
        place_LH = relevance_LH.argsort(dim=1, descending=True).argsort(dim=1)
        figures["positional heads among the three most relevant"] = _share(place_LH[is_LH] < AMONG)
        figures["positional heads with confidence above 0.8"] = _share(
            confidence_LH[is_LH] > CONFIDENT
        )
        figures["confidence of positional heads"] = float(confidence_LH[is_LH].mean())
    others_LH = ~is_LH
    if others_LH.any():
        figures["confidence of other heads"] = float(confidence_LH[others_LH].mean())
    return figures


def _first_layer(table: HeadTable) -> dict[str, float]:
    """Describe the first layer's most relevant head (sections 4 and 5.3)."""
    relevance_H, confidence_H, rare_H = (
        grid(table, column)[0] for column in ("relevance", "confidence", "two_rarest")
    )
    shares_H = shares_by_layer(relevance_H[None])[0]
    first, second = shares_H.topk(2).values.tolist()
    top = int(shares_H.argmax())
    return {
        "layer 1: the most relevant head points at the two rarest words": float(rare_H[top]),
        "layer 1: the most relevant head is the one for rare words": float(
            int(rare_H.argmax()) == top and float(rare_H[top]) > HALF
        ),
        "layer 1: relevance of the most relevant head over the second": first / max(second, 1e-9),
        "layer 1: confidence of the most relevant head": float(confidence_H[top]),
        "layer 1: its confidence is below the layer's median": float(
            confidence_H[top] < confidence_H.median()
        ),
    }


def rare_figures(table: HeadTable, place: Mapping[str, float]) -> dict[str, float]:
    """Describe the head of layer 1 that points most at the two rarest words (section 5.3).

    Args:
        table: with the columns rarest, two_rarest, relevance and confidence.
        place: what one fixed place reaches, from `fixed_place`.
    """
    best = best_head(table, "two_rarest", stack="encoder.0.")
    row = table.row(best.head)
    relevance_H = grid(table, "relevance")[0]
    return {
        "points at the rarest word": float(row["rarest"] or 0),
        "points at one of the two rarest": best.share,
        "points at one of the two rarest, low end": best.low,
        "points at one of the two rarest, high end": best.high,
        "a fixed place is the rarest word": place["rarest"],
        "a fixed place is one of the two rarest": place["two_rarest"],
        "is the most relevant of its layer": float(int(relevance_H.argmax()) == best.head.index),
        "confidence": float(row["confidence"] or 0),
    }


def fixed_place(sentences: Sequence[Sequence[str]], rank: Callable[[str], int]) -> dict[str, float]:
    """Return how often one place, counted from either end, has the rarest words; the best place.

    It is what a head reaches that always points at, say, the second word from the end. Sentences
    and words are counted as in `rare_gold`, where each word of a sentence is a query.

    Args:
        sentences: the words of each.
        rank: of a word, 0 for the commonest.

    >>> fixed_place([["a", "kiwi", "ate"], ["a", "dodo"]], lambda word: 1000 * len(word))
    {'rarest': 1.0, 'two_rarest': 1.0}
    """
    found = {"rarest": 0.0, "two_rarest": 0.0}
    for gold in rare_gold(sentences, rank):
        keys = {(item, key) for item, _, key in gold.right.tolist()}
        words = {item: len(sentences[item]) for item, _ in keys}
        hits: Counter[int] = Counter()
        for item, key in keys:
            for place in (key, key - words[item]):
                hits[place] += words[item]
        found[gold.label] = max(hits.values()) / sum(words.values())
    return found


def neighbour_figures(table: HeadTable, sentences: Sequence[Sequence[str]]) -> dict[str, float]:
    """Describe the best heads at the word before and after, and at any distance (section 5.1).

    Our shares leave out words that have no word at that distance. "Of all words" is the paper's
    wording: there such words count as misses.

    Args:
        table: with the columns previous, next, offset and offset_share.
        sentences: the words of each, as they were read.
    """
    lengths = [len(words) for words in sentences]

    def have(offset: int) -> float:
        return sum(max(0, length - abs(offset)) for length in lengths) / sum(lengths)

    figures = best_figures(table, ("previous", "next"))
    for column, offset in (("previous", -1), ("next", 1)):
        best = best_head(table, column)
        figures[f"{column}: best head, of all words"] = best.share * have(offset)
    offset_LH, share_LH = grid(table, "offset"), grid(table, "offset_share")
    have_LH = torch.tensor(
        [[have(0 if math.isnan(x) else int(x)) for x in row] for row in offset_LH.tolist()]
    )
    away_LH = (offset_LH != 0) & ~offset_LH.isnan()
    for name, found_LH in (("", share_LH), (", of all words", share_LH * have_LH)):
        figures[f"heads at one distance for 90 %{name}"] = float(
            (away_LH & (found_LH >= POSITIONAL_SHARE)).sum()
        )
    return figures


def best_figures(
    table: HeadTable,
    columns: Sequence[str],
    baselines: Mapping[str, float] = {},
    *,
    stack: str = "encoder.",
) -> dict[str, float]:
    """Return the best head's share of each column, its interval, and the baseline if known.

    Args:
        table: columns that it lacks are left out.
        columns: shares, for example the relations of Table 1.
        baselines: by column.
        stack: how the sites of the heads begin that are compared.
    """
    figures: dict[str, float] = {}
    for column in (column for column in columns if column in table.columns):
        best = best_head(table, column, stack=stack)
        figures[f"{column}: best head"] = best.share
        figures[f"{column}: best head, low end"] = best.low
        figures[f"{column}: best head, high end"] = best.high
        if column in baselines:
            figures[f"{column}: baseline"] = baselines[column]
    return figures


def _share(which: Tensor) -> float:
    return float(which.double().mean())


def draw_grids(models: Mapping[str, Sequence[Any]]) -> "Figure":
    """Draw Figures 1 and 2: one row per model; in each layer the most relevant head comes first.

    Args:
        models: relevance, confidence and roles, by title.
    """
    figure, axes = panels(3, len(models), width=3.6, height=2.9)
    for row, (model, (relevance, *others)) in zip(axes, models.items(), strict=True):
        order = [sorted(range(len(layer)), key=lambda head: -layer[head]) for layer in relevance]
        grids = [_sorted(values, order) for values in (relevance, *others)]
        for panel, values in zip(row, grids[:2], strict=False):
            draw_matrix(panel, values, texts=[[f"{x:.2f}" for x in layer] for layer in values])
        _draw_cells(row[2], grids[2])
        for panel, measure in zip(row, ("importance (LRP)", "confidence", "function"), strict=True):
            panel.set_title(f"{model}\n{measure}", fontsize=8)
            panel.set_yticks(range(len(order)), [str(1 + layer) for layer in range(len(order))])
            panel.set_ylabel("layer", fontsize=8)
            panel.set_xticks([])
    return figure


def _sorted(values: Grid, order: Sequence[Sequence[int]]) -> Grid:
    return [[row[head] for head in heads] for row, heads in zip(values, order, strict=True)]


def _draw_cells(panel: "Axes", roles: Sequence[Sequence[str]]) -> None:
    """Draw one cell per head, in the colour of its role."""
    from matplotlib.colors import to_rgb

    groups = [[COLOURS.get(group_of(role) if role else "", OTHER) for role in row] for row in roles]
    panel.imshow([[to_rgb(colour) for colour in row] for row in groups], aspect="auto")
    for layer, row in enumerate(roles):
        for place, role in enumerate(row):
            label = short_name(role) if role else ""
            panel.text(place, layer, label, ha="center", va="center", size=6)


def draw_roles(table: HeadTable) -> "Figure":
    """Draw what each head of a model does, one panel per kind of attention."""
    kinds = table.layers("role")
    figure, axes = panels(len(kinds), width=6.0, height=1 + 0.28 * len(next(iter(kinds.values()))))
    for panel, (kind, layers) in zip(axes[0], kinds.items(), strict=True):
        _draw_cells(panel, [[str(role or "") for role in row] for row in layers.values()])
        panel.set_yticks(range(len(layers)), [str(1 + layer) for layer in layers])
        panel.set_title(kind, fontsize=8)
        panel.set(xlabel="head", ylabel="layer")
    return figure
