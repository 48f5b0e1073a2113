"""Are guided encoders better than plain ones after fine-tuning?

Table 4: guided encoders are better in eleven of twelve English settings.

    headwise reproduce attention_guidance/downstream --jobs 4   # H200: 60 minutes, estimated

- Of the paper's tasks only QNLI's dev part is at hand, cut in three. Scores are in per cent.
- Either arm hardly learns RTE and MRPC.
- One plain Oromo encoder of three failed in pre-training; others beat their guided partners.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headwise.config import suggestion
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ENGLISH,
    GUIDED,
    MLM,
    STANDS_FOR,
    encoder_config,
)
from headwise_papers.attention_guidance._tuning import (
    TINY_ENCODER,
    TINY_TUNING,
    TUNING,
    Start,
    check_tasks,
    diverged,
    gains,
    scores,
    tuned,
    tuning_jobs,
    values_of,
)
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    draw_bars,
    panels,
    share,
    trained_in_parallel,
)
from headwise_papers.recipes.finetuning import FinetuningConfig, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Task(NamedTuple):
    """A task and the corpus of its encoders."""

    corpus: str = ENGLISH
    folds: int = 0


TASKS = {
    **dict.fromkeys(("qnli", "rte", "mrpc", "sst2", "cola", "conll2003"), Task()),
    "masakhanews-orm": Task("oromo", 5),
}
ARMS = (MLM, GUIDED)
SHARE = f"English tasks where {GUIDED} is better on average"
LEVEL = 0.05  # of the t-test over folds
CLAIMS = (
    Claim.direction(
        f"qnli: {GUIDED} - {MLM}",
        paper=0.7,
        number=103,
        where="Table 4",
        text="Guided is better on QNLI",
        stands_for=f"5,463 examples, {STANDS_FOR}",
    ),
    *(
        Claim.direction(f"{task}: {GUIDED} - {MLM}", text="Guided is better on other tasks")
        for task in TASKS
        if task != "qnli"
    ),
)


@dataclass(frozen=True)
class Config:
    """Settings: encoders and the tasks they are fine-tuned on."""

    tasks: tuple[str, ...] = tuple(TASKS)
    layers: int = 12
    seeds: int = 3
    folds: int | None = None  # of tasks with cross-validation; None is as in TASKS
    changes: tuple[str, ...] = ()  # of every pre-training, for example fit.steps=500
    tuning: FinetuningConfig = TUNING

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise ValueError(f"There is no task {task!r} here. {suggestion(task, TASKS)}")


def _starts(config: Config) -> Iterator[tuple[str, str, Start]]:
    for task in config.tasks:
        about = TASKS[task]
        folds = about.folds if config.folds is None or not about.folds else config.folds
        for seed in range(config.seeds):
            for arm in ARMS:
                encoder = encoder_config(about.corpus, config.layers, arm, seed, config.changes)
                yield task, arm, Start.on(task, encoder, config.tuning, folds=folds)


def models(config: Config) -> Iterator[Job]:
    """List texts, encoders and fine-tunings."""
    check_tasks(config.tasks, config.tuning)
    yield from tuning_jobs(start for *_, start in _starts(config))


def run(config: Config, out: Run) -> dict[str, Result]:
    """Fine-tune all encoders and compare both arms."""
    found: dict[str, dict[str, list[Run]]] = {}
    for task, arm, start in _starts(config):
        found.setdefault(task, {}).setdefault(arm, []).append(tuned(start))
    results: dict[str, Result] = {}
    for task, runs in found.items():
        results |= measured(task, runs)
    english = [f"{task}: {GUIDED} - {MLM}" for task in found if TASKS[task].corpus == ENGLISH]
    if trials := [results[name].mean > 0 for name in english if name in results]:
        results[SHARE] = share(trials)
    return results


def measured(task: str, runs: Mapping[str, Sequence[Run]]) -> dict[str, Result]:
    """Return the results of a task."""
    results = scores(task, runs) | gains(task, runs, [(GUIDED, MLM)]) | _tests(task, runs)
    if common := values_of(runs[MLM], "commonest_class"):
        results[f"{task}: commonest class"] = Result([100 * value for value in common])
    for what in ("updates", "minutes"):
        for arm, several in runs.items():
            alone = what == "updates" or not trained_in_parallel(several)
            if alone and (values := values_of(several, what)):
                results[f"{task}: {what}, {arm}"] = Result(values)
    return results


def _tests(task: str, runs: Mapping[str, Sequence[Run]]) -> dict[str, Result]:
    """Return, per seed, whether arms differ over test examples and over folds."""
    pairs = zip(runs[GUIDED], runs[MLM], strict=True)
    opened = [[Run.open(run.path("tuning")) for run in pair]
              for pair in pairs if not any(map(diverged, pair))]  # fmt: skip
    tests = [compare(*pair) for pair in opened]
    trials = {
        f"{task}: {GUIDED} better over test examples": [t.bootstrap_low > 0 for t in tests],
        f"{task}: {MLM} better over test examples": [t.bootstrap_high < 0 for t in tests],
        f"{task}: arms differ over folds": [t.p < LEVEL for t in tests if t.p is not None],
    }
    return {name: share(found) for name, found in trials.items() if found}


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw scores of both arms, and differences."""
    tasks = out.config()["tasks"]
    figure, ((left, right),) = panels(2, width=max(4.0, 0.7 * len(tasks) + 1), height=3.5)
    groups = {
        arm: {task: results[name] for task in tasks if (name := f"{task}: {arm}") in results}
        for arm in (*ARMS, "commonest class")
    }
    if some := {arm: group for arm, group in groups.items() if group}:
        draw_bars(left, some, ylabel="score, %")
    pair = f"{GUIDED} - {MLM}"
    if gaps := {one: results[name] for one in tasks if (name := f"{one}: {pair}") in results}:
        draw_bars(right, {pair: gaps}, ylabel="difference, points")
    right.axhline(0, color="black", linewidth=0.8)
    return {"scores": figure}


SMOKE = Config(
    tasks=("masakhanews-orm",), layers=1, seeds=1, folds=3, changes=TINY_ENCODER, tuning=TINY_TUNING
)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
