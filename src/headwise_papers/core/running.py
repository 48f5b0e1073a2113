"""Running an experiment from start to verdicts."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.recording.files import writing_alone
from headwise.recording.run import Run
from headwise_papers.core.base import Estimate, since
from headwise_papers.core.results import Result, check_part, keep, result_of
from headwise_papers.core.shelf import load_experiment


def reproduce(
    name: str, config: Any, folder: Path, *, save: bool = False, part: str = ""
) -> dict[str, Estimate]:
    """Run an experiment with a config; figures by name, each with its interval over seeds.

    Everything goes to a Run in `folder`: metrics, pictures, and `result.json`. With `save` the
    result is also kept where the docs are generated from, under the name of its part if it has one.
    """
    check_part(part)
    experiment = load_experiment(name)
    started = time.perf_counter()
    with writing_alone(folder), Run.create(folder, _known_by(config), "experiment") as run:
        measured = experiment.reproduce(config, run)
        figures = {
            metric: experiment.estimate(metric, values) for metric, values in measured.items()
        }
        seconds = time.perf_counter() - started
        result = result_of(name, experiment, config, run, figures, seconds)
        run.write_json("result.json", result.to_json())
        run.save_figures({metric: estimate.mean for metric, estimate in figures.items()})
        if save:
            keep(result, run, part=part)
    return figures


def _known_by(config: Any) -> Any:
    """Settings by which a run is told from others: not how many of its models were made at once."""
    return replace(config, at_once=1) if hasattr(config, "at_once") else config


def changes_since(
    recorded: Mapping[str, Result], figures: Mapping[str, Estimate], *, part: str = ""
) -> list[str]:
    """Figures that were recorded before and now come out differently, or not at all.

    Args:
        recorded: the parts of a record.
        figures: what was found now.
        part: which of them this is; of the chief one, "", all count that have one of the figures.
    """
    own = {part: recorded[part]} if part in recorded else {}
    named = own if part else {name: one for name, one in recorded.items() if _share(one, figures)}
    before: dict[str, list[Estimate]] = {}
    for one in (named or own).values():
        for metric, estimate in one.figures.items():
            before.setdefault(metric, []).append(estimate)
    return [
        metric
        for metric, found in before.items()
        if metric not in figures or all(since(one, figures[metric]) == "changed" for one in found)
    ]


def _share(recorded: Result, figures: Mapping[str, Estimate]) -> bool:
    return bool(recorded.figures.keys() & figures.keys())
