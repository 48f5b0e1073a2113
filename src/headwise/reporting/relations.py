"""Syntactic relations: Table 1 and Figures 3 and 4 of Voita et al. (2019)."""

from collections.abc import Mapping, Sequence

from headwise.recording.heads import HeadTable
from headwise.reporting.best_heads import (
    Best,
    best_heads,
    best_table,
    percent,
    points,
    verdict,
)
from headwise.reporting.drawing import bar, line, picture, words
from headwise.reporting.markup import Html, element
from headwise.reporting.measures import measures_of
from headwise.reporting.numerals import MINUS, written

DIRECTIONS = ("_to_head", "_to_dependent")
REACH = 8  # words either side that a distribution shows; what lies beyond is put together
Number = float | int
Counts = Mapping[int, Number]  # offset -> how often


def relation_labels(table: HeadTable) -> list[str]:
    """Columns that say how well heads follow a relation, e.g. "nsubj_to_head"."""
    return [
        name
        for name, measure in measures_of(table).items()
        if name.endswith(DIRECTIONS) and measure.is_numeric
    ]


def relations_section(
    table: HeadTable, baselines: Mapping[str, Number], offsets: Mapping[str, Counts]
) -> Html:
    """The best head for each relation and direction, against the baseline; nothing without any.

    Args:
        table: with a column for each relation and direction.
        baselines: {label: what the commonest distance reaches}.
        offsets: {label or relation: {distance: how often}}.
    """
    labels = relation_labels(table)
    found = best_heads(table, labels, baselines)
    if not found:
        return Html("")
    parts = [element("h2", "Syntactic relations"), _hint(), _table(found), _accuracy_figure(found)]
    distributions = _shown_offsets(offsets, labels)
    if distributions:
        parts.append(_offset_figures(distributions))
    return element("section", *parts, attributes={"id": "relations"})


def _hint() -> Html:
    text = (
        "How often a head's strongest word is the word that the relation leads to, asked from the "
        "dependent (to_head) and from the head (to_dependent). The baseline always answers with "
        "the commonest distance. A relation is followed if the lower end of the interval is at "
        "least 10 points above the baseline. The best of all heads was chosen on these same "
        "sentences, so its share leans to the high side."
    )
    return element("p", text, attributes={"class": "hint"})


def _table(found: Sequence[Best]) -> Html:
    more: dict[str, list[str | Html]] = {
        "baseline": [percent(best.baseline) for best in found],
        "points above": [
            "" if best.baseline is None else points(best.share, best.baseline) for best in found
        ],
        "followed": [verdict(best) for best in found],
    }
    return best_table(found, first="relation and direction", more=more)


def _accuracy_figure(found: Sequence[Best]) -> Html:
    """Figure 4: the best head's share as a bar with its interval, the baseline below it."""
    left, width, right, height = 190, 330, 60, 36
    kinds = len({best.kind for best in found}) > 1
    bottom = 6 + height * len(found)
    parts: list[Html] = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = left + tick * width
        parts.append(line(x, 0, x, bottom))
        parts.append(words(f"{100 * tick:.0f} %", x=x, y=bottom + 16, anchor="middle"))
    for place, best in enumerate(found):
        name = f"{best.label}, {best.kind}" if kinds else best.label
        parts += _accuracy_bars(best, name=name, top=6 + place * height, left=left, width=width)
    label = "; ".join(
        f"{best.label} {percent(best.share)}, baseline {percent(best.baseline) or 'unknown'}"
        for best in found
    )
    svg = picture(*parts, width=left + width + right, height=bottom + 24, label=label)
    caption = element(
        "figcaption",
        element("strong", "Best head against the baseline"),
        " ",
        element("span", "wide bars: best head, with its 95 % interval; narrow bars: baseline"),
    )
    return element("figure", caption, svg, attributes={"class": "chart bars"})


def _accuracy_bars(
    best: Best, *, name: str, top: Number, left: Number, width: Number
) -> list[Html]:
    middle = top + 7
    # long names of relations are cut rather than drawn over the bars
    shown = name if len(name) <= 28 else name[:27] + "\N{HORIZONTAL ELLIPSIS}"
    tip = f"{name}: {best.head} {percent(best.share)}"
    end = left + width * max(best.share, best.high or 0)
    parts = [
        words(shown, x=left - 8, y=top + 15, anchor="end"),
        bar(x=left, y=top, width=width * best.share, height=14, tip=tip),
        words(percent(best.share), x=end + 6, y=middle + 4),
    ]
    if best.low is not None and best.high is not None:
        low, high = left + width * best.low, left + width * best.high
        parts.append(line(low, middle, high, middle, kind="whisker"))
        parts += [line(x, middle - 4, x, middle + 4, kind="whisker") for x in (low, high)]
    if best.baseline is not None:
        tip = f"{name}: baseline {percent(best.baseline)}"
        long = width * best.baseline
        parts.append(bar(x=left, y=top + 16, width=long, height=7, kind="bar other", tip=tip))
    return parts


def _shown_offsets(
    offsets: Mapping[str, Counts], labels: Sequence[str]
) -> dict[str, tuple[str, Counts]]:
    """{label: (what stands there, counts)}; of two directions that mirror each other only one."""
    shown: dict[str, tuple[str, Counts]] = {}
    for label, counts in offsets.items():
        relation = label.removesuffix("_to_head").removesuffix("_to_dependent")
        if not counts or f"{relation}_to_head" not in labels:
            continue
        mirrored = {-offset: count for offset, count in counts.items()}
        if not label.endswith("_to_head"):
            shown[label] = ("dependent, from its head", counts)
        elif mirrored not in (offsets.get(f"{relation}_to_dependent"), offsets.get(relation)):
            shown[label] = ("head, from its dependent", counts)
    return shown


def _offset_figures(distributions: Mapping[str, tuple[str, Counts]]) -> Html:
    """Figure 3: where the other word of a relation stands, a small chart a relation."""
    title = element("h3", "Where the other word stands")
    hint = element(
        "p",
        f"Share of all pairs at each distance in words; {MINUS}1 is the word before. "
        f"The last bar on either side holds all that are {REACH} or more words away.",
        attributes={"class": "hint"},
    )
    charts = [
        element("figure", _offset_caption(label, what, counts), _offset_chart(label, counts))
        for label, (what, counts) in distributions.items()
    ]
    return element(
        "div", title, hint, element("div", *charts, attributes={"class": "charts small"})
    )


def _offset_caption(label: str, what: str, counts: Counts) -> Html:
    relation = label.removesuffix("_to_head").removesuffix("_to_dependent")
    pairs = f"{what}; {sum(counts.values()):,} pairs"
    return element("figcaption", element("strong", relation), " ", element("span", pairs))


def _offset_chart(label: str, counts: Counts) -> Html:
    shares = binned(counts)
    unit, height = 16, 96
    largest = max(shares.values()) or 1.0
    parts: list[Html] = []
    for place, (offset, share) in enumerate(shares.items()):
        tall = height * share / largest
        tip = f"{_signed(offset)}: {percent(share)}"
        parts.append(
            bar(x=place * unit + 2, y=14 + height - tall, width=unit - 4, height=tall, tip=tip)
        )
        if offset % 2 == 0:
            x = place * unit + unit / 2
            parts.append(words(_signed(offset), x=x, y=height + 30, anchor="middle"))
    width = unit * len(shares)
    parts.append(line(0, 14 + height, width, 14 + height))
    common = max(shares, key=lambda offset: shares[offset])
    x = unit * (min(max(common, 1 - REACH), REACH - 1) + REACH + 0.5)
    parts.append(words(percent(shares[common]), x=x, y=10, anchor="middle"))
    label = f"{label}: most often at {_signed(common)}, {percent(shares[common])}"
    return picture(*parts, width=width, height=height + 34, label=label)


def binned(counts: Counts) -> dict[int, float]:
    """Shares at each distance from -8 to 8; what lies beyond is added to the two ends.

    >>> shares = binned({-20: 1, -1: 2, 8: 1})
    >>> shares[-8], shares[-1], shares[8], len(shares)
    (0.25, 0.5, 0.25, 17)
    """
    total = sum(counts.values()) or 1
    shares = dict.fromkeys(range(-REACH, REACH + 1), 0.0)
    for offset, count in counts.items():
        shares[max(-REACH, min(REACH, offset))] += count / total
    return shares


def _signed(offset: int) -> str:
    text = written(offset, decimals=0)
    return f"+{text}" if offset > 0 else text
