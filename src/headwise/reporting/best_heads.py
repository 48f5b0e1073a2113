"""Which head points best at what, with its interval and what a rule without a model reaches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwise.recording.heads import HeadTable, Value
from headwise.recording.pointing import baselines_at
from headwise.reporting.explanations import explain
from headwise.reporting.markup import Html, element
from headwise.reporting.measures import measures_of, rows_by_layer
from headwise.reporting.numerals import is_number, written

MARGIN = 0.10  # above the baseline (Voita et al., 2019, section 5.2), as for the syntactic role
Number = float | int


@dataclass(frozen=True)
class Best:
    """The best head of one kind of attention for one label.

    Args:
        label: the column, e.g. "nsubj_to_head".
        kind: e.g. "encoder.self".
        row: of the table, the best head's.
        head: its name.
        share: how often it points at a right word.
        low: lower end of the interval; None without one.
        high: upper end.
        baseline: what a rule without a model reaches; None if not known.
    """

    label: str
    kind: str
    row: int
    head: str
    share: Number
    low: Number | None
    high: Number | None
    baseline: Number | None

    @property
    def clears(self) -> bool | None:
        """Whether even the interval's lower end is 10 points above the baseline."""
        if self.baseline is None:
            return None
        return (self.share if self.low is None else self.low) >= self.baseline + MARGIN


def best_heads(
    table: HeadTable, labels: Iterable[str], baselines: Mapping[str, Number]
) -> list[Best]:
    """The best head for each label and kind of attention in which it was measured."""
    measures = measures_of(table)
    kinds = {
        kind: [row for rows in layers.values() for row in rows if row is not None]
        for kind, layers in rows_by_layer(table).items()
    }
    found: list[Best] = []
    for label in labels:
        measure = measures[label]
        for kind, rows in kinds.items():
            known = [(value, -row) for row in rows if is_number(value := measure.values[row])]
            if known:
                share, row = max(known)
                head = str(table.heads[-row])
                low, high = (_at(ends, -row) for ends in (measure.low, measure.high))
                base = baselines_at(baselines, kind).get(label)
                found.append(Best(label, kind, -row, head, share, low, high, base))
    return found


def best_table(
    found: Sequence[Best],
    *,
    first: str,
    more: Mapping[str, Sequence[str | Html]],
) -> Html:
    """A row for each best head: what it points at, the head, its share and interval.

    Args:
        found: the rows.
        first: the title of the first column.
        more: further columns by title, one cell a row.
    """
    kinds = len({best.kind for best in found}) > 1
    titles = [first, *(["kind"] if kinds else []), "best head", "share", "95 % interval", *more]
    header = element("tr", *(element("th", title, attributes={"scope": "col"}) for title in titles))
    rows: list[Html] = []
    for place, best in enumerate(found):
        cells = [
            *([best.kind] if kinds else []),
            head_link(best.head),
            percent(best.share),
            interval(best),
            *(column[place] for column in more.values()),
        ]
        meaning = {"title": explain(best.label) or best.label}
        title = element("th", best.label, attributes={"scope": "row"} | meaning)
        rows.append(element("tr", title, *(element("td", cell) for cell in cells)))
    body = element("table", element("thead", header), element("tbody", *rows))
    return element("div", body, attributes={"class": "scroll plain"})


def head_link(head: str) -> Html:
    """A link to the page of a head, or, without a script, to its row of the table."""
    return element("a", head, attributes={"href": f"#head={head}"})


def percent(share: Number | None) -> str:
    """A share in percent.

    >>> percent(0.4567), percent(None)
    ('45.7 %', '')
    """
    return "" if share is None else f"{written(100 * share, decimals=1)} %"


def points(share: Number, baseline: Number) -> str:
    """The distance of two shares in points, with its sign.

    >>> points(0.5, 0.25), points(0.25, 0.5)
    ('+25.0', '\N{MINUS SIGN}25.0')
    """
    text = written(100 * (share - baseline), decimals=1)
    return text if share < baseline else f"+{text}"


def verdict(best: Best) -> str:
    """Whether the head clears the baseline, in a word; "" if there is none."""
    return {None: "", True: "yes", False: "no"}[best.clears]


def interval(best: Best) -> str:
    """The interval in percent, "" without one."""
    if best.low is None or best.high is None:
        return ""
    ends = (written(100 * end, decimals=1) for end in (best.low, best.high))
    return " to ".join(ends)


def _at(values: Sequence[Value] | None, row: int) -> Number | None:
    value = values[row] if values else None
    return value if is_number(value) else None
