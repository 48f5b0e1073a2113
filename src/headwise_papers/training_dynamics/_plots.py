"""Figures of score and norm: curves against Eq. 10, and histograms of words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from headwise_papers.core import Result
from headwise_papers.ops.sen import theoretical_norm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "curve", "draw_histogram", "draw_sen", "draw_theory"]

COLOURS = {
    "Attn-FC": "tab:blue",
    "Attn-TC": "tab:orange",
    "Attn-TL": "tab:green",
    "Attn-TC-KF": "tab:red",
    "Attn-TC-EF": "tab:purple",
}
POINTS = 400  # of a curve; more cannot be seen


def curve(x: Shaped[Tensor, " E"], values: Float[Tensor, "E S"]) -> dict[float, Result]:
    """Return results by x, over seeds, as `draw_lines` takes them."""
    some = _thinned(len(x))
    return dict(zip(x[some].double().tolist(), map(Result, values[some].tolist()), strict=True))


def _thinned(points: int) -> Tensor:
    """Choose evenly spaced points, the first and the last among them."""
    return torch.linspace(0, points - 1, min(points, POINTS)).round().long()


def draw_histogram(
    axes: "Axes", models: Mapping[str, Float[Tensor, "S W"]], *, bins: int = 20, name: str
) -> None:
    """Draw the share of words in each bin, models overlaid, with intervals over seeds."""
    everything = torch.cat([values.flatten() for values in models.values()])
    low, high = everything.min().item(), everything.max().item()
    edges = torch.linspace(low, high if high > low else low + 1, bins + 1, dtype=everything.dtype)
    middle, width = (edges[1:] + edges[:-1]) / 2, (edges[1] - edges[0]).item()
    for label, values in models.items():
        share = torch.stack([torch.histc(v, bins, low, edges[-1].item()) / len(v) for v in values])
        found = [Result(own) for own in share.T.tolist()]
        # no share is below 0
        ends = [[min(r.mean, r.mean - r.low) for r in found], [r.high - r.mean for r in found]]
        axes.bar(
            middle.tolist(),
            [r.mean for r in found],
            width,
            yerr=ends,
            label=label,
            color=COLOURS[label],
            alpha=0.55,
            error_kw={"elinewidth": 0.8},
        )
    axes.set(xlabel=name, ylabel="share of words")


def draw_sen(
    axes: "Axes", scores: Float[Tensor, "E S"], norms: Float[Tensor, "E S"], m: float | int
) -> None:
    """Draw norm against score of one word, one curve per seed with a dot at its end, and Eq. 10."""
    some = _thinned(len(scores))
    for seed, (score, norm) in enumerate(zip(scores[some].T, norms[some].T, strict=True)):
        (line,) = axes.plot(score.tolist(), norm.tolist(), label=f"seed {seed}", alpha=0.8)
        axes.plot([score[-1]], [norm[-1]], "o", color=line.get_color(), markersize=4)
    draw_theory(axes, scores.max().item(), m)


def draw_theory(axes: "Axes", farthest: float, m: float | int) -> None:
    """Draw Eq. 10 up to a score."""
    reach = torch.linspace(0, max(farthest, 0.1), 200, dtype=torch.float64)
    norm = theoretical_norm(reach, m)
    axes.plot(reach.tolist(), norm.tolist(), "k--", label="Eq. 10", linewidth=1)
