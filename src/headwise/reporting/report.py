"""The report of a run: one HTML file, made of the Run folder alone and good without a network."""

from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from headwise.config import flat
from headwise.recording import HeadTable, Run
from headwise.reporting.attention_data import attention_data
from headwise.reporting.curves import Curve, curves_data, curves_of, curves_section
from headwise.reporting.head_section import heads_data, table_section
from headwise.reporting.inspection import (
    Inspection,
    finding_sections,
    method_section,
    opening_row,
    read_inspection,
)
from headwise.reporting.making import making_section, tiles
from headwise.reporting.markup import Html, element, join, script_data
from headwise.reporting.measures import measures_of
from headwise.reporting.pruning_section import is_pruning, pruning_section

SCRIPTS = ("page.js", "heads.js", "attention.js")


def write_report(run: Run) -> Path:
    """Write `report.html` into the run folder and say where it is.

    The page shows what the run holds: figures, learning curves, head maps, attention of sample
    sentences, the whole table of heads, and how the run was made; for an inspection also what the
    heads do, layer by layer, and a view of each head. What the run does not hold is left out.
    Style, script and data are inside the file, so that it can be opened from disk, sent by mail or
    kept for years. The same folder always gives the same file.

    Args:
        run: read, never changed, but for its `report.html`.
    """
    run.write_text("report.html", _page(run))
    return run.path("report.html")


def _page(run: Run) -> str:
    table = run.heads() if run.has("heads.json") else HeadTable((), {})
    attention = attention_data(_optional(run, "trace/attention.json", {"sentences": []}))
    curves = curves_of(run.metrics())
    inspection = read_inspection(run)
    data = {
        "heads": heads_data(table),
        "curves": curves_data(curves),
        "attention": attention,
        **({"opening": opening_row(table)} if inspection else {}),
    }
    name = _name(run)
    page = Template(_resource("page.html")).substitute(
        title=element("title", f"{name} · Headwise report"),
        style=_resource("page.css")
        + (_resource("inspection.css") if inspection or is_pruning(run) else ""),
        name=element("h1", name),
        summary=element("p", _summary(run, table, attention), attributes={"class": "summary"}),
        sections=_sections(
            run, table=table, curves=curves, has_attention=bool(attention), inspection=inspection
        ),
        making=_making(run),
        data=script_data(data),
        script="".join(map(_resource, (*SCRIPTS, "inspection.js") if inspection else SCRIPTS)),
    )
    # a token or name may hold half a surrogate pair, which UTF-8 cannot write
    return page.encode("utf-8", "replace").decode("utf-8")


def _sections(
    run: Run,
    *,
    table: HeadTable,
    curves: list[Curve],
    has_attention: bool,
    inspection: Inspection | None,
) -> Html:
    has_maps = any(measure.is_numeric for measure in measures_of(table).values())
    has_view = inspection is not None and len(table) > 0
    return join(
        [
            tiles(_optional(run, "figures.json", {})),
            pruning_section(run, table) if is_pruning(run) else Html(""),
            curves_section(curves) if curves else Html(""),
            finding_sections(table, inspection) if inspection else Html(""),
            Html(_resource("head_view.html") if has_view else ""),
            Html(_resource("maps.html") if has_maps else ""),
            Html(_resource("attention.html") if has_attention else ""),
            table_section(table, linked=has_view) if len(table) else Html(""),
            method_section(inspection) if inspection else Html(""),
        ]
    )


def _making(run: Run) -> Html:
    return making_section(
        config=flat(run.config()),
        environment=_optional(run, "environment.json", {}),
        figures=_optional(run, "figures.json", {}),
    )


def _summary(run: Run, table: HeadTable, attention: list[dict[str, Any]]) -> str:
    """How much there is, and since when, in one line."""
    sites = {head.site for head in table.heads}
    started = str(_optional(run, "environment.json", {}).get("started", ""))[:10]
    parts = [
        f"{len(table)} heads at {len(sites)} attention sites" if table.heads else "",
        f"attention of {len(attention)} sample sentences" if attention else "",
        f"made on {started}" if started else "",
    ]
    return ", ".join(part for part in parts if part)


def _name(run: Run) -> str:
    return run.folder.resolve().name or "run"


def _optional(run: Run, name: str, otherwise: dict[str, Any]) -> dict[str, Any]:
    """A JSON object of the run, or what to take when the run has no such file."""
    if not run.has(name):
        return otherwise
    value = run.read_json(name)
    if not isinstance(value, dict):
        raise ValueError(f"{run.path(name)} must hold a JSON object; make it again.")
    return value


def _resource(name: str) -> str:
    return (files("headwise.reporting") / name).read_text(encoding="utf-8")
