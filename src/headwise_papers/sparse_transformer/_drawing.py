"""Figures with panels, written to a run."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.recording.run import Run

__all__ = ["panels", "save"]

DPI = 110


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
