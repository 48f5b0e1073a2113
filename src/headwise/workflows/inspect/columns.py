"""The columns of an inspection's table: which there may be, and their order."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

__all__ = ["MENTIONS", "known_columns", "ordered"]

Values = TypeVar("Values")

TEXTS = ("original", "role", "roles", "offset", "entropy")  # columns without an interval
PREDICTIONS = ("relevance", "gradient_importance", "output_norm")
WITH_HEADS_OFF = ("loss_rise", "prediction_change", "output_change")
LOOKS = (
    *("confidence", "offset_share", "first_share", "special_mass"),
    *("previous", "next", "first_word", "punctuation", "rarest", "two_rarest"),
    *("duplicate", "induction"),
)
MENTIONS = ("coreference", *(f"coreference_{kind}" for kind in ("pronoun", "proper", "nominal")))
ORDER = (
    *("role", "roles", *PREDICTIONS, *WITH_HEADS_OFF),
    *("confidence", "entropy", "offset", "offset_share", *LOOKS[2:]),
)
ENDS = ("", "_low", "_high")


def known_columns(
    relations: Sequence[str],
    *,
    mentions: bool,
    alignments: bool,
    sample: int,
    relevance: bool,
    ablation_lines: int,
) -> tuple[str, ...]:
    """What the columns may be, as far as the settings of an inspection tell."""
    weighed = PREDICTIONS[not relevance :] if sample else ()
    off = WITH_HEADS_OFF if sample and ablation_lines else ()
    ways = ("to_head", "to_dependent")
    syntax = [f"{relation}_{way}" for relation in relations for way in ways]
    measures = [*weighed, *off, *LOOKS, *syntax, *(MENTIONS if mentions else ())]
    measures += ["alignment"] if alignments else []
    return (*TEXTS, *(f"{name}{end}" for name in measures for end in ENDS))


def ordered(
    columns: Mapping[str, Mapping[str, Values]], sites: Sequence[str]
) -> dict[str, dict[str, Values]]:
    """Columns, and the sites of each, in a fixed order, however they were found.

    Args:
        columns: {column: {site: values}}; those of syntax and coreference come last.
        sites: all, in the order of the model.

    >>> found = ordered({"obj_to_head": {"b": 1, "a": 2}, "next_low": {}, "next": {}}, ["a", "b"])
    >>> list(found), found["obj_to_head"]
    (['next', 'next_low', 'obj_to_head'], {'a': 2, 'b': 1})
    """
    return {
        name: {site: columns[name][site] for site in sites if site in columns[name]}
        for name in sorted(columns, key=_place)
    }


def _place(column: str) -> tuple[int, str, int]:
    end = next(end for end in ("_low", "_high", "") if column.endswith(end))
    name = column.removesuffix(end)
    return ORDER.index(name) if name in ORDER else len(ORDER), name, ENDS.index(end)
