"""Sections of the report of an inspection, from the files of its trace.

    trace/inspection.json  {"left_out": {what: why}, "notes": [sentence, ...]}, and by name whatever
                           else is worth telling, such as counts and settings
    trace/baselines.json   {label: share}, what a head must beat: the commonest distance, or for
                           coreference the best rule
    trace/antecedents.json {label: {rule: share}}, what rules reach in finding antecedents
    trace/offsets.json     {label: {distance in words: how often}}

A run with no `trace/inspection.json` is no inspection. The other files may be missing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headwise.analysis.roles import MARGIN
from headwise.recording import HeadTable, Run
from headwise.recording.columns import COLUMNS
from headwise.recording.pointing import baselines_at
from headwise.reporting.measures import (
    Measure,
    Measures,
    Number,
    decimals_for,
    is_number,
    measures_of,
    rows_by_layer,
    written,
)
from headwise.reporting.role_groups import colour_of, group_of, grouped, legend, short_name

IMPORTANCES = sorted(  # the first of these that was measured sorts the heads
    (column for column in COLUMNS if column.importance is not None),
    key=lambda column: column.importance or 0,
)
TARGETS = (  # in this order; other labels with a baseline follow
    *("rarest", "two_rarest", "punctuation", "first_word", "previous", "next"),
    *("duplicate", "induction", "alignment"),
)
REACH = 8  # words either side that a distribution shows; what lies beyond is put together
Counts = Mapping[int, Number]  # distance -> how often
Labels = Sequence[str]


@dataclass(frozen=True)
class Inspection:
    """The trace of an inspection, without its sample sentences."""

    about: Mapping[str, Any]
    baselines: Mapping[str, Number]
    antecedents: Mapping[str, Mapping[str, Number]]
    offsets: Mapping[str, Counts]


def read_object(run: Run, name: str, shape: Any = dict) -> dict[str, Any]:
    """Read a JSON object of the run; an empty one when the run has no such file.

    Args:
        run: the run.
        name: of the file.
        shape: what it must hold, as in `headwise.json_files`.
    """
    return run.read_json(name, shape) if run.has(name) else {}


def read_inspection(run: Run) -> Inspection | None:
    """Read the trace of an inspection; None when the run is no inspection."""
    if not run.has("trace/inspection.json"):
        return None
    shares = {...: float}
    offsets = read_object(run, "trace/offsets.json", {...: shares})
    try:
        counted = {
            label: {int(distance): count for distance, count in counts.items()}
            for label, counts in offsets.items()
        }
    except ValueError as problem:
        raise ValueError(
            f"{run.path('trace/offsets.json')} must hold {{distance: how often}} for each label; "
            f"make it again ({problem})."
        ) from None
    return Inspection(
        about=read_object(run, "trace/inspection.json"),
        baselines=read_object(run, "trace/baselines.json", shares),
        antecedents=read_object(run, "trace/antecedents.json", {...: shares}),
        offsets=counted,
    )


def findings(table: HeadTable, inspection: Inspection) -> dict[str, Any]:
    """Compute what the sections of an inspection show; None for a section that is left out."""
    measures, baselines = measures_of(table), inspection.baselines
    numeric = [name for name, measure in measures.items() if measure.is_numeric]
    relations = [name for name in numeric if name.endswith(("_to_head", "_to_dependent"))]
    mentions = [name for name in numeric if f"{name}_".startswith("coreference_")]
    listed = dict.fromkeys((*TARGETS, *(name.split(": ")[-1] for name in baselines)))
    targets = [name for name in listed if name in numeric and name not in (*relations, *mentions)]
    best = {
        "relations": best_heads(table, relations, baselines),
        "pointing": best_heads(table, targets, baselines),
        "coreference": best_heads(table, mentions, baselines),
    }
    return {
        "by_layer": by_layer(table, measures),
        **best,
        "distances": distances(inspection.offsets, relations),
        "roles": table.columns.get("role"),
        "rules": inspection.antecedents,
        "rule_names": dict.fromkeys(
            rule
            for one in best["coreference"]
            for rule in inspection.antecedents.get(one.label, {})
        ),
        "method": method(inspection.about),
    }


@dataclass(frozen=True)
class Cell:
    """One head in a matrix of heads.

    Args:
        text: short text inside the cell.
        look: CSS classes.
        tip: text under the pointer.
        shade: how strongly it is coloured, from "0" to "1"; "" for a colour that has one shade.
        small: second line of the text.
        row: row of the head in the table, and `head` its index; None if a click chooses no head.
    """

    text: str
    look: str
    tip: str
    shade: str = ""
    small: str = ""
    row: int | None = None
    head: int = 0


@dataclass(frozen=True)
class Matrix:
    """Heads layer by layer.

    Args:
        title: of the matrix.
        note: small text beside the title.
        layers: number and cells of each layer.
    """

    title: str
    note: str
    layers: Sequence[tuple[int, Sequence[Cell]]]

    @staticmethod
    def of(
        title: str,
        layers: Mapping[int, Sequence[int | None]],
        cell: Callable[[int], Cell],
        note: str = "",
    ) -> "Matrix":
        """Build a matrix of the rows of each layer, and the cell of a row."""
        known = {n: [row for row in rows if row is not None] for n, rows in layers.items()}
        return Matrix(title, note, [(n, list(map(cell, rows))) for n, rows in known.items()])

    @property
    def width(self) -> int:
        """The most heads of a layer."""
        return max(len(cells) for _, cells in self.layers)


def by_layer(table: HeadTable, measures: Measures) -> dict[str, Any] | None:
    """Compute importance, confidence and function by layer (Voita et al., 2019, Fig. 1, 2).

    Heads of a layer are sorted by importance, in all matrices alike.
    """
    importance = importance_of(measures)
    kinds: dict[str, list[Matrix]] = {}
    for kind, layers in rows_by_layer(table).items():
        order = {layer: _sorted(rows, importance) for layer, rows in layers.items()}
        kinds[kind] = [
            Matrix.of(title, order, cell, note)
            for title, note, cell in _cell_makers(table, measures, order.values())
        ]
    if not any(kinds.values()):
        return None
    roles = measures.get("role")
    return {
        "importance": importance and importance.name,
        "legend": roles and legend(grouped(roles.values)),
        "kinds": kinds,
    }


def importance_of(measures: Measures) -> Measure | None:
    """Return the measure that says best how much a head matters, of those that there are."""
    ablations = (name for name in measures if name.startswith("ablation"))
    for name in (*(column.name for column in IMPORTANCES), *ablations):
        if name in measures and measures[name].is_numeric:
            return measures[name]
    return None


def _sorted(rows: Iterable[int | None], importance: Measure | None) -> list[int]:
    """Sort rows by importance; heads without one come last."""
    present = [row for row in rows if row is not None]
    known = importance.known(present) if importance else {}
    return sorted(present, key=lambda row: (row not in known, -known.get(row, 0)))


def _cell_makers(
    table: HeadTable, measures: Measures, layers: Iterable[Sequence[int]]
) -> list[tuple[str, str, Callable[[int], Cell]]]:
    """Return title, note and cells of the matrices of one kind of attention."""
    rows = [row for layer in layers for row in layer]
    importance, confidence = importance_of(measures), measures.get("confidence")
    made: list[tuple[str, str, Callable[[int], Cell]]] = []
    if importance and (known := importance.known(rows)):
        largest = max(map(abs, known.values())) or 1.0
        note = importance.name.replace("_", " ")
        made.append(("Importance", note, _heat_cell(table, importance, largest)))
    if confidence and confidence.known(rows):
        note = "mean of the largest weight"
        made.append(("Confidence", note, _heat_cell(table, confidence, 1.0)))
    if "role" in measures:
        made.append(("Function", "strongest role", _role_cell(table)))
    return made


def _heat_cell(table: HeadTable, measure: Measure, largest: float) -> Callable[[int], Cell]:
    """Colour cells from 0 to the largest size, negative values on the other side."""
    decimals = max(0, decimals_for([0.99 * largest]) - 1)  # a largest of 1 counts as below 1

    def cell(row: int) -> Cell:
        value, head = measure.values[row], table.heads[row].index
        tip = f"{_name(table, row)}\n{measure.name} {measure.whole(row) or 'not measured'}"
        if not is_number(value):
            return Cell("", "heat empty", tip, row=row, head=head)
        text = written(value, decimals=decimals) if decimals <= 2 else f"{value:.0e}"
        shade = f"{min(1.0, abs(value) / largest):.3g}"
        look = "heat negative" if value < 0 else "heat"
        return Cell(text, look, tip, shade, row=row, head=head)

    return cell


def _role_cell(table: HeadTable) -> Callable[[int], Cell]:
    def cell(row: int) -> Cell:
        role = str(table["role"][row] or "")
        every = str(table.columns.get("roles", table["role"])[row] or role or "no role found")
        look = colour_of(group_of(role) if role else "")
        tip = f"{_name(table, row)}\n{every.replace('_', ' ')}"
        return Cell(short_name(role), look, tip, row=row, head=table.heads[row].index)

    return cell


def _name(table: HeadTable, row: int) -> str:
    was = f", was {table['original'][row]}" if "original" in table.columns else ""
    return f"{table.heads[row]}{was}"


@dataclass(frozen=True)
class Best:
    """The best head of one kind of attention for one label.

    Args:
        label: name of the column, e.g. "nsubj_to_head".
        meaning: explanation of the label.
        kind: kind of attention, e.g. "encoder.self".
        row: row of the best head in the table.
        head: its name.
        share: how often it points at a right word.
        low: lower end of the interval; None without one.
        high: upper end.
        baseline: what a rule without a model reaches; None if not known.
    """

    label: str
    meaning: str
    kind: str
    row: int
    head: str
    share: Number
    low: Number | None
    high: Number | None
    baseline: Number | None

    @property
    def clears(self) -> str:
        """Whether even the interval's lower end is 10 points above the baseline, "yes" or "no"."""
        if self.baseline is None:
            return ""
        lowest = self.share if self.low is None else self.low
        return "yes" if lowest >= self.baseline + MARGIN else "no"

    @property
    def interval(self) -> str:
        """The interval in percent, "" without one."""
        if self.low is None or self.high is None:
            return ""
        return " to ".join(written(100 * end, decimals=1) for end in (self.low, self.high))


def best_heads(table: HeadTable, labels: Labels, baselines: Mapping[str, Number]) -> list[Best]:
    """Find the best head for each label and kind of attention in which it was measured."""
    measures, kinds = measures_of(table), rows_by_layer(table)
    found: list[Best] = []
    for label in labels:
        measure = measures[label]
        for kind, layers in kinds.items():
            known = measure.known(row for rows in layers.values() for row in rows)
            if not known:
                continue
            row = max(known, key=lambda row: (known[row], -row))
            low, high = (
                end if ends and is_number(end := ends[row]) else None
                for ends in (measure.low, measure.high)
            )
            base, head = baselines_at(baselines, kind).get(label), str(table.heads[row])
            meaning = measure.meaning or label
            found.append(Best(label, meaning, kind, row, head, known[row], low, high, base))
    return found


@dataclass(frozen=True)
class Distances:
    """Distances to the other word of a relation.

    Args:
        label: e.g. "nsubj_to_head".
        relation: e.g. "nsubj".
        what: which word is looked for, and from where.
        pairs: how many pairs were counted.
        shares: share of the pairs at each distance from -8 to 8.
    """

    label: str
    relation: str
    what: str
    pairs: Number
    shares: Mapping[int, float]

    @property
    def commonest(self) -> int:
        """The distance with the largest share."""
        return max(self.shares, key=lambda distance: self.shares[distance])


def distances(offsets: Mapping[str, Counts], labels: Labels) -> list[Distances]:
    """Return the distances of each relation; of two directions that mirror each other only one."""
    shown: list[Distances] = []
    for label, counts in offsets.items():
        relation = label.removesuffix("_to_head").removesuffix("_to_dependent")
        if not counts or f"{relation}_to_head" not in labels:
            continue
        what = "dependent, from its head"
        if label.endswith("_to_head"):
            what = "head, from its dependent"
            mirrored = {-distance: count for distance, count in counts.items()}
            if mirrored in (offsets.get(f"{relation}_to_dependent"), offsets.get(relation)):
                continue
        shown.append(Distances(label, relation, what, sum(counts.values()), binned(counts)))
    return shown


def binned(counts: Counts) -> dict[int, float]:
    """Return shares at each distance from -8 to 8; what lies beyond is added to the two ends.

    >>> shares = binned({-20: 1, -1: 2, 8: 1})
    >>> shares[-8], shares[-1], shares[8], len(shares)
    (0.25, 0.5, 0.25, 17)
    """
    total = sum(counts.values()) or 1
    shares = dict.fromkeys(range(-REACH, REACH + 1), 0.0)
    for distance, count in counts.items():
        shares[max(-REACH, min(REACH, distance))] += count / total
    return shares


def method(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes, what was left out, and everything else that the trace tells."""
    rest: dict[str, Any] = {}
    for name, value in about.items():
        if name not in ("left_out", "notes"):
            rest |= cast(dict[str, Any], value) if isinstance(value, dict) else {name: value}
    left_out, notes = (_sentences(about.get(name, [])) for name in ("left_out", "notes"))
    return {"left_out": left_out, "notes": notes, "rest": rest}


def _sentences(value: Any) -> list[str]:
    """Return a list of sentences, also of {what: why}."""
    if isinstance(value, dict):
        named = cast(dict[str, Any], value).items()
        return [f"{str(what).replace('_', ' ')}: {why}" for what, why in named]
    return list(map(str, cast(list[Any], value) if isinstance(value, list) else [value]))


def opening_row(measures: Measures) -> int | None:
    """Return the row of the head shown first: the rare-words head, else the most important one."""
    rarest, importance = measures.get("rarest"), importance_of(measures)
    measure = rarest if rarest and rarest.is_numeric else importance
    if measure is None:
        return None
    known = measure.known(range(len(measure.values)))
    if measure is rarest and "role" in measures:
        roles = measures["role"].values
        rare = [row for row in known if roles[row] and group_of(str(roles[row])) == "rare words"]
        # no head has the role, or none of those that have it was measured
        known = {row: known[row] for row in rare} or known
    return max(known, key=lambda row: (known[row], -row), default=None)
