"""Patterns as matrices, attention of encoders as maps, how much of one lies on the other, plots."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.guidance import CONVENTIONS, Aim, ConventionName
from headwise.ops import Attended, Scores
from headwise.ops.guidance import Pattern, targets
from headwise.sites import Site, observe
from headwise_papers.core import panels
from headwise_papers.models.encoder import Encoder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "attention_maps",
    "draw_heads",
    "draw_patterns",
    "pattern_matrices",
    "weight_on_patterns",
]

COLOURS = "Blues"
FEW_TOKENS, FEW_HEADS = 16, 8  # names of tokens are shown for at most so many


def pattern_matrices(
    ids: Sequence[int], aims: Mapping[str, Aim], *, convention: ConventionName = "mean"
) -> dict[str, Tensor]:
    """Return the weights that each pattern wants in a text, (T, T) with one row per query.

    Args:
        ids: the tokens of the text.
        aims: patterns by name.
        convention: how rows are counted that see no key of the pattern, or several.
    """
    known, counted = list(aims.values()), CONVENTIONS[convention]
    patterns = tuple(
        _pattern(aim, place, normalised=counted.normalised, uniform=counted.edges == "uniform")
        for place, aim in enumerate(known)
    )
    return dict(zip(aims, _targets(ids, known, patterns), strict=True))


def weight_on_patterns(
    maps_LHTT: Tensor, ids: Sequence[int], aims: Mapping[str, Aim]
) -> dict[str, Tensor]:
    """Return how much of each head's weight lies on the keys of a pattern, (L, H).

    The mean over the rows that see a key of the pattern: those at the edge of a text do not count.
    """
    known = list(aims.values())
    patterns = tuple(
        _pattern(aim, place, normalised=False, uniform=False) for place, aim in enumerate(known)
    )
    found: dict[str, Tensor] = {}
    for name, aimed_TT in zip(aims, _targets(ids, known, patterns), strict=True):
        rows_T = aimed_TT.any(dim=1)
        on_LHT = (maps_LHTT * aimed_TT).sum(dim=-1)
        found[name] = on_LHT[..., rows_T].mean(dim=-1)
    return found


@torch.no_grad()
def attention_maps(encoder: Encoder, ids: Sequence[int]) -> Tensor:
    """Return all weights of an encoder reading one text, (L, H, T, T), on the CPU."""
    maps: list[Tensor] = []

    def keep(site: Site, attended: Attended) -> None:
        maps.append(attended.weights[0].float().cpu())

    device = next(encoder.parameters()).device
    with observe(encoder, keep):
        encoder.eval()(torch.tensor([list(ids)], device=device))
    return torch.stack(maps)


def _pattern(aim: Aim, place: int, *, normalised: bool, uniform: bool) -> Pattern:
    edges = "uniform" if uniform else "nothing"
    if aim.tokens:
        return Pattern(key_set=place, normalised=normalised, edges=edges)
    if aim.offset is not None:
        return Pattern(offset=aim.offset, normalised=normalised, edges=edges)
    return Pattern(column=0, normalised=normalised, edges=edges)


def _targets(
    ids: Sequence[int], aims: Sequence[Aim], patterns: tuple[Pattern, ...]
) -> list[Tensor]:
    """Return the matrix of each pattern; the key sets of those without tokens are empty."""
    held = [[[token in aim.tokens for token in ids]] for aim in aims]
    q_BNTD = torch.zeros(1, len(aims), len(ids), 1)
    scores = Scores(q_BNTD, q_BNTD)
    visible_BNTT = torch.ones(1, len(aims), len(ids), len(ids), dtype=torch.bool)
    matrices_NTT = targets(scores, visible_BNTT, patterns, torch.tensor(held))[0]
    return list(matrices_NTT.float().unbind())


def draw_patterns(matrices: Mapping[str, Tensor], tokens: Sequence[str]) -> "Figure":
    """Draw Fig. 2, one panel per pattern."""
    figure, axes = panels(len(matrices), width=2.3, height=2.6)
    for axis, (name, matrix_TT) in zip(axes[0], matrices.items(), strict=True):
        _map(axis, matrix_TT)
        _name_keys(axis, tokens, fontsize=7)
        _name_queries(axis, tokens, fontsize=7)
        axis.set_title(f"[{name.capitalize()}]", fontsize=9)
    _colour_bar(figure, axes)
    return figure


def draw_heads(
    maps: Mapping[str, Mapping[str, Tensor]], tokens: Sequence[str], layer: int
) -> "Figure":
    """Draw Fig. 1: the heads of one layer; rows are moments of each training.

    Tokens are named at the left and below, if they are few enough to be read.

    Args:
        maps: model -> moment -> weights (L, H, T, T).
        tokens: of the text.
        layer: the one that is drawn.
    """
    rows = [
        (f"{model}, {moment}", maps_LHTT[layer])
        for model, moments in maps.items()
        for moment, maps_LHTT in moments.items()
    ]
    columns = rows[0][1].shape[0]
    named = len(tokens) <= FEW_TOKENS and columns <= FEW_HEADS
    size = 1.45 if named else 1.1
    figure, axes = panels(columns, len(rows), width=size, height=size)
    for line, (row, maps_HTT) in zip(axes, rows, strict=True):
        for head, (axis, map_TT) in enumerate(zip(line, maps_HTT, strict=True)):
            _map(axis, map_TT)
            axis.set(xticks=[], yticks=[])
            if line is axes[0]:
                axis.set_title(f"head {head}", fontsize=8)
        line[0].set_ylabel(row, fontsize=8)
    if named:
        for axis in axes[-1]:
            _name_keys(axis, tokens, fontsize=6)
        for line in axes:
            _name_queries(line[0], tokens, fontsize=6)
    _colour_bar(figure, axes)
    figure.suptitle(f"layer {layer} reading {' '.join(tokens)}", fontsize=9)
    return figure


def _map(axis: "Axes", map_TT: Tensor) -> None:
    axis.imshow(map_TT.numpy(), cmap=COLOURS, vmin=0, vmax=1)


def _name_keys(axis: "Axes", tokens: Sequence[str], *, fontsize: int) -> None:
    """Name keys below."""
    axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=fontsize)
    axis.tick_params(axis="x", length=2)


def _name_queries(axis: "Axes", tokens: Sequence[str], *, fontsize: int) -> None:
    """Name queries at the left."""
    axis.set_yticks(range(len(tokens)), tokens, fontsize=fontsize)
    axis.tick_params(axis="y", length=2)


def _colour_bar(figure: "Figure", axes: "Sequence[Sequence[Axes]]") -> None:
    """Show what the shades mean, once for all panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, 1), COLOURS)
    every = [axis for line in axes for axis in line]
    bar = figure.colorbar(scale, ax=every, shrink=min(0.8, 3 / len(axes)), aspect=25, pad=0.01)
    bar.set_label("attention weight, a row sums to 1", fontsize=8)
    bar.ax.tick_params(labelsize=8)
