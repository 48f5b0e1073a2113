"""Learning curves as inline SVG: a chart a metric, drawn without a script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.reporting.drawing import line, picture, words
from headwise.reporting.markup import Html, element, join
from headwise.reporting.numerals import decimals_for, written

Number = float | int
Point = tuple[Number, Number]  # (step, value)

QUALITY = ("loss", "accuracy")
MOST_POINTS = 400  # a chart is 480 units wide; more points would only fall on each other
WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 10, 38


@dataclass(frozen=True)
class Curve:
    """One metric over the steps at which it was logged."""

    name: str
    points: tuple[Point, ...]

    @property
    def is_thinned(self) -> bool:
        """Whether the chart shows means of neighbouring steps instead of every step."""
        return len(self.points) > MOST_POINTS

    def shown(self) -> list[Point]:
        """At most `MOST_POINTS` points: all of them, or means of equal runs of neighbours."""
        if not self.is_thinned:
            return list(self.points)
        width = math.ceil(len(self.points) / MOST_POINTS)
        runs = (self.points[at : at + width] for at in range(0, len(self.points), width))
        return [_mean_point(run) for run in runs]


def curves_of(metrics: Sequence[dict[str, float | int]]) -> list[Curve]:
    """The curves of `run.metrics()`: how good first, then the others as they first appear."""
    found = dict.fromkeys(name for entry in metrics for name in entry if name != "step")
    names = sorted(found, key=lambda name: QUALITY.index(name) if name in QUALITY else len(QUALITY))
    return [
        Curve(name, tuple((entry["step"], entry[name]) for entry in metrics if name in entry))
        for name in names
    ]


def curves_section(curves: Sequence[Curve]) -> Html:
    """The section with one chart a metric."""
    charts = element("div", *map(_figure, curves), attributes={"class": "charts"})
    return element("section", element("h2", "Learning"), charts, attributes={"id": "learning"})


def curves_data(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """What the page's script shows under the pointer: the points that were drawn, as text."""
    data: list[dict[str, Any]] = []
    for curve in curves:
        points = curve.shown()
        decimals = decimals_for(value for _, value in points)
        data.append(
            {
                "name": curve.name,
                "texts": [
                    f"step {step:,.0f}: {written(value, decimals=decimals)}"
                    for step, value in points
                ],
            }
        )
    return data


def _figure(curve: Curve) -> Html:
    step, last = curve.points[-1]
    text = f"{written(last, decimals=decimals_for([last]))} at step {step:,}"
    note = " (each point is a mean of neighbouring steps)" if curve.is_thinned else ""
    caption = element(
        "figcaption", element("strong", curve.name), " ", element("span", text + note)
    )
    return element("figure", caption, _chart(curve, label=f"{curve.name} by step, last {text}"))


def _chart(curve: Curve, *, label: str) -> Html:
    points = curve.shown()
    steps, values = [step for step, _ in points], [value for _, value in points]
    rows = nice_ticks(min(values), max(values))
    columns = [tick for tick in nice_ticks(steps[0], steps[-1]) if steps[0] <= tick <= steps[-1]]
    places = [
        (_across(step, steps[0], steps[-1]), _down(value, rows[0], rows[-1]))
        for step, value in points
    ]
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    last_x, last_y = places[-1]
    return picture(
        *(_row(tick, rows) for tick in rows),
        *(_column(tick, columns, steps) for tick in columns),
        element("polyline", attributes={"points": listed}),
        element("circle", attributes={"cx": f"{last_x:.1f}", "cy": f"{last_y:.1f}", "r": 3}),
        words("step", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, anchor="middle"),
        width=WIDTH,
        height=HEIGHT,
        label=label,
    )


def nice_ticks(low: Number, high: Number) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, that reach from `low` to `high`.

    >>> nice_ticks(0.1, 3.7)
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        reach = abs(low) / 2 or 1.0
        low, high = low - reach, high + reach
    wanted = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= wanted)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _across(step: Number, first: Number, last: Number) -> float:
    share = (step - first) / (last - first) if last > first else 0.5
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _down(value: Number, low: Number, high: Number) -> float:
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _row(tick: Number, ticks: Sequence[Number]) -> Html:
    y = _down(tick, ticks[0], ticks[-1])
    label = words(_tick_label(tick, ticks), x=LEFT - 8, y=y + 4, anchor="end")
    return join([line(LEFT, y, WIDTH - RIGHT, y), label])


def _column(tick: Number, ticks: Sequence[Number], steps: Sequence[Number]) -> Html:
    x = _across(tick, steps[0], steps[-1])
    return words(_tick_label(tick, ticks), x=x, y=HEIGHT - BOTTOM + 17, anchor="middle")


def _tick_label(tick: Number, ticks: Sequence[Number]) -> str:
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    if step < 1e-4 or abs(tick) >= 1e7:
        return f"{tick:g}"
    return written(tick, decimals=max(0, math.ceil(-math.log10(step) - 1e-9)))


def _mean_point(points: Sequence[Point]) -> Point:
    steps, values = zip(*points, strict=True)
    return sum(steps) / len(points), sum(values) / len(points)
