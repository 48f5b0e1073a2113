"""Small paper, Table 1: does more training find the slope of a line?

    headwise reproduce small_paper/fitted-line

Deviations: the paper has no line.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headwise.recording.run import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    bar_chart,
    find_or_train,
    minus,
    share,
)
from tests.papers.core.recipe import LineConfig, train_line

LINE = LineConfig()


@dataclass(frozen=True)
class Config:
    """Settings."""

    seeds: int = 3
    steps: tuple[int, ...] = (2, 8)
    line: LineConfig = LINE


CLAIMS = (
    Claim.direction(
        "8 steps - 2 steps", number=66, where="Table 1", text="More is better", stands_for="toy"
    ),
    Claim.value("8 steps", 2.0, margin=0.3, number=66, where="Table 1", text="Finds 2 | or so"),
    Claim.share("above 1.5", threshold=0.3, text="Every run comes near"),
    Claim.value("16 steps", 2.0, margin=0.1, number=67, where="Table 2", text="Finds 2 at last"),
)


def job(steps: int, seed: int) -> Job:
    """Return one line to fit."""
    return Job(train_line, LineConfig(steps=steps, seed=seed))


def models(config: Config) -> Iterator[Job]:
    """List the lines."""
    for steps in config.steps:
        yield from (job(steps, seed) for seed in range(config.seeds))


def run(config: Config, out: Run) -> dict[str, Result]:
    """Fit the lines and compare their slopes."""
    results = {
        f"{steps} steps": Result(
            [find_or_train(*job(steps, seed)).figures()["slope"] for seed in range(config.seeds)]
        )
        for steps in config.steps
    }
    first, last = (results[f"{steps} steps"] for steps in config.steps)
    results["8 steps - 2 steps"] = minus(last, first)
    results["above 1.5"] = share(value > 1.5 for value in last.values)
    out.log(1, slope=last.mean)
    return results


def draw(results: dict[str, Result], out: Run):
    """Draw the slopes as bars."""
    assert out.metrics()
    return {"slopes": bar_chart(results, where=lambda name: " - " not in name, ylabel="slope")}


experiment = Experiment(Config(), Config(seeds=2), models, run, draw, CLAIMS)
