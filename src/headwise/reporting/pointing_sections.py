"""What else heads point at: rare words, neighbours, repetition, translations, antecedents."""

from collections.abc import Mapping

from headwise.recording.heads import HeadTable
from headwise.reporting.best_heads import Best, best_heads, best_table, percent, verdict
from headwise.reporting.markup import Html, element
from headwise.reporting.measures import measures_of
from headwise.reporting.relations import relation_labels

LABELS = (  # in this order; other labels with a baseline follow
    *("rarest", "two_rarest", "punctuation", "first_word", "previous", "next"),
    *("duplicate", "induction", "alignment"),
)
DISTANCES = ("previous", "next")  # a distance themselves, so no distance is a baseline
COREFERENCE = "coreference"
Number = float | int


def pointing_section(table: HeadTable, baselines: Mapping[str, Number]) -> Html:
    """The best head for whatever else heads were compared with; nothing if that is nothing.

    Args:
        table: with a column a label.
        baselines: {label: what the commonest distance reaches}.
    """
    found = best_heads(table, _labels(table, baselines), baselines)
    if not found:
        return Html("")
    more: dict[str, list[str | Html]] = {
        "commonest distance": [
            "" if best.label in DISTANCES else percent(best.baseline) for best in found
        ],
        "role of this head": [_role(table, best) for best in found],
    }
    title = element("h2", "Rare words, neighbours, repetition and rest")
    text = "The head that points there most often, chosen on these same sentences."
    if any(best.label == "rarest" for best in found):
        text += " The attention below opens at the head that points at rare words."
    hint = element("p", text, attributes={"class": "hint"})
    rows = best_table(found, first="points at", more=more)
    return element("section", title, hint, rows, attributes={"id": "pointing"})


def coreference_section(
    table: HeadTable,
    baselines: Mapping[str, Number],
    rules: Mapping[str, Mapping[str, Number]],
) -> Html:
    """The best head by type of mention, against rules; nothing without such columns.

    Args:
        table: with "coreference", "coreference_pronoun" and so on.
        baselines: {label: what a head must beat}.
        rules: {label: {rule: accuracy}}.
    """
    found = best_heads(table, _coreference_labels(table), baselines)
    if not found:
        return Html("")
    names = dict.fromkeys(rule for best in found for rule in rules.get(best.label, {}))
    more: dict[str, list[str | Html]] = {
        "baseline": [percent(best.baseline) for best in found],
        "found": [verdict(best) for best in found],
    }
    for name in names:
        more[name.replace("_", " ")] = [
            percent(rules.get(best.label, {}).get(name)) for best in found
        ]
    text = (
        "How often the strongest word of a mention's head word is a word of what it stands for. "
        "The columns on the right are rules that need no model; the baseline is the best of them "
        "that needs no marked mentions either. Antecedents are found if the lower end of the "
        "interval is at least 10 points above it."
    )
    title = element("h2", "Coreference")
    hint = element("p", text, attributes={"class": "hint"})
    rows = best_table(found, first="mentions", more=more)
    return element("section", title, hint, rows, attributes={"id": "coreference"})


def _labels(table: HeadTable, baselines: Mapping[str, Number]) -> list[str]:
    measures = measures_of(table)
    taken = {*relation_labels(table), *_coreference_labels(table)}
    return [
        label
        for label in dict.fromkeys((*LABELS, *(name.split(": ")[-1] for name in baselines)))
        if label not in taken and label in measures and measures[label].is_numeric
    ]


def _coreference_labels(table: HeadTable) -> list[str]:
    return [
        name
        for name, measure in measures_of(table).items()
        if (name == COREFERENCE or name.startswith(f"{COREFERENCE}_")) and measure.is_numeric
    ]


def _role(table: HeadTable, best: Best) -> str:
    role = table.columns["role"][best.row] if "role" in table.columns else None
    return str(role or "").replace("_", " ")
