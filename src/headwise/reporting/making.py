"""The tiles at the top of a report and, at its foot, how the run was made."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, cast

from headwise.reporting.markup import Html, element, join
from headwise.reporting.numerals import headline, is_number

LONGEST_TILE = 24  # characters of text that a tile can hold


def tiles(figures: Mapping[str, Any]) -> Html:
    """The figures that are numbers or short text, one tile each; nothing if there are none."""
    shown = [
        element("div", element("dt", _label(name)), element("dd", _tile_text(name, value)))
        for name, value in figures.items()
        if _fits_tile(value)
    ]
    return element("dl", *shown, attributes={"class": "tiles"}) if shown else Html("")


def making_section(
    *, config: Mapping[str, Any], environment: Mapping[str, Any], figures: Mapping[str, Any]
) -> Html:
    """How the run was made: its surroundings, settings, and the figures too long for a tile."""
    rest = {name: value for name, value in figures.items() if not _fits_tile(value)}
    parts = {"Surroundings": _flat(environment), "Settings": config, "More figures": rest}
    lists = [
        element("div", element("h3", title), definitions(entries))
        for title, entries in parts.items()
        if entries
    ]
    if not lists:
        return Html("")
    body = element("div", *lists, attributes={"class": "making"})
    return element("details", element("summary", "How this was made"), body)


def definitions(entries: Mapping[str, Any]) -> Html:
    """Names and values as a list; what is no text is written as JSON."""
    pairs = [
        join([element("dt", _label(name)), element("dd", _plain(value))])
        for name, value in entries.items()
    ]
    return element("dl", *pairs)


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The surroundings with versions in one line and the command as it was typed."""
    flat = {name: value for name, value in environment.items() if value is not None}
    command, versions = flat.get("command"), flat.get("versions")
    if isinstance(command, list):
        flat["command"] = shlex.join(map(str, cast(list[Any], command)))
    if isinstance(versions, dict):
        listed = cast(dict[str, Any], versions).items()
        flat["versions"] = ", ".join(f"{name} {value}" for name, value in listed if value)
    if isinstance(flat.get("resumed"), list):
        flat["resumed"] = f"{len(cast(list[Any], flat['resumed']))} times"
    return flat


def _fits_tile(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_TILE
    return is_number(value) or isinstance(value, bool)


def _tile_text(name: str, value: Any) -> str:
    return headline(name, value) if is_number(value) else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _label(name: str) -> str:
    return name.replace("_", " ")
