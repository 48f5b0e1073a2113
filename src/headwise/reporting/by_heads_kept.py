"""Pictures of a pruning as inline SVG: quality against heads, and how sure gates are."""

from collections.abc import Sequence

from headwise.reporting.curves import nice_ticks
from headwise.reporting.drawing import bar, line, picture, words
from headwise.reporting.markup import Html, element

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 10, 40
BINS = 20
Point = tuple[float | int, float | int, str]  # across, up, and what is said under the pointer


def scatter(points: Sequence[Point], *, across: str, up: str) -> Html:
    """Points, and a line through them in their order.

    Args:
        points: at least one.
        across: what the horizontal axis is.
        up: what the vertical one is.
    """
    columns = nice_ticks(min(x for x, _, _ in points), max(x for x, _, _ in points))
    rows = nice_ticks(min(y for _, y, _ in points), max(y for _, y, _ in points))
    places = [(_across(x, columns), _down(y, rows)) for x, y, _ in points]
    dots = [
        element(
            "circle",
            element("title", f"{tip}: {x:g} {across}, {up} {y:.4g}"),
            attributes={"cx": f"{left:.1f}", "cy": f"{top:.1f}", "r": 3},
        )
        for (x, y, tip), (left, top) in zip(points, places, strict=True)
    ]
    listed = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    return picture(
        *_axes(columns, rows, across),
        element("polyline", attributes={"points": listed, "style": "stroke-width:1"}),
        *dots,
        width=WIDTH,
        height=HEIGHT,
        label=f"{up} against {across}",
    )


def histogram(values: Sequence[float | int]) -> Html:
    """How many of some shares fall into each twentieth of 0 to 1."""
    counts = [0] * BINS
    for value in values:
        counts[min(int(value * BINS), BINS - 1)] += 1
    columns, rows = [0.0, 0.25, 0.5, 0.75, 1.0], nice_ticks(0, max(counts))
    bars: list[Html] = []
    for place, count in enumerate(counts):
        left, right = (_across(edge / BINS, columns) for edge in (place, place + 1))
        top, bottom = _down(count, rows), _down(0, rows)
        tip = f"{count} between {place / BINS:.2f} and {(place + 1) / BINS:.2f}"
        bars.append(bar(x=left + 1, y=top, width=right - left - 2, height=bottom - top, tip=tip))
    axes = _axes(columns, rows, "P(open)")
    return picture(*axes, *bars, width=WIDTH, height=HEIGHT, label="histogram of P(open)")


def _axes(columns: Sequence[float], rows: Sequence[float], across: str) -> list[Html]:
    drawn = [line(LEFT, _down(tick, rows), WIDTH - RIGHT, _down(tick, rows)) for tick in rows]
    drawn += [words(f"{t:g}", x=LEFT - 8, y=_down(t, rows) + 4, anchor="end") for t in rows]
    below = HEIGHT - BOTTOM + 17
    drawn += [words(f"{t:g}", x=_across(t, columns), y=below, anchor="middle") for t in columns]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*drawn, words(across, x=middle, y=HEIGHT - 4, anchor="middle")]


def _across(value: float | int, ticks: Sequence[float]) -> float:
    share = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _down(value: float | int, ticks: Sequence[float]) -> float:
    share = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
