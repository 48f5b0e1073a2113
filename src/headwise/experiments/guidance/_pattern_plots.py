"""Figures 1 and 2: patterns as matrices, and heads of encoders in the course of their training."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from torch import Tensor

from headwise.experiments.sparse._drawing import panels, save
from headwise.recording.run import Run

__all__ = ["draw_heads", "draw_patterns"]


def draw_patterns(matrices: Mapping[str, Tensor], tokens: Sequence[str], run: Run) -> None:
    """Fig. 2: a panel a pattern."""
    figure, (axes,) = panels(len(matrices), width=2.3, height=2.6)
    for axis, (name, matrix_TT) in zip(axes, matrices.items(), strict=True):
        _map(axis, matrix_TT)
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
        axis.set_yticks(range(len(tokens)), tokens, fontsize=7)
        axis.set_title(f"[{name.capitalize()}]", fontsize=9)
    save(figure, run, "patterns")


def draw_heads(
    maps: Mapping[str, Mapping[str, Tensor]], tokens: Sequence[str], layer: int, run: Run
) -> None:
    """Fig. 1: the heads of one layer from left to right; rows are moments of each training.

    Args:
        maps: model -> moment -> weights (L, H, T, T).
        tokens: of the text.
        layer: the one that is drawn.
        run: where the picture goes.
    """
    rows = [
        (model, moment, maps_LHTT[layer])
        for model, moments in maps.items()
        for moment, maps_LHTT in moments.items()
    ]
    columns = rows[0][2].shape[0]
    figure, axes = panels(columns, len(rows), width=1.0, height=1.1)
    for line, (model, moment, maps_HTT) in zip(axes, rows, strict=True):
        for head, (axis, map_TT) in enumerate(zip(line, maps_HTT, strict=True)):
            _map(axis, map_TT)
            axis.set_xticks([])
            axis.set_yticks([])
            if line is axes[0]:
                axis.set_title(f"head {head}", fontsize=7)
        line[0].set_ylabel(f"{model}\n{moment}", fontsize=7)
    figure.suptitle(f"layer {layer} reading {' '.join(tokens)}", fontsize=8)
    save(figure, run, "heads")


def _map(axis: Axes, map_TT: Tensor) -> None:
    axis.imshow(map_TT.numpy(), cmap="Blues", vmin=0, vmax=1)
