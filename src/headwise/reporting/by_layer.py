"""Importance, confidence and function of heads, layer by layer (Voita et al., 2019, Fig. 1, 2)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwise.recording.heads import HeadTable, Value
from headwise.reporting.markup import Html, element
from headwise.reporting.measures import Measure, measures_of, rows_by_layer
from headwise.reporting.numerals import decimals_for, is_number, written
from headwise.reporting.role_groups import GROUPS, OTHER, group_of, short_name

IMPORTANCES = (  # the first of these that was measured sorts the heads
    *("relevance", "gradient_importance", "loss_rise", "bleu_drop", "accuracy_drop"),
    *("prediction_change", "output_change", "output_norm"),
)
MOST_WITH_TEXT = 16  # heads of a layer; of more, cells are too small for text
Ordered = Sequence[tuple[int, Sequence[int]]]  # layer, rows of the table from left to right


@dataclass(frozen=True)
class Matrix:
    """One matrix: what it is called, and its cells by row of the table."""

    title: str
    note: str
    cells: Mapping[int, Html]


def by_layer_section(table: HeadTable) -> Html:
    """The section with up to three matrices for each kind of attention; nothing if there is none.

    Heads of a layer are sorted by importance, in all matrices alike.
    """
    measures = measures_of(table)
    importance = importance_of(measures)
    panels = [
        element("h3", kind) + _panels(table, measures, importance, _ordered(layers, importance))
        for kind, layers in rows_by_layer(table).items()
    ]
    if not any("<table" in panel for panel in panels):
        return Html("")
    hint = element("p", _hint(importance), attributes={"class": "hint"})
    key = legend(grouped(measures["role"].values)) if "role" in measures else Html("")
    title = element("h2", "Importance, confidence and function by layer")
    parts = [title, hint, key, *map(Html, panels)]
    return element("section", *parts, attributes={"id": "by-layer"})


def importance_of(measures: Mapping[str, Measure]) -> Measure | None:
    """The measure that says best how much a head matters, of those that there are."""
    ablations = (name for name in measures if name.startswith("ablation"))
    for name in (*IMPORTANCES, *ablations):
        if name in measures and measures[name].is_numeric:
            return measures[name]
    return None


def _ordered(layers: Mapping[int, Sequence[int | None]], importance: Measure | None) -> Ordered:
    def place(row: int) -> tuple[bool, float]:
        value = importance.values[row] if importance else 0
        return (False, -float(value)) if is_number(value) else (True, 0.0)

    known = {layer: [row for row in rows if row is not None] for layer, rows in layers.items()}
    return [(layer, sorted(rows, key=place)) for layer, rows in known.items()]


def _panels(
    table: HeadTable,
    measures: Mapping[str, Measure],
    importance: Measure | None,
    layers: Ordered,
) -> Html:
    rows = [row for _, listed in layers for row in listed]
    confidence = measures.get("confidence")
    shown: list[Matrix] = []
    if importance:
        note = importance.name.replace("_", " ")
        shown.append(_heat_matrix(table, importance, rows, title="Importance", note=note))
    if confidence and confidence.is_numeric:
        note = "mean of the largest weight"
        shown.append(
            _heat_matrix(table, confidence, rows, title="Confidence", note=note, largest=1.0)
        )
    if "role" in measures:
        shown.append(_role_matrix(table, measures, rows))
    figures = [_figure(matrix, layers) for matrix in shown if matrix.cells]
    return element("div", *figures, attributes={"class": "panels"})


def _heat_matrix(
    table: HeadTable,
    measure: Measure,
    rows: Sequence[int],
    *,
    title: str,
    note: str,
    largest: float | None = None,
) -> Matrix:
    """Cells coloured from 0 to the largest size, negative ones on the other side."""
    known = [abs(value) for row in rows if is_number(value := measure.values[row])]
    if not known:
        return Matrix(title, note, {})
    largest = largest or max(known) or 1.0
    wholes = measure.whole_texts()
    cells = {
        row: _cell(
            _short(measure.values[row], largest),
            row=row,
            table=table,
            tip=f"{measure.name} {wholes[row] or 'not measured'}",
            look=_heat(measure.values[row], largest),
        )
        for row in rows
    }
    return Matrix(title, note, cells)


def _short(value: Value, largest: float) -> str:
    """A number that fits into a cell: two digits of the largest."""
    if not is_number(value):
        return ""
    decimals = max(0, decimals_for([0.99 * largest]) - 1)  # a largest of 1 counts as below 1
    return written(value, decimals=decimals) if decimals <= 2 else f"{value:.0e}"


def _heat(value: Value, largest: float) -> dict[str, str]:
    if not is_number(value):
        return {"class": "heat empty"}
    look = "heat negative" if value < 0 else "heat"
    return {"class": look, "style": f"--t:{min(1.0, abs(value) / largest):.3g}"}


def _role_matrix(table: HeadTable, measures: Mapping[str, Measure], rows: Sequence[int]) -> Matrix:
    roles = measures["role"].values
    every = measures["roles"].values if "roles" in measures else roles
    cells: dict[int, Html] = {}
    for row in rows:
        role = str(roles[row] or "")
        cells[row] = _cell(
            short_name(role),
            row=row,
            table=table,
            tip=str(every[row] or role or "no role found").replace("_", " "),
            look={"class": class_of(group_of(role) if role else "")},
        )
    return Matrix("Function", "strongest role", cells)


def _cell(text: str, *, row: int, table: HeadTable, tip: str, look: Mapping[str, str]) -> Html:
    head = table.heads[row]
    was = f", was {table['original'][row]}" if "original" in table.columns else ""
    title = f"{head}{was}\n{tip}"
    attributes = {**look, "data-row": row, "data-head": head.index, "title": title}
    return element("td", text, attributes=attributes)


def _figure(matrix: Matrix, layers: Ordered) -> Html:
    width = max(len(rows) for _, rows in layers)
    places = [
        element("th", str(place), attributes={"scope": "col"}) for place in range(1, width + 1)
    ]
    body = [
        element(
            "tr",
            element("th", str(layer), attributes={"scope": "row"}),
            *(matrix.cells[row] for row in rows),
        )
        for layer, rows in layers
    ]
    grid = element(
        "table",
        element("thead", element("tr", element("td"), *places)),
        element("tbody", *body),
        attributes={"class": "map dense" if width > MOST_WITH_TEXT else "map"},
    )
    caption = element("figcaption", matrix.title, " ", element("span", matrix.note))
    return element("figure", caption, element("div", grid, attributes={"class": "scroll"}))


def legend(said: Mapping[str, object]) -> Html:
    """The colours of functions, and what is said of each.

    Args:
        said: by group of functions, such as how many heads it has; "" is no role.
    """
    entries = [
        element(
            "li", element("i", attributes={"class": class_of(group)}), f"{group} ({said[group]})"
        )
        for group in (*GROUPS, OTHER)
        if group in said
    ]
    none = element("i", attributes={"class": class_of("")})
    entries.append(element("li", none, f"no role found ({said.get('', 0)})"))
    return element("ul", *entries, attributes={"class": "legend"})


def grouped(roles: Iterable[object]) -> Counter[str]:
    """How many heads there are of each group of functions; "" is no role."""
    return Counter(group_of(str(role)) if role else "" for role in roles)


def class_of(group: str) -> str:
    """The class of a cell that is coloured as a group of functions is."""
    return f"role {group.replace(' ', '-')}".strip()


def _hint(importance: Measure | None) -> str:
    order = (
        f"sorted by {importance.name.replace('_', ' ')}, the largest on the left"
        if importance
        else "in the order of their numbers, as no importance was measured"
    )
    return (
        f"A row is a layer, the first on top. The heads of each layer are {order}; they stand in "
        "the same order in all matrices, and the small figure is a head's number. "
        "Intervals are under the pointer."
    )
