"""Charts with two axes: where ticks, lines, dots and bars lie, in the units of an SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headwise.reporting.measures import Number, decimals_for, written

QUALITY = ("loss", "accuracy")
MOST_POINTS = 400  # a chart is 480 units wide; more points would only fall on each other
BINS = 20
WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 52, WIDTH - 14, 10, HEIGHT - 38  # edges of the area between the axes
Point = tuple[Number, Number]


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Args:
        ticks: values that are labelled.
        span: values at its two ends.
        places: where these ends lie.
    """

    ticks: Sequence[Number]
    span: Point
    places: Point

    def place(self, value: Number) -> float:
        """Return where a value lies."""
        (low, high), (start, end) = self.span, self.places
        share = (value - low) / (high - low) if high > low else 0.5
        return round(start + share * (end - start), 1)

    @property
    def labels(self) -> list[tuple[float, str]]:
        """Place and text of each tick."""
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        decimals = max(0, math.ceil(-math.log10(step) - 1e-9))

        def text(tick: Number) -> str:
            is_extreme = step < 1e-4 or abs(tick) >= 1e7
            return f"{tick:g}" if is_extreme else written(tick, decimals=decimals)

        return [(self.place(tick), text(tick)) for tick in self.ticks]


@dataclass(frozen=True)
class Mark:
    """A dot or, if it has a size, a bar; a browser shows `tip` under the pointer."""

    x: float
    y: float
    tip: str = ""
    width: float = 0
    height: float = 0


@dataclass(frozen=True)
class Chart:
    """One chart.

    Args:
        label: description for those who cannot see it.
        title: name of the horizontal axis.
        across: horizontal axis.
        up: vertical axis.
        line: points that a line joins.
        dots: points that are marked.
        bars: bars of a histogram.
    """

    label: str
    title: str
    across: Axis
    up: Axis
    line: Sequence[Point] = ()
    dots: Sequence[Mark] = ()
    bars: Sequence[Mark] = ()


@dataclass(frozen=True)
class Curve:
    """One metric over the steps at which it was logged."""

    name: str
    points: tuple[Point, ...]

    @property
    def is_thinned(self) -> bool:
        """Whether the chart shows means of neighbouring steps instead of every step."""
        return len(self.points) > MOST_POINTS

    @property
    def last(self) -> str:
        """The last value and its step."""
        step, value = self.points[-1]
        return f"{written(value, decimals=decimals_for([value]))} at step {step:,}"

    @property
    def shown(self) -> list[Point]:
        """At most `MOST_POINTS` points: all of them, or means of neighbours."""
        if not self.is_thinned:
            return list(self.points)
        width = math.ceil(len(self.points) / MOST_POINTS)
        runs = [self.points[at : at + width] for at in range(0, len(self.points), width)]
        return [(_mean([s for s, _ in run]), _mean([v for _, v in run])) for run in runs]

    @property
    def texts(self) -> list[str]:
        """Tips of the points that are shown."""
        points = self.shown
        decimals = decimals_for(value for _, value in points)
        return [f"step {step:,.0f}: {written(value, decimals=decimals)}" for step, value in points]

    @property
    def chart(self) -> Chart:
        """The metric by step."""
        points = self.shown
        first, last = points[0][0], points[-1][0]
        steps = [tick for tick in nice_ticks(first, last) if first <= tick <= last]
        across = Axis(steps, (first, last), (LEFT, RIGHT))
        up = _vertical([value for _, value in points])
        line = [(across.place(step), up.place(value)) for step, value in points]
        label = f"{self.name} by step, last {self.last}"
        return Chart(label, "step", across, up, line, dots=[Mark(*line[-1])])


def curves_of(metrics: Sequence[dict[str, Number]]) -> list[Curve]:
    """Return the curves of `run.metrics()`: quality first, then the others as they first appear."""
    found = dict.fromkeys(name for entry in metrics for name in entry if name != "step")
    names = sorted(found, key=lambda name: QUALITY.index(name) if name in QUALITY else len(QUALITY))
    return [
        Curve(name, tuple((entry["step"], entry[name]) for entry in metrics if name in entry))
        for name in names
    ]


def scatter(points: Sequence[tuple[Number, Number, str]], *, title: str, up: str) -> Chart:
    """Return a chart of points and a line through them in their order.

    Args:
        points: at least one: place on both axes, and the beginning of its tip.
        title: name of the horizontal axis.
        up: name of the vertical axis.
    """
    ticks = nice_ticks(min(x for x, _, _ in points), max(x for x, _, _ in points))
    across, axis = _horizontal(ticks), _vertical([y for _, y, _ in points])
    dots = [
        Mark(across.place(x), axis.place(y), f"{tip}: {x:g} {title}, {up} {y:.4g}")
        for x, y, tip in points
    ]
    line = [(dot.x, dot.y) for dot in dots]
    return Chart(f"{up} against {title}", title, across, axis, line, dots)


def histogram(values: Sequence[Number], *, title: str) -> Chart:
    """Return a histogram of shares, in twentieths of 0 to 1."""
    counts = [0] * BINS
    for value in values:
        counts[min(int(value * BINS), BINS - 1)] += 1
    across, up = _horizontal(nice_ticks(0, 1)), _vertical([0, *counts])
    bars: list[Mark] = []
    for place, count in enumerate(counts):
        low, high = place / BINS, (place + 1) / BINS
        left, top = across.place(low) + 1, up.place(count)
        width, height = across.place(high) - left - 1, up.place(0) - top
        tip = f"{count} between {low:.2f} and {high:.2f}"
        bars.append(Mark(left, top, tip, round(width, 1), round(height, 1)))
    return Chart(f"histogram of {title}", title, across, up, bars=bars)


def nice_ticks(low: Number, high: Number) -> list[float]:
    """Return round numbers, 1, 2 or 5 times a power of ten apart, that enclose `low` and `high`.

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


def _horizontal(ticks: Sequence[Number]) -> Axis:
    return Axis(ticks, (ticks[0], ticks[-1]), (LEFT, RIGHT))


def _vertical(values: Sequence[Number]) -> Axis:
    ticks = nice_ticks(min(values), max(values))
    return Axis(ticks, (ticks[0], ticks[-1]), (BOTTOM, TOP))


def _mean(values: Sequence[Number]) -> float:
    return sum(values) / len(values)
