"""Drawing curves over updates with 99 % intervals over runs, and bars in groups."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from headwise.recording.run import Run

__all__ = ["ALPHA", "BETA", "OTHER", "draw_bars", "draw_curve", "interval_99", "panels", "save"]

ALPHA, BETA, OTHER = "tab:red", "tab:blue", "tab:grey"  # the paper's colours of Fig. 2
DPI = 110

# Two-sided 99 % quantiles of Student's t for 1, 2, ... degrees of freedom, then some larger ones.
STUDENT_99 = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055,
              3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797,
              2.787, 2.779, 2.771, 2.763, 2.756, 2.750)  # fmt: skip
MANY_99 = 2.68  # for 49


def panels(
    columns: int, rows: int = 1, *, width: float = 4.0, height: float = 3.0
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


def interval_99(values: Float[Tensor, "E S"]) -> tuple[Tensor, Tensor]:
    """Mean over runs and half of its 99 % interval, which is 0 for one run."""
    count = values.shape[1]
    if count < 2:
        return values.mean(1), values.new_zeros(len(values))
    quantile = STUDENT_99[count - 2] if count - 2 < len(STUDENT_99) else MANY_99
    return values.mean(1), quantile * values.std(1) / math.sqrt(count)


def draw_curve(
    axes: Axes, steps: Tensor, values: Float[Tensor, "E S"], *, colour: str, label: str
) -> None:
    """A mean over runs and its 99 % interval."""
    mean, half = (x.numpy() for x in interval_99(values.double().cpu()))
    x = steps.cpu().numpy()
    axes.plot(x, mean, color=colour, label=label, linewidth=1.5)
    axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)


def draw_bars(
    axes: Axes, names: Sequence[str], bars: Mapping[str, Sequence[float]], *, colours: Sequence[str]
) -> None:
    """Groups of bars, a group a name, a bar of each group a label."""
    width = 0.8 / len(bars)
    for index, ((label, heights), colour) in enumerate(zip(bars.items(), colours, strict=True)):
        at = [place + (index - (len(bars) - 1) / 2) * width for place in range(len(names))]
        axes.bar(at, heights, width=width, label=label, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.legend(frameon=False, fontsize=8)
