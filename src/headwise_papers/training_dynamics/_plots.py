"""Drawing curves, histograms and SEN relations, with 95 % intervals over seeds."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import NORMAL, STUDENT
from headwise_papers.measures.sen import theoretical_norm

__all__ = [
    "COLOURS",
    "band",
    "draw_band",
    "draw_histogram",
    "draw_sen",
    "panels",
    "save",
]

COLOURS = {
    "FC": "tab:blue",
    "TC": "tab:orange",
    "TL": "tab:green",
    "KF": "tab:red",
    "EF": "tab:purple",
}
DPI = 110
POINTS = 400  # of a curve; more cannot be seen


def panels(
    columns: int, rows: int = 1, *, width: float = 3.2, height: float = 2.7
) -> tuple[Figure, list[list[Axes]]]:
    """A figure and its axes by row and column."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [[axes[row, column] for column in range(columns)] for row in range(rows)]


def save(figure: Figure, run: Run, name: str) -> Path:
    """Write a figure to the run's pictures."""
    path = run.path(f"pictures/{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path


def band(values: Float[Tensor, "E S"]) -> tuple[Tensor, Tensor]:
    """Mean over seeds and half of Student's 95 % interval, which is 0 for one seed.

    >>> mean, half = band(torch.tensor([[0.9, 1.0, 1.1]]))
    >>> round(mean.item(), 2), round(half.item(), 2)
    (1.0, 0.25)
    """
    seeds = values.shape[1]
    if seeds == 1:
        return values[:, 0], torch.zeros_like(values[:, 0])
    quantile = STUDENT[seeds - 2] if seeds - 2 < len(STUDENT) else NORMAL
    return values.mean(1), quantile * values.std(1) / math.sqrt(seeds)


def _thinned(points: int) -> Tensor:
    """Which of many points to draw, first and last among them."""
    return torch.linspace(0, points - 1, min(points, POINTS)).round().long()


def draw_band(
    axis: Axes, x: Float[Tensor, " E"], values: Float[Tensor, "E S"], *, label: str, colour: str
) -> None:
    """A curve's mean over seeds with its interval as a band."""
    some = _thinned(len(x))
    mean, half = band(values[some])
    axis.plot(x[some].tolist(), mean.tolist(), label=label, color=colour)
    low, high = (mean - half).tolist(), (mean + half).tolist()
    axis.fill_between(x[some].tolist(), low, high, color=colour, alpha=0.25, linewidth=0)


def draw_histogram(
    axis: Axes, models: Mapping[str, Float[Tensor, "S W"]], *, bins: int = 20, name: str
) -> None:
    """Share of words in each bin, models overlaid; bars are means over seeds, with intervals."""
    everything = torch.cat([values.flatten() for values in models.values()])
    low, high = everything.min().item(), everything.max().item()
    edges = torch.linspace(low, high if high > low else low + 1, bins + 1, dtype=everything.dtype)
    middle, width = (edges[1:] + edges[:-1]) / 2, (edges[1] - edges[0]).item()
    for label, values in models.items():
        share = torch.stack([torch.histc(v, bins, low, edges[-1].item()) / len(v) for v in values])
        mean, half = band(share.T)
        axis.bar(
            middle.tolist(),
            mean.tolist(),
            width,
            yerr=torch.stack([half.minimum(mean), half]).tolist(),  # no share is below 0
            label=label,
            color=COLOURS[label.removeprefix("Attn-")],
            alpha=0.55,
            error_kw={"elinewidth": 0.8},
        )
    axis.set(xlabel=name, ylabel="share of words")


def draw_sen(
    axis: Axes,
    scores: Float[Tensor, "E S"],
    norms: Float[Tensor, "E S"],
    m: float | int,
    *,
    names: Sequence[str],
) -> None:
    """Norm against score of one word, a curve a seed with a dot at its end, and Eq. 10 dashed."""
    some = _thinned(len(scores))
    for score, norm, name in zip(scores[some].T, norms[some].T, names, strict=True):
        (line,) = axis.plot(score.tolist(), norm.tolist(), label=name, alpha=0.8)
        axis.plot(
            score[-1:].tolist(), norm[-1:].tolist(), "o", color=line.get_color(), markersize=4
        )
    reach = torch.linspace(0, max(scores.max().item(), 0.1), 200, dtype=torch.float64)
    theory = theoretical_norm(reach, m)
    axis.plot(reach.tolist(), theory.tolist(), "k--", label="Eq. 10", linewidth=1)
