"""Figures 1 and 2: patterns as matrices, and heads of encoders in the course of their training."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.sparse_transformer._drawing import panels, save

__all__ = ["draw_heads", "draw_patterns"]

COLOURS = "Blues"
FEW_TOKENS, FEW_HEADS = 16, 8  # so many have room for the names of tokens


def draw_patterns(matrices: Mapping[str, Tensor], tokens: Sequence[str], run: Run) -> None:
    """Fig. 2: a panel a pattern."""
    figure, axes = panels(len(matrices), width=2.3, height=2.6)
    for axis, (name, matrix_TT) in zip(axes[0], matrices.items(), strict=True):
        _map(axis, matrix_TT)
        _name_keys(axis, tokens, fontsize=7)
        _name_queries(axis, tokens, fontsize=7)
        axis.set_title(f"[{name.capitalize()}]", fontsize=9)
    _colour_bar(figure, axes)
    save(figure, run, "patterns")


def draw_heads(
    maps: Mapping[str, Mapping[str, Tensor]], tokens: Sequence[str], layer: int, run: Run
) -> None:
    """Fig. 1: the heads of one layer from left to right; rows are moments of each training.

    Tokens are named at the left and below, if they are few enough to be read.

    Args:
        maps: model -> moment -> weights (L, H, T, T).
        tokens: of the text.
        layer: the one that is drawn.
        run: where the picture goes.
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
    save(figure, run, "heads")


def _map(axis: Axes, map_TT: Tensor) -> None:
    axis.imshow(map_TT.numpy(), cmap=COLOURS, vmin=0, vmax=1)


def _name_keys(axis: Axes, tokens: Sequence[str], *, fontsize: int) -> None:
    """Below: what is looked at."""
    axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=fontsize)
    axis.tick_params(axis="x", length=2)


def _name_queries(axis: Axes, tokens: Sequence[str], *, fontsize: int) -> None:
    """At the left: what looks."""
    axis.set_yticks(range(len(tokens)), tokens, fontsize=fontsize)
    axis.tick_params(axis="y", length=2)


def _colour_bar(figure: Figure, axes: Sequence[Sequence[Axes]]) -> None:
    """What the shades mean, once for all panels."""
    scale = ScalarMappable(Normalize(0, 1), COLOURS)
    every = [axis for line in axes for axis in line]
    bar = figure.colorbar(scale, ax=every, shrink=min(0.8, 3 / len(axes)), aspect=25, pad=0.01)
    bar.set_label("attention weight, a row sums to 1", fontsize=8)
    bar.ax.tick_params(labelsize=8)
