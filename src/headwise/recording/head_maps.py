"""Heat maps of heads: layer by head, a panel per kind of attention. Imports matplotlib."""

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure

Panel = Mapping[int, Sequence[float | int | None]]  # layer -> value by head


def draw(panels: Mapping[str, Panel], *, title: str) -> Figure:
    """One panel per kind, all on one colour scale; every value is also written in its cell.

    Args:
        panels: kind of attention -> layer -> value by head; None leaves a cell empty. At least one
            value is a number.
        title: what the values are.
    """
    widths = [max(map(len, panel.values())) for panel in panels.values()]
    tallest = max(map(len, panels.values()))
    figure = Figure(figsize=(1.5 + 0.6 * sum(widths), 1.2 + 0.45 * tallest), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    scale, colours = _colours(panels)
    for axis, (kind, panel) in zip(axes, panels.items(), strict=True):
        _draw_panel(axis, panel, scale, colours)
        axis.set_title(kind)
    figure.colorbar(ScalarMappable(scale, colours), ax=list(axes), label=title)
    return figure


def _colours(panels: Mapping[str, Panel]) -> tuple[Normalize, Colormap]:
    rows = [row for panel in panels.values() for row in panel.values()]
    values = [value for row in rows for value in row if value is not None]
    low, high = min(values), max(values)
    if low < 0 < high:
        reach = max(-low, high)
        return Normalize(-reach, reach), colormaps["RdBu_r"]
    return Normalize(low, high), colormaps["viridis"]


def _draw_panel(axis: Axes, panel: Panel, scale: Normalize, colours: Colormap) -> None:
    width = max(map(len, panel.values()))
    nan = float("nan")  # what matplotlib leaves empty
    grid = [
        [nan if value is None else value for value in [*row, *[None] * (width - len(row))]]
        for row in panel.values()
    ]
    axis.imshow(grid, cmap=colours, norm=scale, aspect="auto")
    axis.set_xticks(range(width), [f"H{head}" for head in range(width)])
    axis.set_yticks(range(len(panel)), [f"L{layer}" for layer in panel])
    for place, row in enumerate(panel.values()):
        for head, value in enumerate(row):
            if value is not None:
                ink = _ink(colours(float(scale(value))))
                axis.text(head, place, f"{value:.2g}", ha="center", va="center", color=ink, size=8)


def _ink(background: tuple[float, float, float, float]) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue, _ = background
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
