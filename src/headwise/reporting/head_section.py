"""The table of heads, whole and readable without a script, and what the head maps need of it."""

from collections.abc import Sequence
from typing import Any

from headwise.recording.heads import HeadTable, Value
from headwise.reporting.explanations import explain
from headwise.reporting.markup import Html, element, join
from headwise.reporting.numerals import decimals_for, is_number, written


def table_section(table: HeadTable) -> Html:
    """The section with every head and every column, and what the columns mean."""
    columns = {name: _texts(values) for name, values in table.columns.items()}
    numeric = {name for name, values in table.columns.items() if is_numeric(values)}
    heading = element("h2", "All heads")
    body = element("table", _header(columns, numeric), _body(table, columns, numeric))
    focusable = {"class": "scroll tall", "tabindex": 0, "role": "region", "aria-label": "All heads"}
    scroll = element("div", body, attributes=focusable)
    parts = [heading, _meanings(table), scroll]
    return element("section", *parts, attributes={"id": "heads"})


def heads_data(table: HeadTable) -> dict[str, Any]:
    """The table as the page's script sorts and colours it.

    `maps` holds, for each kind of attention and layer, the rows of its heads in the table.
    """
    layers = table.with_column("row", range(len(table))).layers("row")
    return {
        "sites": [head.site for head in table.heads],
        "indices": [head.index for head in table.heads],
        "columns": [_column_data(name, values) for name, values in table.columns.items()],
        "maps": {kind: list(rows.items()) for kind, rows in layers.items()},
    }


def is_numeric(values: Sequence[Value]) -> bool:
    """Whether a column holds numbers and nothing else but None."""
    known = [value for value in values if value is not None]
    return bool(known) and all(map(is_number, known))


def _column_data(name: str, values: Sequence[Value]) -> dict[str, Any]:
    return {
        "name": name,
        "numeric": is_numeric(values),
        "meaning": explain(name) or "",
        # six digits order and colour as well as sixteen, in a third of the space
        "values": [
            float(f"{value:.6g}") if isinstance(value, float) else value for value in values
        ],
    }


def _texts(values: Sequence[Value]) -> list[str]:
    if not is_numeric(values):
        return ["" if value is None else str(value) for value in values]
    decimals = decimals_for(value for value in values if is_number(value))
    return [written(value, decimals=decimals) if is_number(value) else "" for value in values]


def _header(columns: dict[str, list[str]], numeric: set[str]) -> Html:
    cells = [element("th", "head", attributes={"scope": "col"})]
    for name in columns:
        attributes = {"scope": "col", "title": explain(name) or name}
        if name in numeric:
            attributes["class"] = "number"
        cells.append(element("th", _breakable(name), attributes=attributes))
    return element("thead", element("tr", *cells))


def _breakable(name: str) -> Html:
    """A column's name that may be broken after an underscore, so that headers stay narrow."""
    words = name.split("_")
    return join([*(join([word + "_", Html("<wbr>")]) for word in words[:-1]), words[-1]])


def _body(table: HeadTable, columns: dict[str, list[str]], numeric: set[str]) -> Html:
    rows: list[Html] = []
    for place, head in enumerate(table.heads):
        cells = [element("th", str(head), attributes={"scope": "row"})]
        for name, texts in columns.items():
            attributes = {"class": "number"} if name in numeric else {}
            cells.append(element("td", texts[place], attributes=attributes))
        rows.append(element("tr", *cells))
    return element("tbody", *rows)


def _meanings(table: HeadTable) -> Html:
    known = [(name, explain(name)) for name in table.columns]
    entries = [
        join([element("dt", name), element("dd", meaning)]) for name, meaning in known if meaning
    ]
    if not entries:
        return Html("")
    summary = element("summary", "What the columns mean")
    return element("details", summary, element("dl", *entries), attributes={"class": "meanings"})
