"""Pre-trained encoders fine-tuned on tasks: runs that are found or made, and their scores.

A fine-tuning lies in a folder like `tuned/sst2/guided-12-seed-0`, named after its encoder. The seed
of the encoder is that of the fine-tuning too. It keeps the settings of its encoder, in `encoder`
below it, so that both are compared with what is asked for where it is lent without the encoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headwise.recording.run import Run
from headwise_papers.attention_guidance._losses import pairwise, values_of
from headwise_papers.attention_guidance._pretraining import (
    ASIDE,
    ENGLISH,
    MLM,
    TINY,
    Job,
    Pretraining,
    diverged,
    encoder_run,
    note_company,
    places,
    pretrain_at_once,
    settings_of,
)
from headwise_papers.core import lending
from headwise_papers.core.at_once import make_at_once
from headwise_papers.recipes.finetuning import FinetuningConfig, finetune, read_task

__all__ = [
    "PER_CENT",
    "TINY_TUNING",
    "Start",
    "Tuning",
    "check_tasks",
    "diverged_figures",
    "gains",
    "scores",
    "shown",
    "tune_at_once",
    "tuned_run",
]

TUNING_ASIDE = (
    "model",
    "keep",
    "fit.graphs",
)  # what a fine-tuning comes to does not depend on these
# nor, where weights are drawn anew, on how the encoder was trained that lends its shape
LEARNING = ("guide.plan", "guide.alpha", "guide.schedule", "guide.convention", "fit.steps",
            "fit.warmup", "fit.learning_rate", "batch_size")  # fmt: skip
PER_CENT = (0.0, 100.0)  # where scores lie
ENCODER = "encoder"  # settings of the pre-training, below a fine-tuning


@dataclass(frozen=True)
class Tuning(Pretraining):
    """How to pre-train, see `Pretraining`, and how to fine-tune."""

    layers: int = 12
    epochs: int = 5  # at most
    patience: int = 2  # evaluations on the dev part, one an epoch, without a better one
    tuning_rate: float = 5e-5
    tuning_batch: int = 32
    length: int = 128  # pieces of a text at most
    train_examples: int = 0  # only so many of a part; 0 takes all
    dev_examples: int = 0
    test_examples: int = 0


TINY_TUNING: dict[str, Any] = {
    **TINY,
    "layers": 1,
    "steps": 20,
    "evaluate_every": 20,
    "checkpoint_every": 20,
    "epochs": 4,
    "tuning_rate": 3e-3,
    "tuning_batch": 8,
    "length": 24,
    "train_examples": 80,
    "dev_examples": 8,
    "test_examples": 16,
}


class Start(NamedTuple):
    """An encoder, and what it is fine-tuned on."""

    task: str  # see `headwise_papers.data.tasks` and `headwise_papers.data.tasks`
    job: Job  # the encoder, which is pre-trained where nobody lends it
    fresh: bool = False  # take its shape and tokenizer alone, and draw its weights anew
    folds: int = 0  # of cross-validation; 0 keeps the published parts

    @property
    def folder(self) -> str:
        """Where the fine-tuning lies in a run.

        >>> Start("sst2", Job("oromo", "MLM", 12, 0), fresh=True).folder
        'tuned/sst2/oromo-none-12-seed-0'
        """
        own = self.job._replace(arm="none") if self.fresh else self.job
        return f"tuned/{self.task}/{own.folder.replace('/', '-')}"


def check_tasks(config: Tuning, tasks: Sequence[str]) -> None:
    """Refuse tasks that are not there, before anything is trained."""
    if not tasks:
        raise ValueError("One task or more is needed.")
    for task in tasks:
        read_task(_settings(config, Start(task, Job(ENGLISH, MLM, config.layers, 0)), model=""))


def tune_at_once(config: Tuning, run: Run, starts: Sequence[Start]) -> None:
    """Fine-tune encoders, several at a time if the setting `at_once` says so.

    Those that must be pre-trained first are, several at a time too.
    """
    left = [
        start
        for start in (dict.fromkeys(starts) if config.at_once > 1 else ())
        if _found(config, run, start) is None
    ]
    jobs = [start.job for start in left]
    pretrain_at_once(config, run, {job.folder: settings_of(config, job) for job in jobs})
    make_at_once(partial(tuned_run, config), left, run=run, processes=config.at_once)


def tuned_run(config: Tuning, run: Run, start: Start) -> Run:
    """The finished run of an encoder fine-tuned on a task, found or made now.

    Where the encoder diverged there is nothing to fine-tune: its own run is returned, which says so
    (see `diverged`), so that whoever compares seed by seed can leave it out with its partner.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        start: which encoder and task.
    """
    if found := _found(config, run, start):
        return found
    encoder = encoder_run(config, run, start.job)
    if diverged(encoder):
        return encoder
    settings = _settings(config, start, model=str(encoder.folder))
    done = finetune(settings, run.folder / start.folder)
    done.write_json(f"{ENCODER}/config.json", encoder.read_json("config.json"))
    note_company(config, done)
    return done


def _found(config: Tuning, run: Run, start: Start) -> Run | None:
    for place in places(config, run):
        if (place / start.folder / "figures.json").is_file():
            found = Run.open(place / start.folder)
            wanted = _settings(config, start, model=found.config()["model"])
            aside = (*ASIDE, *(LEARNING if start.fresh else ()))
            encoder = _encoder_of(found, start.job, [place, *map(Path, config.trained)])
            lending.checked(encoder, settings_of(config, start.job), aside=aside)
            return lending.checked(found, wanted, aside=TUNING_ASIDE)
    return None


def _encoder_of(found: Run, job: Job, lenders: Sequence[Path]) -> Run:
    """The pre-training that a fine-tuning began with, whose settings are there at least."""
    model = Path(found.config()["model"])
    for folder in (found.folder / ENCODER, model, *(lender / job.folder for lender in lenders)):
        if (folder / "config.json").is_file():
            return Run.open(folder)
    raise ValueError(
        f"How the encoder of {found.folder} was pre-trained cannot be told, as {model} is gone; "
        "leave it out of trained=, or put the config.json of the encoder back there."
    )


def scores(runs: Sequence[Run]) -> list[float]:
    """The score of each fine-tuning by its task's metric, in per cent; none where it diverged."""
    return [100 * score for score in values_of(runs, "score")]


def shown(run: Run) -> dict[str, float]:
    """What a progress bar says of a fine-tuning."""
    return {} if diverged(run) else {"score": run.figures()["score"]}


def gains(first: Sequence[Run], second: Sequence[Run]) -> list[float]:
    """Differences of scores, seed by seed of those of which neither diverged."""
    return [100 * gain for gain in pairwise(first, second, "score")]


def diverged_figures(task: str, runs: Mapping[str, Sequence[Run]]) -> dict[str, list[float]]:
    """How many encoders diverged, of those starts with any."""
    return {
        f"{task}: trainings that diverged, {name}": [float(number)]
        for name, several in runs.items()
        if (number := sum(map(diverged, several)))
    }


def _settings(config: Tuning, start: Start, *, model: str) -> FinetuningConfig:
    return FinetuningConfig(
        task=start.task,
        train_examples=config.train_examples,
        dev_examples=config.dev_examples,
        test_examples=config.test_examples,
        model=model,
        fresh_weights=start.fresh,
        length=config.length,
        seeds=(start.job.seed,),
        folds=start.folds,
        epochs=config.epochs,
        batch_size=config.tuning_batch,
        fit=replace(
            FinetuningConfig.fit, learning_rate=config.tuning_rate, patience=config.patience
        ),
        keep="none",
    )
