"""Does pre-training on another language help on English tasks, against no pre-training?

Table 1: encoders pre-trained on other languages, or not at all, are fine-tuned on English tasks.

    headwise reproduce attention_guidance/transfer --jobs 4   # H200: 60 minutes, estimated

- Languages differ in tokenizers and tokens seen too. English against both is recorded.
- One in three fine-tunings without pre-training learns nothing; MRPC stays at the commonest class.
- MRPC and QNLI have two seeds, too few for a verdict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import ENGLISH, GUIDED, MLM, encoder_config
from headwise_papers.attention_guidance._tuning import (
    TINY_ENCODER,
    TINY_TUNING,
    TUNING,
    Start,
    check_tasks,
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
    trained_in_parallel,
)
from headwise_papers.recipes.finetuning import FinetuningConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE = "none"
TASKS = ("sst2", "mrpc", "qnli")  # of Table 1
FOREIGN = ("filipino", "oromo")


@dataclass(frozen=True)
class Config:
    """Settings: encoders and the tasks they are fine-tuned on."""

    tasks: tuple[str, ...] = TASKS
    english: str = ENGLISH
    foreign: tuple[str, ...] = FOREIGN
    arms: tuple[str, ...] = (MLM, GUIDED)
    layers: int = 12
    seeds: int = 3
    changes: tuple[str, ...] = ()  # of every pre-training, for example fit.steps=500
    tuning: FinetuningConfig = TUNING

    def __post_init__(self) -> None:
        if not self.arms or not set(self.arms) <= {MLM, GUIDED}:
            raise ValueError(f"arms are {MLM} or {GUIDED} or both, got {', '.join(self.arms)}.")
        for _ in _starts(self):  # wrong settings raise before there is a folder
            pass


def pairs_of(english: str, foreign: Sequence[str], arms: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of starts, the first of which the paper finds better."""
    pairs: list[tuple[str, str]] = []
    for arm in arms:
        own, others = f"{english}, {arm}", [f"{corpus}, {arm}" for corpus in foreign]
        pairs += [(name, NONE) for name in (*others, own)]
        pairs += [(own, other) for other in others]
    return pairs


CLAIMS = tuple(
    Claim.direction(
        f"{task}: {corpus}, {MLM} - {NONE}",
        number=88,
        where="Table 1",
        text="Foreign pre-training beats none",
    )
    for task in TASKS
    for corpus in FOREIGN
)


def _starts(config: Config) -> Iterator[tuple[str, str, Start]]:
    """Yield task, start and settings of every fine-tuning, those of a seed together."""
    for seed, task in product(range(config.seeds), config.tasks):
        for corpus, arm in product((*config.foreign, config.english), config.arms):
            encoder = encoder_config(corpus, config.layers, arm, seed, config.changes)
            yield task, f"{corpus}, {arm}", Start.on(task, encoder, config.tuning)
        # the English encoder lends its shape and tokenizer
        arm = config.arms[0]
        encoder = encoder_config(config.english, config.layers, arm, seed, config.changes)
        yield task, NONE, Start.on(task, encoder, config.tuning, fresh=True)


def models(config: Config) -> Iterator[Job]:
    """List texts, encoders and fine-tunings."""
    check_tasks(config.tasks, config.tuning)
    yield from tuning_jobs(start for *_, start in _starts(config))


def run(config: Config, out: Run) -> dict[str, Result]:
    """Fine-tune all encoders and compare them."""
    found: dict[str, dict[str, list[Run]]] = {task: {NONE: []} for task in config.tasks}
    for task, name, start in _starts(config):
        found[task].setdefault(name, []).append(tuned(start))
    results: dict[str, Result] = {}
    pairs = pairs_of(config.english, config.foreign, config.arms)
    for task, runs in found.items():
        results |= measured(task, runs, pairs)
    return results


def measured(
    task: str, runs: Mapping[str, Sequence[Run]], pairs: Sequence[tuple[str, str]]
) -> dict[str, Result]:
    """Return the results of a task: scores by start, and differences of pairs."""
    results = scores(task, runs) | gains(task, runs, pairs)
    if common := values_of(runs[NONE], "commonest_class"):
        results[f"{task}: commonest class"] = Result([100 * value for value in common])
    every = [one for several in runs.values() for one in several]
    if not trained_in_parallel(every) and (minutes := values_of(every, "minutes")):
        results[f"{task}: minutes of a fine-tuning"] = Result(minutes)
    return results


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw scores by start, one panel per task; dashed is the commonest class."""
    config = out.config()
    starts = [
        NONE,
        *map(", ".join, product((*config["foreign"], config["english"]), config["arms"])),
    ]
    figure, (row,) = panels(len(config["tasks"]), width=4.5, height=3.6)
    for panel, task in zip(row, config["tasks"], strict=True):
        bars = {name: results[f"{task}: {name}"] for name in starts if f"{task}: {name}" in results}
        if bars:
            draw_bars(panel, {"": bars}, ylabel="score, %")
        if (name := f"{task}: commonest class") in results:
            panel.axhline(results[name].mean, color="grey", linestyle="--", linewidth=1.0)
        panel.set_title(task, fontsize=9)
    return {"scores": figure}


SMOKE = Config(
    tasks=("sst2",),
    english="wikitext-2",
    foreign=("oromo",),
    arms=(MLM,),
    layers=1,
    seeds=1,
    changes=TINY_ENCODER,
    tuning=replace(TINY_TUNING, epochs=2),
)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
