"""The table of heads, whole and readable without a script, and what the head maps need of it."""

from collections.abc import Collection
from typing import Any

from headwise.recording.heads import HeadTable
from headwise.reporting.explanations import explain
from headwise.reporting.markup import Html, element, join
from headwise.reporting.measures import Measure, measures_of, rows_by_layer


def table_section(table: HeadTable, *, linked: bool = False) -> Html:
    """The section with every head and every measure, and what the measures mean.

    Args:
        table: intervals stand under their values.
        linked: whether "#head=encoder.0.self.3" leads to the row of that head.
    """
    measures = list(measures_of(table).values())
    heading = element("h2", "All heads")
    body = element("table", _header(measures), _body(table, measures, linked=linked))
    focusable = {"class": "scroll tall", "tabindex": 0, "role": "region", "aria-label": "All heads"}
    scroll = element("div", body, attributes=focusable)
    parts = [heading, _meanings([measure.name for measure in measures]), scroll]
    return element("section", *parts, attributes={"id": "heads"})


def heads_data(table: HeadTable) -> dict[str, Any]:
    """The table as the page's script sorts and colours it; intervals are read off the page.

    `maps` holds, for each kind of attention and layer, the rows of its heads in the table.
    """
    return {
        "sites": [head.site for head in table.heads],
        "indices": [head.index for head in table.heads],
        "columns": [_column_data(measure) for measure in measures_of(table).values()],
        "maps": {kind: list(layers.items()) for kind, layers in rows_by_layer(table).items()},
    }


def _column_data(measure: Measure) -> dict[str, Any]:
    return {
        "name": measure.name,
        "numeric": measure.is_numeric,
        "meaning": explain(measure.name) or "",
        # six digits order and colour as well as sixteen, in a third of the space
        "values": [
            float(f"{value:.6g}") if isinstance(value, float) else value for value in measure.values
        ],
    }


def _header(measures: Collection[Measure]) -> Html:
    cells = [element("th", "head", attributes={"scope": "col"})]
    for measure in measures:
        attributes = {"scope": "col", "title": explain(measure.name) or measure.name}
        if measure.is_numeric:
            attributes["class"] = "number"
        cells.append(element("th", _breakable(measure.name), attributes=attributes))
    return element("thead", element("tr", *cells))


def _breakable(name: str) -> Html:
    """A column's name that may be broken after an underscore, so that headers stay narrow."""
    words = name.split("_")
    return join([*(join([word + "_", Html("<wbr>")]) for word in words[:-1]), words[-1]])


def _body(table: HeadTable, measures: Collection[Measure], *, linked: bool) -> Html:
    columns = [_cells(measure) for measure in measures]
    rows: list[Html] = []
    for place, head in enumerate(table.heads):
        name = element("th", str(head), attributes={"scope": "row"})
        link = {"id": f"head={head}"} if linked else {}
        rows.append(element("tr", name, *(cells[place] for cells in columns), attributes=link))
    return element("tbody", *rows)


def _cells(measure: Measure) -> list[Html]:
    # text is what carries a class, because there are so many more numbers
    attributes = {} if measure.is_numeric else {"class": "text"}
    return [
        element("td", text, element("small", interval), attributes=attributes)
        if interval
        else element("td", text, attributes=attributes)
        for text, interval in zip(measure.texts(), measure.intervals(), strict=True)
    ]


def _meanings(names: Collection[str]) -> Html:
    known = [(name, explain(name)) for name in names]
    entries = [
        join([element("dt", name), element("dd", meaning)]) for name, meaning in known if meaning
    ]
    if not entries:
        return Html("")
    summary = element("summary", "What the columns mean")
    return element("details", summary, element("dl", *entries), attributes={"class": "meanings"})
