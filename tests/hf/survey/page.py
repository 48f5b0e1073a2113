"""The page docs/models.md, from the rows of a survey."""

import re
from collections import Counter
from collections.abc import Iterable
from textwrap import fill

from headwise.recording.environment import describe_environment
from tests.hf.survey.trying import Row
from tests.hf.survey.verbs import VERBS

RANK = ("wrong", "host", "refused", "none", "ok")  # of several backends the first counts
STATES = {
    "ok": "ok",
    "refused": "refused with a sentence",
    "host": "fails in transformers itself",
    "none": "has no meaning here",
    "wrong": "wrong",
}
NEEDS = re.compile(r"requires the (\w+) library|No module named '(\w+)'")
PARTLY = re.compile(r"(\d+ of \d+) sites: (.*)", re.DOTALL)
NOTES = (  # what a sentence says without the names of classes and sites
    (r"does not route", "The attention does not go through transformers' attention interface."),
    (
        r"of \S+ compute attention outside",
        "A part of the attention is computed outside transformers' attention interface.",
    ),
    (r"computes attention outside", "An adapter reaches the attention; it is not pruned."),
    (
        r"out of one compressed",
        "One compressed vector makes keys and values of all heads (multi-head latent attention).",
    ),
    (r"key and value of all heads", "One vector is key and value of all heads."),
    (r"has (\S+), which normalises", "`{}` normalises all heads together."),
    (r"has (\S+), of which headwise", "It is not known what of `{}` belongs to which head."),
    (r"mixtures of experts", "The projections are mixtures of experts."),
    (r"No projections to", "The projections to queries, keys and values have an unknown layout."),
    (r"No output projection", "The output projection has an unknown name."),
    (r"computes with", "The code computes with a number that pruning would leave wrong."),
    (r"is given (\S+)", "A bias of heads is kept outside the attention module."),
    (r"reads (\w+), not text", "The model reads `{}`, not text."),
    (r"also needs (\w+)", "The model also needs `{}`; `inspect` reads text alone."),
    (r"codes of sound", "The model reads or writes codes of sound, not words."),
    (r"propagated through (\w+)", "Relevance has no rule for `{}`."),
    (r"Reading\.words", "The decoder's positions are not those of its input."),
)
HEAD = """# Which models

Every family of models in transformers {version}, as a tiny model with random weights, and what each
verb of Headwise did with it, with the attention backends sdpa and eager where the family has them.
`make models` writes this page (commit {commit}, torch {torch}, {cores} cores of an {cpu}).

"ok" means: checked against the plain model. `adopt`, `observe` and `release` leave outputs equal
bit by bit; masked heads give what the host gives with zeros in their place; pruned models equal
masked ones, also after saving and loading.
"""


def page(rows: list[Row]) -> str:
    """All of it, in Markdown."""
    made = describe_environment(seed=0)
    head = HEAD.format(
        version=made["versions"]["transformers"],
        commit=made["commit"][:10],
        torch=made["versions"]["torch"],
        cores=made["cores"],
        cpu=made["cpu"],
    )
    tried = [row for row in rows if row["cells"]]
    return "\n".join([head, counts(rows), *_working(tried), *_refused(tried), *_not_tried(rows)])


def counts(rows: list[Row]) -> str:
    """How many models are in each state, one line per verb."""
    tried = [row for row in rows if row["cells"]]
    lines = [_line(["verb", *STATES.values()]), _line(["---", *["---:"] * len(STATES)])]
    for verb in VERBS:
        found = Counter(merged(row, verb)[0] for row in tried)
        lines.append(_line([f"`{verb}`", *(str(found[state]) for state in STATES)]))
    families = len({row["family"] for row in rows})
    total = f"{len(tried)} models were tried, of {families} families in all."
    return "\n".join([total, "", *lines, ""])


def _working(tried: list[Row]) -> list[str]:
    """Names of models with which every verb works, in two lists."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for row in tried:
        if not _trouble(row):
            names[merged(row, "generate")[0] == "ok"].append(_name(row, tried))
    return [
        "## Everything works\n",
        f"With all verbs, `generate` included ({len(names[True])}):\n",
        f"{_listed(names[True])}\n",
        f"With all verbs but `generate`, as these do not generate ({len(names[False])}):\n",
        f"{_listed(names[False])}\n",
    ]


def _refused(tried: list[Row]) -> list[str]:
    """Names of models that are not adopted, one row per other model, and the notes of both."""
    notes: dict[str, int] = {}
    table = [_line(["family", "verb and note"]), _line(["---", "---"])]
    unadopted: dict[int, list[str]] = {}
    for row in tried:
        trouble = [(v, notes.setdefault(said, len(notes) + 1)) for v, said in _trouble(row)]
        if trouble and merged(row, "adopt")[0] == "refused":
            unadopted.setdefault(trouble[0][1], []).append(_name(row, tried))
        elif trouble:
            cells = ", ".join(f"{verb} ({number})" for verb, number in trouble)
            table.append(_line([_name(row, tried), cells]))
    refused = [f"Note {number}: {_listed(names)}"[:-1] for number, names in unadopted.items()]
    listed = [_wrapped(f"{number}. {said}", "   ") for said, number in notes.items()]
    return [
        f"## Not adopted\n\n{sum(map(len, unadopted.values()))} models, so no verb works.\n",
        *(_wrapped(f"- {text}.", "  ") for text in refused),
        "\n## Adopted, and refused or failing somewhere\n",
        "Numbers are those of the notes below, where **host** means that transformers itself\n"
        "fails. Verbs that are not named work.\n",
        *table,
        "\n## Notes\n",
        *listed,
        "",
    ]


def _not_tried(rows: list[Row]) -> list[str]:
    """Names of models that need a package that is not installed, or have no tiny form."""
    untried = [row for row in rows if not row["cells"]]
    packages: dict[str, list[str]] = {}
    for row in untried:
        found = NEEDS.search(row["reason"])
        packages.setdefault(found[1] or found[2] if found else "", []).append(row["family"])
    others = packages.pop("", [])
    needs = sum(map(len, packages.values()))
    lines = [_wrapped(f"- `{name}`: {', '.join(who)}.", "  ") for name, who in packages.items()]
    return [
        "## Not tried\n",
        f"{needs} models need a package that is not installed:\n",
        *lines,
        f"\n{len(others)} have no tiny form yet:\n",
        _listed(others) if others else "none.",
        "",
    ]


def _trouble(row: Row) -> list[tuple[str, str]]:
    """Verbs that are not ok, each with its note."""
    if merged(row, "adopt")[0] == "refused":
        return [("adopt", note(merged(row, "adopt")[1]))]
    found: list[tuple[str, str]] = []
    for verb in VERBS:
        state, reason = merged(row, verb)
        partly = PARTLY.match(reason)
        if state == "ok" and partly:
            found.append((f"{verb} {partly[1]} sites", note(partly[2])))
        elif state not in ("ok", "none") and not reason.endswith("as adopt"):
            told = note(reason) if state == "refused" else f"**{state}**: {short(reason)}"
            found.append((verb, told))
    return found


def note(reason: str) -> str:
    """The note that a sentence belongs to; the beginning of the sentence where there is none."""
    for pattern, text in NOTES:
        if found := re.search(pattern, reason):
            return text.format(*found.groups())
    return short(reason)


def wrong(rows: list[Row]) -> list[str]:
    """One line for each thing that is wrong."""
    return [
        f"wrong: {row['model']} {verb} ({backend}): {reason}"
        for row in rows
        for verb, cells in row["cells"].items()
        for backend, (state, reason) in cells.items()
        if state == "wrong" and reason != "as adopt"
    ]


def merged(row: Row, verb: str) -> tuple[str, str]:
    """The worst state over backends and its reason; the backend is named if they differ."""
    cells = row["cells"][verb]
    backend = min(cells, key=lambda name: RANK.index(cells[name][0]))
    state, reason = cells[backend]
    if len({state for state, _ in cells.values()}) > 1:
        reason = f"{backend}: {reason}"
    return state, reason


def short(reason: str) -> str:
    """The first clause of a sentence, without what would break a table."""
    text = " ".join(reason.split()).replace("|", "/")
    clause = re.split(r"(?<=[a-z)])[.;] ", text)[0]
    return clause if len(clause) <= 90 else clause[:89] + "…"


def _name(row: Row, tried: list[Row]) -> str:
    """The family; the class where several of the family were tried."""
    alone = sum(other["family"] == row["family"] for other in tried) == 1
    return row["family"] if alone else f"{row['family']} ({row['model']})"


def _listed(names: Iterable[str]) -> str:
    return _wrapped(", ".join(names) + ".")


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, 98, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)


def _line(entries: list[str]) -> str:
    return f"| {' | '.join(entries)} |"
