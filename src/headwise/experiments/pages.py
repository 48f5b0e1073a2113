"""Docs pages of experiments, generated from results/: ours beside the paper's, never typed.

python -m headwise.experiments.pages sen
"""

import sys
from pathlib import Path

from headwise.experiments.base import Estimate, Expected
from headwise.experiments.results import Result, kept
from headwise.experiments.shelf import FOLDER, experiment_names, load_experiment, story_of
from headwise.recording.files import write_text


def page(family: str) -> str:
    """The page of one family: its introduction, then a section an experiment."""
    names = [name for name in experiment_names() if name.startswith(f"{family}/")]
    if not names:
        raise ValueError(f"There is no family of experiments {family!r}.")
    introduction = (FOLDER / family / "introduction.md").read_text().strip()
    return "\n\n".join([introduction, _overview(names), *map(_section, names)]) + "\n"


def _overview(names: list[str]) -> str:
    """What came out of the paper's figures, an experiment a row."""
    head = ["experiment", *VERDICTS, "not measured"]
    rows = [head, ["---"] * len(head)]
    for name in names:
        experiment, result = load_experiment(name), kept(name)
        asked = [item for item in experiment.expected if not item.is_our_question]
        if result is None or not any(item.paper is not None for item in asked):
            continue
        judged = [item for item in asked if item.paper is not None]
        found: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
        for item in judged:
            verdict = (
                item.paper_verdict(result.figures[item.metric])
                if (item.metric in result.figures)
                else None
            )
            if verdict is not None:
                found[verdict].append(item.metric)
        counts = [str(len(found["reproduced"]))]
        counts += [_listed(found[verdict]) for verdict in VERDICTS[1:]]
        missing = sum(item.metric not in result.figures for item in judged)
        rows.append([f"`{name}`", *counts, str(missing)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(["## What came out of the paper's figures", "", *lines])


def _listed(metrics: list[str]) -> str:
    return f"{len(metrics)}: {'; '.join(metrics)}" if metrics else "0"


def verdict_rows(expected: tuple[Expected, ...], figures: dict[str, Estimate]) -> list[list[str]]:
    """A row a figure: ours with its interval, the paper's with its margins, and the verdict."""
    known = {item.metric: item for item in expected}
    rows = [_row(known.get(metric, Expected(metric)), got) for metric, got in figures.items()]
    # an experiment may have learnt to measure something since its result was kept
    return rows + [_missing_row(item) for item in expected if item.metric not in figures]


VERDICTS = ("reproduced", "partly", "not")
ANSWERS = dict(zip(VERDICTS, ("yes", "partly", "no"), strict=True))  # to a question of ours
HEADER = ["figure", "ours", "95 % interval", "runs", "paper", "where", "margin", "paper's figure"]


def _section(name: str) -> str:
    experiment, result = load_experiment(name), kept(name)
    story = story_of(name)
    if result is None:
        return f"## {name}\n\n{story}\n\nNo full run has been recorded yet."
    rows = verdict_rows(experiment.expected, dict(result.figures))
    table = [HEADER, ["---"] * len(HEADER), *rows]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in table)
    return "\n\n".join([f"## {name}", story, lines, *_pictures(result), _made(result)])


def _pictures(result: Result) -> list[str]:
    return [
        f"![{picture.removesuffix('.png')}](pictures/{result.experiment}/{picture})"
        for picture in result.pictures
    ]


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


def _row(expected: Expected, got: Estimate) -> list[str]:
    several = len(got.values) > 1
    is_share = expected.paper == 1.0 and all(0 <= value <= 1 for value in got.values)
    low, high = (max(got.low, 0.0), min(got.high, 1.0)) if is_share else (got.low, got.high)
    return [
        expected.metric,
        _number(got.mean),
        f"{_number(low)} to {_number(high)}" if several else "",
        str(len(got.values)),
        "" if expected.paper is None else _number(expected.paper),
        expected.where,
        "" if expected.paper is None else f"{expected.margin:g}, partly {expected.partly:g}",
        _verdict(expected, got),
    ]


def _verdict(expected: Expected, got: Estimate) -> str:
    verdict = expected.paper_verdict(got)
    if verdict is None:
        return ""
    return ANSWERS[verdict] if expected.is_our_question else verdict


def _missing_row(expected: Expected) -> list[str]:
    paper = "" if expected.paper is None else _number(expected.paper)
    return [expected.metric, "not measured yet", "", "", paper, expected.where, "", ""]


def _number(value: float) -> str:
    return f"{value:.4g}"


def main() -> None:
    """Write the pages of the families named on the command line."""
    for family in sys.argv[1:]:
        write_text(Path("docs") / f"{family}.md", page(family))


if __name__ == "__main__":
    main()
