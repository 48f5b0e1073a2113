"""The report of a run: one HTML file, made of the Run folder alone and good without a network."""

import json
import shlex
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headwise.config import flat
from headwise.recording import HeadTable, Run
from headwise.reporting.charts import curves_of
from headwise.reporting.inspection import findings, opening_row, read_inspection, read_object
from headwise.reporting.measures import (
    headline,
    heads_data,
    is_number,
    measures_of,
    percent,
    signed,
)
from headwise.reporting.pruning import pruning_section

if TYPE_CHECKING:
    from jinja2 import Environment

LONGEST_TILE = 24  # characters of text that a tile can hold
Sentences = list[dict[str, Any]]


def write_report(run: Run) -> Path:
    """Write `report.html` into the run folder and return its path.

    The page shows what the run holds: metrics, learning curves, head maps, attention of sample
    sentences, the whole table of heads, and how the run was made; for an inspection also what the
    heads do, layer by layer, and a view of each head. What the run does not hold is left out.
    Style, script and data are inside the file, so that it can be opened from disk, sent by mail or
    kept for years. The same folder always gives the same file.

    Args:
        run: read, never changed, but for its `report.html`.
    """
    page = _environment().get_template("page.html.j2").render(_contents(run))
    # a token or name may hold half a surrogate pair, which UTF-8 cannot write
    run.write_text("report.html", page.encode("utf-8", "replace").decode("utf-8"))
    return run.path("report.html")


def _contents(run: Run) -> dict[str, Any]:
    """Compute what the templates show; an empty value leaves its section out."""
    table = run.heads() if run.has("heads.json") else HeadTable((), {})
    measures, curves = measures_of(table), curves_of(run.metrics())
    attention = attention_data(read_object(run, "trace/attention.json", {"sentences": object}))
    inspection, figures = read_inspection(run), read_object(run, "figures.json")
    environment = read_object(run, "environment.json")
    small = {name: value for name, value in figures.items() if _fits_tile(value)}
    data = {
        "heads": heads_data(table, measures),
        "curves": [{"name": curve.name, "texts": curve.texts} for curve in curves],
        "attention": attention,
        **({"opening": opening_row(measures)} if inspection else {}),
    }
    return {
        "name": run.folder.resolve().name or "run",
        "sites": {head.site for head in table.heads},
        "started": str(environment.get("started", ""))[:10],
        "tiles": {name: _tile_text(name, value) for name, value in small.items()},
        "pruning": pruning_section(run, table),
        "curves": curves,
        "found": findings(table, inspection) if inspection else None,
        "heads": table.heads,
        "measures": list(measures.values()),
        "attention": attention,
        "provenance": {
            "Environment": _flat(environment),
            "Settings": flat(run.config()),
            "More results": {name: figures[name] for name in figures if name not in small},
        },
        "data": data,
        "static": _static,
    }


@cache
def _environment() -> "Environment":
    # lazy: many import a name of this package, few write a report
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("headwise.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` writes ASCII without < > & ', so that no text can close the script block it is in
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"percent": percent, "signed": signed, "plain": _plain}
    return environment


def _static(name: str) -> str:
    return (files("headwise.reporting") / "static" / name).read_text(encoding="utf-8")


def attention_data(trace: Mapping[str, Any]) -> Sentences:
    """Return the sentences of `trace/attention.json`, with weights in thousandths to save space.

    A query's [[key, weight], ...] becomes [key, thousandths, key, thousandths, ...].

    >>> attention_data({"sentences": [{"tokens": {"encoder": ["a", "b"]},
    ...     "sites": {"encoder.0.self": [[[[0, 1.0]], [[0, 0.25], [1, 0.75]]]]}}]})[0]["sites"]
    {'encoder.0.self': [[[0, 1000], [0, 250, 1, 750]]]}
    """
    try:
        sentences = [_sentence(sentence) for sentence in trace.get("sentences", ())]
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise ValueError(
            "trace/attention.json must hold sentences with tokens by stack, and sites with "
            f"[key, weight] pairs by head and query, but it does not ({problem}); make it again."
        ) from None
    return [sentence for sentence in sentences if sentence["sites"]]


def _sentence(sentence: Any) -> dict[str, Any]:
    return {
        "tokens": {
            str(stack): [str(token) for token in tokens]
            for stack, tokens in sentence["tokens"].items()
        },
        "sites": {
            str(site): [[_packed(query) for query in head] for head in heads]
            for site, heads in sentence["sites"].items()
            if heads
        },
        # heads that the sentence is a good example of, if it says so
        **({"examples": list(map(str, sentence["examples"]))} if "examples" in sentence else {}),
    }


def _packed(pairs: Any) -> list[int]:
    return [part for key, weight in pairs for part in (int(key), round(1000 * float(weight)))]


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment with versions in one line and the command as it was typed."""
    flat = {name: value for name, value in environment.items() if value is not None}
    command, versions, resumed = (flat.get(name) for name in ("command", "versions", "resumed"))
    if isinstance(command, list):
        flat["command"] = shlex.join(map(str, cast(list[Any], command)))
    if isinstance(versions, dict):
        listed = cast(dict[str, Any], versions).items()
        flat["versions"] = ", ".join(f"{name} {value}" for name, value in listed if value)
    if isinstance(resumed, list):
        flat["resumed"] = f"{len(cast(list[Any], resumed))} times"
    return flat


def _fits_tile(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_TILE
    return is_number(value) or isinstance(value, bool)


def _tile_text(name: str, value: Any) -> str:
    return headline(name, value) if is_number(value) else _plain(value)


def _plain(value: Any) -> str:
    """Write a value for readers; what is no text is written as JSON."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
