"""The sections that a report has when its run is an inspection, from the files of its trace.

    trace/inspection.json  {"left_out": {what: why}, "notes": [sentence, ...]}, and by name whatever
                           else is worth telling, such as counts and settings
    trace/baselines.json   {label: share}, what a head must beat: the commonest distance, or for
                           coreference the best rule
    trace/antecedents.json {label: {rule: share}}, what rules reach in finding antecedents
    trace/offsets.json     {label: {distance in words: how often}}
    trace/attention.json   as in any run; a sentence may list under "examples" the names of heads
                           that it is a good example of

A run with no `trace/inspection.json` is no inspection. The other files may be missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from headwise.recording import HeadTable, Run
from headwise.reporting.by_layer import by_layer_section, importance_of
from headwise.reporting.making import definitions
from headwise.reporting.markup import Html, element, join
from headwise.reporting.measures import Measure, measures_of
from headwise.reporting.numerals import is_number
from headwise.reporting.pointing_sections import coreference_section, pointing_section
from headwise.reporting.relations import relations_section
from headwise.reporting.role_groups import group_of

Number = float | int

METHOD = (
    "Models read pieces of words, and all figures here are of whole words: weight is summed over "
    "the pieces of the word looked at and averaged over the pieces of the word that looks. "
    "Special tokens and padding are left out on both sides; the weight that falls on them is "
    "special_mass.",
    "Intervals are 95 % bootstrap intervals over sentences. A head is given a role only if the "
    "whole interval clears the threshold of that role.",
)


@dataclass(frozen=True)
class Inspection:
    """What the trace of an inspection holds beside its table and its sample sentences."""

    about: Mapping[str, Any]
    baselines: Mapping[str, Number]
    antecedents: Mapping[str, Mapping[str, Number]]
    offsets: Mapping[str, Mapping[int, Number]]


def read_inspection(run: Run) -> Inspection | None:
    """What the run's trace says, or None when the run is no inspection."""
    if not run.has("trace/inspection.json"):
        return None
    antecedents = {
        label: _shares(rules, run, "trace/antecedents.json")
        for label, rules in _object(run, "trace/antecedents.json").items()
    }
    offsets = {
        label: _counts(counts, run, "trace/offsets.json")
        for label, counts in _object(run, "trace/offsets.json").items()
    }
    return Inspection(
        about=_object(run, "trace/inspection.json"),
        baselines=_shares(_object(run, "trace/baselines.json"), run, "trace/baselines.json"),
        antecedents=antecedents,
        offsets=offsets,
    )


def finding_sections(table: HeadTable, inspection: Inspection) -> Html:
    """What was found: by layer, relations, other targets, antecedents."""
    baselines = inspection.baselines
    return join(
        [
            by_layer_section(table),
            relations_section(table, baselines, inspection.offsets),
            pointing_section(table, baselines),
            coreference_section(table, baselines, inspection.antecedents),
        ]
    )


def method_section(inspection: Inspection) -> Html:
    """How it was measured, how much was read, and what was left out and why."""
    about = dict(inspection.about)
    left_out = _sentences(about.pop("left_out", {}))
    notes = _sentences(about.pop("notes", []))
    parts = [element("h2", "How this was measured")]
    parts += [element("p", text) for text in (*METHOD, *notes)]
    if left_out:
        parts.append(element("h3", "What was left out"))
        parts.append(element("ul", *(element("li", text) for text in left_out)))
    if about:
        parts.append(element("h3", "What was read, and how"))
        parts.append(definitions(_flat(about)))
    return element("section", *parts, attributes={"id": "method"})


def opening_row(table: HeadTable) -> int | None:
    """The row of the head that is looked at first: the rare-words head, else the most important."""
    measures = measures_of(table)
    roles = measures["role"].values if "role" in measures else ()
    rare = [row for row, role in enumerate(roles) if role and group_of(str(role)) == "rare words"]
    for measure in (measures.get("rarest"), importance_of(measures)):
        if measure is None or not measure.is_numeric:
            continue
        return _largest(measure, rare if measure.name == "rarest" and rare else range(len(table)))
    return None


def _largest(measure: Measure, rows: range | list[int]) -> int | None:
    known = [(value, -row) for row in rows if is_number(value := measure.values[row])]
    return -max(known)[1] if known else None


def _sentences(value: Any) -> list[str]:
    """A list of sentences, also of {what: why}."""
    if isinstance(value, dict):
        named = cast(dict[str, Any], value).items()
        return [f"{str(what).replace('_', ' ')}: {why}" for what, why in named]
    listed = cast(list[Any], value) if isinstance(value, list) else [value]
    return list(map(str, listed))


def _flat(about: Mapping[str, Any]) -> dict[str, Any]:
    """Entries with those of an inner object among them."""
    flat: dict[str, Any] = {}
    for name, value in about.items():
        flat |= cast(dict[str, Any], value) if isinstance(value, dict) else {name: value}
    return flat


def _object(run: Run, name: str) -> dict[str, Any]:
    """A JSON object of the run; an empty one when the run has no such file."""
    value = run.read_json(name) if run.has(name) else {}
    if not isinstance(value, dict):
        raise ValueError(f"{run.path(name)} must hold a JSON object; make it again.")
    return cast(dict[str, Any], value)


def _shares(value: Any, run: Run, name: str) -> dict[str, Number]:
    entries = cast(dict[str, Any], value) if isinstance(value, dict) else {"?": value}
    wrong = next((label for label, share in entries.items() if not is_number(share)), None)
    if wrong is not None:
        raise ValueError(
            f"{run.path(name)} must hold a share for each label, but that of {wrong!r} is "
            f"{entries[wrong]!r}; make it again."
        )
    return entries


def _counts(value: Any, run: Run, name: str) -> dict[int, Number]:
    try:
        return {int(offset): count for offset, count in _shares(value, run, name).items()}
    except ValueError as problem:
        raise ValueError(
            f"{run.path(name)} must hold {{distance: how often}} for each label; make it again "
            f"({problem})."
        ) from None
