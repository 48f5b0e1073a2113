"""Pages of the papers, generated from records: `papers/<paper>/README.md` and `papers/claims.md`.

    python -m headwise_papers.core.page                      # write all pages
    python -m headwise_papers.core.page training_dynamics    # write one paper's page
    python -m headwise_papers.core.page --check              # fail where a page is stale

A paper's page is its hand-written `introduction.md`, the table of its claims, and one section per
experiment. Papers without an introduction get no page. Verdicts are computed, never typed.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, get_args

from headwise.config import suggestion
from headwise.json_files import read_json
from headwise.recording import write_text
from headwise_papers.core import runner
from headwise_papers.core.experiment import Claim, Experiment, Result, Verdict, verdict
from headwise_papers.core.record import PAPERS_FOLDER, Record, figure_folder, recorded

__all__ = ["claims_page", "pages", "paper_page", "result_table"]

CLAIMS = [{"number": int, "paper": str, "text": str, "state": str}]  # shape of papers/claims.json
HEADER = ("claim", "paper", "ours [95 % interval]", "verdict", "values", "experiment")
HOW_TO_READ = (
    "A claim counts once: as *not* if one of its results is *not*, as *reproduced* if all that are "
    "measured are. *Undecided*: the 95 % interval holds both answers."
)
ANSWERS: dict[Verdict, str] = {  # to questions of our own
    "reproduced": "yes",
    "not": "no",
    "undecided": "undecided",
    "not measured": "not measured",
}


class Judged(NamedTuple):
    """A claim of an experiment with what its records say about it."""

    experiment: str
    claim: Claim
    result: Result | None

    @property
    def verdict(self) -> Verdict:
        """Verdict by the one rule."""
        return verdict(self.claim, self.result)


def pages(papers: Collection[str] = ()) -> dict[Path, str]:
    """Return pages by file: those of some papers, or unless given of all, with all claims."""
    if unknown := sorted(set(papers) - set(runner.PAPERS)):
        raise ValueError(
            f"There is no paper {unknown[0]!r}. {suggestion(unknown[0], runner.PAPERS)}"
        )
    texts = {
        PAPERS_FOLDER / paper / "README.md": paper_page(paper)
        for paper in papers or runner.PAPERS
        if (PAPERS_FOLDER / paper / "introduction.md").is_file()
    }
    return texts if papers else {**texts, PAPERS_FOLDER / "claims.md": claims_page()}


def paper_page(paper: str) -> str:
    """Write a paper's page: introduction, claims, experiments."""
    introduction = PAPERS_FOLDER / paper / "introduction.md"
    names = [name for name in runner.experiment_names() if name.startswith(f"{paper}/")]
    judged = [one for name in names for one in judged_claims(name)]
    numbered = [one for one in judged if one.claim.number is not None]
    numbered.sort(key=lambda one: one.claim.number or 0)
    parts = [introduction.read_text(encoding="utf-8").strip(), *_claims_table(numbered)]
    return "\n\n".join([*parts, *(_section(name) for name in names)]) + "\n"


def judged_claims(name: str) -> list[Judged]:
    """Return an experiment's claims with their results; of several parts the main one counts."""
    results: dict[str, Result] = {}
    for record in recorded(name).values():
        results = {**record.results, **results}
    claims = runner.load_experiment(name).claims
    return [Judged(name, claim, results.get(claim.result)) for claim in claims]


def claims_page() -> str:
    """Write the table of all claims of the papers, with their states and verdicts."""
    every = [one for name in runner.experiment_names() for one in judged_claims(name)]
    by_number = _by_number(every)
    known = read_json(PAPERS_FOLDER / "claims.json", CLAIMS)
    rows = [
        [
            str(claim["number"]),
            claim["paper"],
            claim["text"],
            claim["state"],
            _counted(one.verdict for one in by_number.get(claim["number"], ())),
            ", ".join(dict.fromkeys(one.experiment for one in by_number.get(claim["number"], ()))),
        ]
        for claim in known
    ]
    states = _counted(claim["state"] for claim in known)
    table = _table(["#", "paper", "claim", "state", "verdicts", "experiments"], rows)
    head = f"# The {len(known)} claims of the papers\n\nStates: {states}."
    return f"{head} {_tally(by_number)}\n\n{HOW_TO_READ}\n\n{table}\n"


def result_table(
    experiment: Experiment, results: Mapping[str, Result], *, smoke: bool
) -> list[list[str]]:
    """Return a header and rows for the console; a smoke run gets no verdicts."""
    plain = [[name, _ours(result), str(len(result.values))] for name, result in results.items()]
    if smoke:
        return [["result", "ours", "values"], *plain]
    claims: dict[str, list[Claim]] = {}
    for claim in experiment.claims:
        claims.setdefault(claim.result, []).append(claim)
    rows = [
        [*row, *judgement]
        for row in plain
        for judgement in _judgements(claims.get(row[0], ()), results[row[0]])
    ]
    missing = [
        [name, "", "0", *judgement]
        for name, some in claims.items()
        if name not in results
        for judgement in _judgements(some, None)
    ]
    return [["result", "ours", "values", "paper", "verdict"], *rows, *missing]


def _judgements(claims: Sequence[Claim], result: Result | None) -> list[list[str]]:
    """Return the paper's number and the verdict per claim; one empty pair where there is none."""
    found = [[_paper(claim), _shown_verdict(Judged("", claim, result))] for claim in claims]
    return found or [["", ""]]


def _claims_table(judged: Sequence[Judged]) -> list[str]:
    if not judged:
        return []
    told = f"{_tally(_by_number(judged))} {HOW_TO_READ} *Recorded* links to command and values."
    return ["## Claims", told, _judged_table(judged)]


def _judged_table(judged: Iterable[Judged]) -> str:
    """Write one row per claim; where several results decide it, each has a line in the cells."""
    rows: dict[tuple[str, str], list[Judged]] = {}
    for one in judged:
        rows.setdefault((_text(one.claim), one.experiment), []).append(one)
    return _table(
        HEADER,
        [
            [
                text,
                _cell(_paper(one.claim) for one in some),
                _cell(_labelled(some)),
                _cell(map(_shown_verdict, some)),
                _cell("" if one.result is None else str(len(one.result.values)) for one in some),
                experiment.partition("/")[2],
            ]
            for (text, experiment), some in rows.items()
        ],
    )


def _cell(lines: Iterable[str]) -> str:
    """Put lines below each other, or once where all are the same."""
    every = list(lines)
    return every[0] if len(set(every)) == 1 else "<br>".join(every)


def _labelled(some: Sequence[Judged]) -> list[str]:
    """Return results, after the words that tell their names apart."""
    names = [one.claim.result.split() for one in some]
    start = _shared(names)
    end = _shared([name[start:][::-1] for name in names])
    names = [name[start : len(name) - end] for name in names]
    if len({len(name) for name in names}) == 1:
        columns = [column for column in zip(*names, strict=True) if _tells(column)]
        names = [list(name) for name in zip(*columns, strict=True)]
    found = ["" if one.result is None else _ours(one.result) for one in some]
    if len(some) == 1 or not any(found):
        return found
    labels = (" ".join(name).strip(":,- ") for name in names)
    return [f"{label}: {ours}" for label, ours in zip(labels, found, strict=True)]


def _tells(column: Sequence[str]) -> bool:
    return len(set(column)) > 1 or column[0] == "-"


def _shared(names: Sequence[Sequence[str]]) -> int:
    """Count the first words that all names share."""
    columns = zip(*names, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _by_number(judged: Iterable[Judged]) -> dict[int, list[Judged]]:
    found: dict[int, list[Judged]] = {}
    for one in judged:
        if one.claim.number is not None:
            found.setdefault(one.claim.number, []).append(one)
    return found


def _tally(by_number: Mapping[int, Sequence[Judged]]) -> str:
    """Count distinct claims of the papers by their verdicts together."""
    counts = Counter(_together({one.verdict for one in some}) for some in by_number.values())
    listed = ", ".join(f"{counts[one]} {one}" for one in get_args(Verdict))
    return f"Claims that an experiment tests: {listed}."


def _together(verdicts: set[Verdict]) -> Verdict:
    measured = verdicts - {"not measured"}
    if not measured:
        return "not measured"
    if "not" in measured:
        return "not"
    return "reproduced" if measured == {"reproduced"} else "undecided"


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))


def _section(name: str) -> str:
    """Write an experiment's docstring, our own questions, figures, and how it was recorded."""
    title, _, body = runner.docstring_of(name).partition("\n")
    records = recorded(name)
    own = [one for one in judged_claims(name) if one.claim.number is None]
    questions = ["Our own questions:", _judged_table(own)] if own else []
    shown = [text for part, record in records.items() for text in _shown(record, part)]
    missing = [] if records else ["No full run has been recorded yet."]
    parts = [f"## {title}", body.strip("\n"), *questions, *shown, *missing]
    return "\n\n".join(filter(None, parts))


def _shown(record: Record, part: str) -> Iterator[str]:
    folder = figure_folder(record.experiment, part).relative_to(
        PAPERS_FOLDER / record.experiment.partition("/")[0]
    )
    for figure in record.figures:
        yield f"![{Path(figure).stem}]({folder.as_posix()}/{figure})"
    own = record.experiment.partition("/")[2]
    file = f"results/{'/'.join(filter(None, (own, part)))}.json"
    recorded_in = f"Part `{part}`: [recorded]({file})" if part else f"[Recorded]({file})"
    yield f"{recorded_in} {_provenance(record)}"


def _provenance(record: Record) -> str:
    """Say how long, and on which machine and commit; the command is in the record."""
    starts = [record.environment, *record.environment.get("resumed", ())]
    commits: dict[str, list[str]] = {}
    for start in starts:
        machine = f"{start['gpu'] or start['cpu']}, torch {start['versions']['torch']}"
        commit = f"{str(start['commit'])[:10]}{' with changes' if start['dirty'] else ''}"
        commits.setdefault(machine, []).append(commit)
    where = " and, resumed, ".join(
        f"{machine}, commit {', '.join(dict.fromkeys(some))}" for machine, some in commits.items()
    )
    last = "last start took" if len(starts) > 1 else "took"
    return f"on {where}; {last} {record.seconds:,.0f} s."


def _text(claim: Claim) -> str:
    number = "" if claim.number is None else f"{claim.number}. "
    about = "; ".join(filter(None, (claim.where, claim.stands_for)))
    return f"{number}{claim.text or claim.result}" + (f" ({about})" if about else "")


def _paper(claim: Claim) -> str:
    paper = "" if claim.paper is None else _number(claim.paper)
    if claim.rule == "direction":
        return paper or ("> 0" if claim.sign > 0 else "< 0")
    if claim.rule == "share":
        return (
            f"{paper} (≥ {_number(claim.threshold)})" if paper else f"≥ {_number(claim.threshold)}"
        )
    return f"{paper} ± {_number(claim.margin)}" if claim.margin else paper


def _ours(result: Result) -> str:
    if result.low == result.high:
        return _number(result.mean)
    return f"{_number(result.mean)} [{_number(result.low)}, {_number(result.high)}]"


def _shown_verdict(one: Judged) -> str:
    return one.verdict if one.claim.number is not None else ANSWERS[one.verdict]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"|{'|'.join(line)}|" for line in cells)


def main(arguments: Sequence[str]) -> int:
    """Write all pages or those of some papers, or with `--check` name those that are stale."""
    check, papers = "--check" in arguments, [one for one in arguments if one != "--check"]
    stale = {
        file: text
        for file, text in pages(papers).items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    }
    for file, text in stale.items():
        print(file)
        if not check:
            write_text(file, text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
