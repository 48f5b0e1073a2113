"""Docs pages of experiments, generated from results/: ours beside the paper's, never typed.

python -m headwise_papers.core.pages sen
"""

import sys
from collections.abc import Mapping, Sequence

from headwise.recording.files import write_text
from headwise_papers.core.base import Estimate, Expected
from headwise_papers.core.results import PAPERS, Result, kept_parts
from headwise_papers.core.shelf import experiment_names, load_experiment, story_of

VERDICTS = ("reproduced", "partly", "undecided", "not")
ANSWERS = dict(zip(VERDICTS, ("yes", "partly", "undecided", "no"), strict=True))  # to our questions
MISSING = "not measured"
HEADER = ["figure", "ours", "95 % interval", "runs", "paper", "where", "margin", "verdict"]
OURS = 4  # columns that have nothing to do with a paper
LISTED = 6  # claims of an experiment that the overview names
ENDS = (", low end", ", high end")  # of an interval that an experiment records itself
Figures = Mapping[str, Estimate]
Parts = Mapping[str, Result]  # of an experiment, by name, the chief one first


def page(family: str) -> str:
    """The page of one family: its introduction, then a section an experiment."""
    names = [name for name in experiment_names() if name.startswith(f"{family}/")]
    if not names:
        raise ValueError(f"There is no family of experiments {family!r}.")
    introduction = (PAPERS / family / "introduction.md").read_text(encoding="utf-8").strip()
    results = {name: kept_parts(name) for name in names}
    sections = [section(name, parts) for name, parts in results.items()]
    return "\n\n".join([introduction, _overview(results), *sections]) + "\n"


def joined(parts: Parts) -> dict[str, Estimate]:
    """The figures of all parts; one that an earlier part has otherwise is called after its part."""
    figures: dict[str, Estimate] = {}
    for part, result in parts.items():
        for metric, got in result.figures.items():
            same = figures.setdefault(metric, got) == got
            figures |= {} if same else {f"{metric} ({part})": got}
    return figures


def _overview(results: Mapping[str, Parts]) -> str:
    """How many of the paper's figures came out, an experiment a row, and which did not."""
    found = {
        name: by_verdict(load_experiment(name).expected, joined(parts))
        for name, parts in results.items()
        if parts
    }
    found = {name: metrics for name, metrics in found.items() if any(metrics.values())}
    counts = {name: list(map(len, metrics.values())) for name, metrics in found.items()}
    rows = [[_linked(name), *map(str, numbers)] for name, numbers in counts.items()]
    rows.append(["in all", *(str(sum(column)) for column in zip(*counts.values(), strict=True))])
    table = _table(["experiment", *VERDICTS, MISSING], rows)
    missed = [
        f"- {_linked(name)}: {listed(metrics['not'])}"
        for name, metrics in found.items()
        if metrics["not"]
    ]
    below = ["Not reproduced:", "\n".join(missed)] if missed else []
    return "\n\n".join(["## What came out of the paper's figures", table, *below])


def by_verdict(expected: Sequence[Expected], figures: Figures) -> dict[str, list[str]]:
    """The paper's figures by what came out of them, the last being those that nobody measured."""
    found: dict[str, list[str]] = {verdict: [] for verdict in (*VERDICTS, MISSING)}
    for item in expected:
        if item.paper is None or item.is_our_question:
            continue
        got = figures.get(item.metric)
        verdict = MISSING if got is None else item.paper_verdict(got)
        assert verdict is not None, f"{item.metric} has a paper's figure"
        found[verdict].append(item.metric)
    return found


def listed(metrics: Sequence[str]) -> str:
    """Claims in one line; what is claimed of several sets or models is said once.

    >>> listed(["imdb: rises", "sst: falls", "sst: rises"])
    'rises (imdb, sst); falls (sst)'
    """
    about: dict[str, list[str]] = {}
    for metric in metrics:
        subject, colon, claim = metric.partition(": ")
        about.setdefault(claim if colon else metric, []).extend([subject] if colon else [])
    claims = [
        claim + (f" ({_enumerated(subjects)})" if subjects else "")
        for claim, subjects in about.items()
    ]
    rest = [f"and {len(claims) - LISTED} more"] if len(claims) > LISTED else []
    return "; ".join(claims[:LISTED] + rest)


def _enumerated(names: Sequence[str]) -> str:
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _linked(name: str) -> str:
    """An experiment with a link to its section, whose anchor is made as GitHub makes it."""
    return f"[`{name}`](#{name.replace('/', '')})"


def section(name: str, parts: Parts) -> str:
    """What is asked, the figures that were expected, all others folded away, and pictures."""
    heading, story = f"## {name}", story_of(name)
    if not parts:
        return f"{heading}\n\n{story}\n\nNo full run has been recorded yet."
    tables = figure_tables(load_experiment(name).expected, joined(parts))
    shown = [text for part, result in parts.items() for text in _shown(result, part)]
    return "\n\n".join([heading, story, *tables, *shown])


def figure_tables(expected: Sequence[Expected], figures: Figures) -> list[str]:
    """What an experiment expects, first what has a verdict; then what else it measured, folded."""
    known = {item.metric: item for item in expected}
    alone = _alone(figures)
    chief = sorted(
        (known[metric] for metric in alone if metric in known),
        key=lambda item: item.paper is None,
    )
    others = [Expected(metric) for metric in alone if metric not in known]
    missing = [item.metric for item in expected if item.metric not in figures]
    parts = [_filled_table(HEADER, [_row(item, figures) for item in chief])] if chief else []
    parts += [_not_measured(missing)] if missing else []
    parts += [_folded([_row(item, figures)[:OURS] for item in others])] if others else []
    return parts


def _not_measured(metrics: Sequence[str]) -> str:
    """One sentence about figures that no recorded run has, by what stands before the colon."""
    groups: dict[str, list[str]] = {}
    for metric in metrics:
        groups.setdefault(metric.partition(": ")[0], []).append(metric)
    named = [
        f"{group} ({len(some)} figures)" if len(some) > 1 else some[0]
        for group, some in groups.items()
    ]
    return f"Not measured yet: {'; '.join(named)}."


def _folded(rows: Sequence[Sequence[str]]) -> str:
    """Rows behind a line that opens on a click; without the blank lines GitHub shows no table."""
    summary = f"<summary>{len(rows)} more figure{'s' if len(rows) > 1 else ''}</summary>"
    return "\n\n".join([f"<details>\n{summary}", _table(HEADER[:OURS], rows), "</details>"])


def _filled_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Without columns about the paper in which no row has anything."""
    kept_ones = [
        place for place in range(len(header)) if place < OURS or any(row[place] for row in rows)
    ]
    return _table(
        [header[place] for place in kept_ones],
        [[row[place] for place in kept_ones] for row in rows],
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    every = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


def verdict_rows(expected: Sequence[Expected], figures: Figures) -> list[list[str]]:
    """A row a figure: ours with its interval, the paper's with its margins, and the verdict."""
    known = {item.metric: item for item in expected}
    rows = [_row(known.get(metric, Expected(metric)), figures) for metric in _alone(figures)]
    # an experiment may have learnt to measure something since its result was kept
    return rows + [_missing_row(item) for item in expected if item.metric not in figures]


def _alone(figures: Figures) -> list[str]:
    """Figures with a row of their own: all but the ends of another one's interval."""
    ends = {f"{metric}{end}" for metric in figures if _own_ends(metric, figures) for end in ENDS}
    return [metric for metric in figures if metric not in ends]


def _own_ends(metric: str, figures: Figures) -> str:
    """The interval within a run that an experiment records beside a figure, mean over runs."""
    ends = [figures[name] for end in ENDS if (name := f"{metric}{end}") in figures]
    return " to ".join(_number(end.mean) for end in ends) if len(ends) == len(ENDS) else ""


def _row(expected: Expected, figures: Figures) -> list[str]:
    got = figures[expected.metric]
    return [
        expected.metric,
        _number(got.mean),
        _interval(expected, figures),
        str(len(got.values)),
        "" if expected.paper is None else _number(expected.paper),
        expected.where,
        "" if expected.paper is None or expected.three_way else _margins(expected),
        _verdict(expected, got),
    ]


def _margins(expected: Expected) -> str:
    return f"{expected.margin:g}, partly {expected.partly:g}"


def _interval(expected: Expected, figures: Figures) -> str:
    """Over runs, and within one where the experiment knows it."""
    got, own = figures[expected.metric], _own_ends(expected.metric, figures)
    if len(got.values) == 1:
        return own
    is_share = expected.paper == 1.0 and all(0 <= value <= 1 for value in got.values)
    low, high = (max(got.low, 0.0), min(got.high, 1.0)) if is_share else (got.low, got.high)
    return f"{_number(low)} to {_number(high)}" + (f"; within a run {own}" if own else "")


def _verdict(expected: Expected, got: Estimate) -> str:
    verdict = expected.paper_verdict(got)
    if verdict is None:
        return ""
    return ANSWERS[verdict] if expected.is_our_question else verdict


def _missing_row(expected: Expected) -> list[str]:
    paper = "" if expected.paper is None else _number(expected.paper)
    return [expected.metric, "not measured yet", "", "", paper, expected.where, "", ""]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _shown(result: Result, part: str) -> list[str]:
    """The pictures of a part, and how it was made."""
    experiment = result.experiment.partition("/")[2]
    folder = f"figures/{experiment}-{part}" if part else f"figures/{experiment}"
    pictures = [
        f"![{picture.removesuffix('.png')}]({folder}/{picture})" for picture in result.pictures
    ]
    return [*pictures, (f"The part `{part}`. " if part else "") + _made(result)]


def _made(result: Result) -> str:
    environment = result.environment
    machine = environment["gpu"] or environment["cpu"]
    changed = " with changes" if environment["dirty"] else ""
    commit = str(environment["commit"])[:10]
    where = f"on {machine}, torch {environment['versions']['torch']}, commit {commit}{changed}"
    if not environment.get("resumed"):
        return f"Made by `{result.command}` in {result.seconds:,.0f} s {where}."
    last = environment["resumed"][-1]
    return (
        f"Made by `{result.command}`, begun {where}; its last leg took {result.seconds:,.0f} s on "
        f"{last['gpu'] or last['cpu']}, commit {str(last['commit'])[:10]}."
    )


def main() -> None:
    """Write the pages of the families named on the command line."""
    for family in sys.argv[1:]:
        write_text(PAPERS / family / "README.md", page(family))


if __name__ == "__main__":
    main()
