"""Are guided encoders better than plain ones where they are fine-tuned on tasks?

Table 4: encoders fine-tuned on three English tasks, on Filipino sentiment and on Oromo named
entities. Guided ones are better in eleven of twelve English settings and in all others.

    headwise reproduce attention_guidance/downstream --jobs 4   # 60 minutes on an H200, estimated
    headwise reproduce attention_guidance/downstream --smoke    # 5 seconds on a CPU core

- Of the paper's tasks only the dev part of QNLI is at hand, cut into three parts; it alone counts
  as a claim of the paper. RTE, MRPC (F1), SST-2, CoLA (Matthews), CoNLL-2003 (F1 of spans) and
  topics of Oromo news (5 folds) are our own questions. There is no Filipino task.
- One fine-tuning per pre-trained encoder of `attention_guidance/pretrain`, with the same seed; the
  best weights on the dev part are tested. Scores are in per cent.
- "Better over test examples": per seed, whether the interval of a paired bootstrap over its test
  examples excludes 0. "Differ over folds": per seed, whether p < 0.05 by a t-test corrected for
  training examples that folds share (Nadeau and Bengio, 2003).
- "Commonest class" is the score of always predicting it. RTE and MRPC are hardly learned by either
  arm, and QNLI little. All encoders saw 41 million tokens of technical documentation.
- One plain Oromo encoder of three failed in pre-training (31, commonest class 30); the other two
  score 79 and 74, more than their guided partners. Oromo encoders saw most of the articles, without
  labels, in pre-training, in both arms.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headwise.config import suggestion
from headwise.recording.run import Run
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
        where="Table 4, 12 layers",
        text="Guided encoders are better on QNLI",
        stands_for=f"5,463 examples of QNLI; {STANDS_FOR}",
    ),
    *(
        Claim.direction(
            f"{task}: {GUIDED} - {MLM}", text="Guided encoders are better on other tasks"
        )
        for task in TASKS
        if task != "qnli"
    ),
)


@dataclass(frozen=True)
class Config:
    """Which encoders are fine-tuned, and on what."""

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
