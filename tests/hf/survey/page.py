"""The page docs/models.md, from the rows of a survey."""

import re
from collections import Counter

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
    tried = [row for row in rows if row["cells"]]
    made = describe_environment(seed=0)
    head = HEAD.format(
        version=made["versions"]["transformers"],
        commit=made["commit"][:10],
        torch=made["versions"]["torch"],
        cores=made["cores"],
        cpu=made["cpu"],
    )
    lines = [head, counts(rows), "## Models", ""]
    lines += [_line(["family", "model", *VERBS]), _line(["---"] * (2 + len(VERBS)))]
    lines += [_line(_entries(row)) for row in tried]
    if untried := [row for row in rows if not row["cells"]]:
        lines += ["", "## Not tried", "", _line(["family", "model", "why"]), _line(["---"] * 3)]
        lines += [_line([r["family"], r["model"], short(r["reason"])]) for r in untried]
    return "\n".join(lines) + "\n"


def counts(rows: list[Row]) -> str:
    """How many models are in each state, one line per verb."""
    tried = [row for row in rows if row["cells"]]
    lines = [_line(["verb", *STATES.values()]), _line(["---", *["---:"] * len(STATES)])]
    for verb in VERBS:
        found = Counter(merged(row, verb)[0] for row in tried)
        lines.append(_line([f"`{verb}`", *(str(found[state]) for state in STATES)]))
    families = len({row["family"] for row in rows})
    total = f"{len(tried)} models were tried, of {families} families in all."
    return "\n".join([total, _untried(rows), "", *lines, ""])


def _untried(rows: list[Row]) -> str:
    """How many models need a package that is not installed, and how many have no tiny form."""
    untried = [row["reason"] for row in rows if not row["cells"]]
    packages = Counter(
        found[1] or found[2] for reason in untried if (found := NEEDS.search(reason))
    )
    needs = ", ".join(f"{package} {count}" for package, count in packages.most_common())
    others = len(untried) - packages.total()
    return (
        f"{len(untried)} more were not tried: {packages.total()} need a package that is not "
        f"installed ({needs or 'none'}), and {others} have no tiny form yet."
    )


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


def _entries(row: Row) -> list[str]:
    entries = [row["family"], row["model"]]
    for verb in VERBS:
        state, reason = merged(row, verb)
        if reason.endswith("as adopt"):
            entries.append("")
        elif state == "none":
            entries.append("-")
        else:
            word = "" if state == "refused" else f"**{state}**: " if state != "ok" else "ok "
            entries.append(f"{word}{short(reason)}".strip())
    return entries


def _line(entries: list[str]) -> str:
    return f"| {' | '.join(entries)} |"
