"""Columns of head tables: name, meaning and order of each, and how their values are printed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

Value = float | int | str | None
Values = TypeVar("Values")
WIDE = 120  # characters for columns from which on intervals, and all roles, are shown
ENDS = ("", "_low", "_high")
# "gold" has columns of annotated data, which come last, by name; the rest are in order
Group = Literal["name", "role", "prediction", "ablation", "attention", "gold", "quality"]


@dataclass(frozen=True)
class Column:
    """One measure of heads.

    Args:
        name: in the table; the ends of its interval are X_low and X_high.
        group: decides when it is measured and where it stands.
        kind: a share lies between 0 and 1.
        interval: whether it has a 95 % interval over sentences; text has none.
        importance: its place among the columns that sort heads by importance, the best being 1.
        printed: its place in a terminal; columns without one follow in the order of the table.
        meaning: one sentence or more, for reports and docs.
    """

    name: str
    group: Group
    kind: Literal["text", "number", "share"]
    interval: bool = True
    importance: int | None = None
    printed: int | None = None
    meaning: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "meaning", self.meaning or MEANINGS[self.name])
        object.__setattr__(self, "interval", self.interval and self.kind != "text")


_ON = "Share of the queries whose largest weight lies on"
_OFF = "when this head alone is switched off"
MEANINGS = {
    "original": "Name of the head before pruning; its name now counts the heads that are left.",
    "role": "Strongest role of the head, named after the measure that stands out most.",
    "roles": "All roles of the head; a head has a role only if the whole interval is above the "
    "threshold.",
    "relevance": "What the head adds to the logit of the predicted token, by layer-wise "
    "relevance propagation (LRP): positive when it supports the prediction, negative when it "
    "opposes it. For each prediction, the absolute values of a layer's heads sum to 1; this is "
    "the mean of the signed ones. The only head of a layer has its share of the logit instead.",
    "gradient_importance": "Mean size of the change in loss, to first order, if the head's "
    "output were removed (Michel et al., 2019).",
    "output_norm": "How much the head writes into the residual stream: norm of what it adds, "
    "relative to what the heads of the layer add together.",
    "loss_rise": f"How much the loss rises {_OFF}.",
    "prediction_change": f"Share of the predictions that change {_OFF}.",
    "output_change": f"How much the outputs change {_OFF}, relative to their size.",
    "confidence": "Mean of the largest weight over queries, padding and end-of-sentence left "
    "out: near 1 when the head attends to one word at a time.",
    "entropy": "Mean entropy of the weights over queries, in nats: 0 when a head attends to one "
    "key, large when it attends everywhere.",
    "offset": "Where the head attends most often, as key position minus query position: "
    "\N{MINUS SIGN}1 is the word before, 0 the word itself, +1 the word after.",
    "offset_share": "Share of the queries whose largest weight lies at that offset, of those "
    "that have a word there: near 1 for a head that goes by position.",
    "first_share": f"{_ON} the first word, also of the first word itself.",
    "special_mass": "Mean weight on special tokens such as begin- and end-of-sentence: large "
    "when a head attends mostly to them.",
    "previous": f"{_ON} the word before.",
    "next": f"{_ON} the word after.",
    "first_word": f"{_ON} the first word, of those after it.",
    "punctuation": f"{_ON} punctuation other than the query itself, of those that can attend to "
    "some; a decoder sees only punctuation before the query.",
    "rarest": f"{_ON} the rarest word of the sentence, where that word is not among the 500 most "
    "common.",
    "two_rarest": f"{_ON} one of the two rarest words of the sentence, where the rarest is not "
    "among the 500 most common.",
    "duplicate": "Share of the repeated words whose largest weight lies on an earlier "
    "occurrence of the same word.",
    "induction": "Share of the repeated words whose largest weight lies on the word that "
    "followed an earlier occurrence: high for a head that continues a pattern.",
    "alignment": f"{_ON} a word that is their gold translation.",
    "coreference": "Share of the mentions whose largest weight lies on a word of their antecedent.",
    "coreference_pronoun": "Share of the pronouns whose largest weight lies on a word of their "
    "antecedent.",
    "coreference_proper": "Share of the repeated names whose largest weight lies on an earlier "
    "mention of the same entity.",
    "coreference_nominal": "Share of the mentions by a common noun whose largest weight lies on "
    "an earlier mention of the same entity.",
    "bleu": "BLEU of the translations while this head is switched off.",
    "bleu_drop": f"How much BLEU falls {_OFF}; negative when translations get better without it.",
    "accuracy": "Accuracy while this head is switched off.",
    "accuracy_drop": f"How much accuracy falls {_OFF}; negative when the model is better without "
    "it.",
}
COLUMNS = (  # in the order of the table
    Column("original", "name", "text", printed=1),
    Column("role", "role", "text", printed=3),
    Column("roles", "role", "text", printed=2),
    Column("relevance", "prediction", "number", importance=1, printed=4),
    Column("gradient_importance", "prediction", "number", importance=2),
    Column("output_norm", "prediction", "number", importance=8),
    Column("loss_rise", "ablation", "number", importance=3, printed=6),
    Column("prediction_change", "ablation", "share", importance=6),
    Column("output_change", "ablation", "number", importance=7),
    Column("confidence", "attention", "share", printed=5),
    Column("entropy", "attention", "number", interval=False),
    Column("offset", "attention", "number", interval=False, printed=7),
    Column("offset_share", "attention", "share", printed=8),
    Column("first_share", "attention", "share"),
    Column("special_mass", "attention", "share"),
    Column("previous", "attention", "share"),
    Column("next", "attention", "share"),
    Column("first_word", "attention", "share"),
    Column("punctuation", "attention", "share"),
    Column("rarest", "attention", "share"),
    Column("two_rarest", "attention", "share"),
    Column("duplicate", "attention", "share"),
    Column("induction", "attention", "share"),
    Column("alignment", "gold", "share"),
    Column("coreference", "gold", "share"),
    Column("coreference_pronoun", "gold", "share"),
    Column("coreference_proper", "gold", "share"),
    Column("coreference_nominal", "gold", "share"),
    Column("bleu", "quality", "number", interval=False),
    Column("bleu_drop", "quality", "number", interval=False, importance=4),
    Column("accuracy", "quality", "share", interval=False),
    Column("accuracy_drop", "quality", "number", interval=False, importance=5),
)
_BY_NAME = {column.name: column for column in COLUMNS}
_ALSO = {"ablation": "loss_rise", "ablation_importance": "loss_rise"}  # of tables made by hand
_RELATIONS = {  # dependent and head; others are called so
    "nsubj": ("subject", "verb"),
    "obj": ("object", "verb"),
    "amod": ("adjective", "noun"),
    "advmod": ("adverb", "modified word"),
}


def column_of(name: str) -> Column | None:
    """Return the record of a column; None for one that Headwise does not know.

    >>> column_of("nsubj_to_head").meaning
    'Share of subjects whose largest weight lies on their verb (relation nsubj).'
    >>> column_of("case_to_dependent").meaning
    'Share of heads whose largest weight lies on their dependent (relation case).'
    """
    relation, _, direction = name.partition("_")
    if relation and direction in ("to_head", "to_dependent", "from_head"):
        dependent, head = _RELATIONS.get(relation, ("dependent", "head"))
        query, key = (dependent, head) if direction == "to_head" else (head, dependent)
        meaning = f"Share of {query}s whose largest weight lies on their {key}"
        return Column(name, "gold", "share", meaning=f"{meaning} (relation {relation}).")
    found = _BY_NAME.get(_ALSO.get(name, name))
    return None if found is None else replace(found, name=name)


def known_columns(
    relations: Sequence[str],
    *,
    mentions: bool,
    alignments: bool,
    sample: int,
    relevance: bool,
    ablation_lines: int,
) -> tuple[str, ...]:
    """Return the columns that an inspection with these settings may measure."""
    groups = {
        "prediction": bool(sample),
        "ablation": bool(sample and ablation_lines),
        "quality": False,
        "gold": False,
    }
    columns = [column for column in COLUMNS if groups.get(column.group, True)]
    columns = [one for one in columns if relevance or one.name != "relevance"]
    gold = [f"{relation}_to_{end}" for relation in relations for end in ("head", "dependent")]
    gold += [name for name in _BY_NAME if name.startswith("coreference") and mentions]
    gold += ["alignment"] if alignments else []
    columns += [found for name in gold if (found := column_of(name)) is not None]
    return tuple(
        f"{column.name}{end}" for column in columns for end in (ENDS if column.interval else ("",))
    )


def ordered(
    columns: Mapping[str, Mapping[str, Values]], sites: Sequence[str]
) -> dict[str, dict[str, Values]]:
    """Return columns, and the sites of each, in a fixed order.

    Args:
        columns: {column: {site: values}}; those of annotated data come last.
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
    first = [one.name for one in COLUMNS if one.group not in ("gold", "quality")]
    return first.index(name) if name in first else len(first), name, ENDS.index(end)


def printing_order(names: Iterable[str]) -> list[str]:
    """Sort the names of columns for a terminal: what says most comes first."""
    places = {one.name: one.printed for one in COLUMNS if one.printed is not None}
    return sorted(names, key=lambda name: places.get(name, len(COLUMNS)))


def printed(columns: Mapping[str, Sequence[Value]]) -> dict[str, list[str]]:
    """Return the cells of each printed column; X, X_low and X_high become one.

    >>> printed({"share": [0.45], "share_low": [0.41], "share_high": [0.48]})
    {'share': ['0.45 [0.41, 0.48]']}
    """
    cells: dict[str, list[str]] = {}
    for name in printed_names(columns):
        if ends := _ends(name, columns):
            cells[name] = _with_intervals(columns[name], *ends)
        else:
            cells[name] = [_show(value) for value in columns[name]]
    return cells


def printed_names(columns: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return the columns that are not the end of another's interval."""
    hidden = {
        f"{name}_{end}" for name in columns if _ends(name, columns) for end in ("low", "high")
    }
    return [name for name in columns if name not in hidden]


def fitting(
    columns: Mapping[str, Sequence[Value]], names: Sequence[str], *, width: int
) -> list[str]:
    """Return the first columns that fit, each as wide as its cells or a word of its name.

    Args:
        columns: of the table.
        names: of columns, in the order of showing; those the table lacks are left out.
        width: characters available, without the names of heads.
    """
    own, wide = printed_names(columns), width >= WIDE
    hidden = "role" if "roles" in own and wide else "roles"  # all of them, or the first
    kept: list[str] = []
    for name in names:
        if name not in own or name == hidden:
            continue
        ends = [f"{name}_low", f"{name}_high"] if wide else []
        group = [name, *(end for end in ends if end in columns)]
        cells = printed({column: columns[column] for column in group})[name]
        width -= 2 + max(map(len, (*cells, *name.split("_"))))
        if width < 0:
            break
        kept += group
    return kept


def _ends(
    name: str, columns: Mapping[str, Sequence[Value]]
) -> tuple[Sequence[Value], Sequence[Value]] | None:
    low, high = columns.get(f"{name}_low"), columns.get(f"{name}_high")
    return None if low is None or high is None else (low, high)


def _with_intervals(
    values: Sequence[Value], lows: Sequence[Value], highs: Sequence[Value]
) -> list[str]:
    numbers = [abs(x) for x in (*values, *lows, *highs) if isinstance(x, float | int)]
    size = max(numbers, default=0)
    # the same decimals in all rows, so that they line up; two are enough for a share
    places = 0 if size >= 100 else 2 if size >= 0.1 else 4
    cells: list[str] = []
    for value, low, high in zip(values, lows, highs, strict=True):
        value_text, low_text, high_text = (
            f"{x:.{places}f}" if isinstance(x, float | int) else "" for x in (value, low, high)
        )
        has_ends = low_text and high_text
        cells.append(f"{value_text} [{low_text}, {high_text}]" if has_ends else value_text)
    return cells


def _show(value: Value) -> str:
    """Write about three digits, with as many decimals for all values of a size."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    size = abs(value)
    return f"{value:.{3 if size < 1 else 2 if size < 100 else 0}f}"
