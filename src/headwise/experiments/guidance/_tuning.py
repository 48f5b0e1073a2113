"""Pre-trained encoders fine-tuned on tasks: runs that are found or made, and their scores.

A fine-tuning lies in a folder like `tuned/sst2/guided-12-seed-0`, named after its encoder. The seed
of the encoder is that of the fine-tuning too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.experiments import lending
from headwise.experiments.guidance._pretraining import TINY, Job, Pretraining, encoder_run, places
from headwise.journeys.finetuning import FinetuningConfig, finetune, read_task
from headwise.recording.run import Run

__all__ = ["TINY_TUNING", "Tuning", "check_tasks", "scores", "tuned_run"]

ASIDE = ("model", "keep")  # what a fine-tuning comes to does not depend on these


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


def check_tasks(config: Tuning, tasks: Sequence[str]) -> None:
    """Refuse tasks that are not there, before anything is trained."""
    if not tasks:
        raise ValueError("One task or more is needed.")
    for task in tasks:
        read_task(_settings(config, task, seed=0, folds=0, model="", fresh=False))


def tuned_run(
    config: Tuning, run: Run, task: str, job: Job, *, fresh: bool = False, folds: int = 0
) -> Run:
    """The finished run of an encoder fine-tuned on a task, found or made now.

    Args:
        config: the settings of the experiment.
        run: of the experiment.
        task: see `headwise.data.pair_tasks` and `headwise.data.tagging`.
        job: the encoder, which is pre-trained where nobody lends it.
        fresh: take its shape and tokenizer alone, and draw its weights anew.
        folds: of cross-validation; 0 keeps the published parts.
    """
    own = job._replace(arm="none") if fresh else job
    folder = f"tuned/{task}/{own.folder.replace('/', '-')}"
    for place in places(config, run):
        if (place / folder / "figures.json").is_file():
            found = Run.open(place / folder)
            wanted = _settings(
                config, task, seed=job.seed, folds=folds, model=found.config()["model"], fresh=fresh
            )
            return lending.checked(found, wanted, aside=ASIDE)
    model = str(encoder_run(config, run, job).folder)
    settings = _settings(config, task, seed=job.seed, folds=folds, model=model, fresh=fresh)
    return finetune(settings, run.folder / folder)


def scores(runs: Sequence[Run]) -> list[float]:
    """The score of each fine-tuning by its task's metric, in per cent."""
    return [100 * float(run.figures()["score"]) for run in runs]


def _settings(
    config: Tuning, task: str, *, seed: int, folds: int, model: str, fresh: bool
) -> FinetuningConfig:
    return FinetuningConfig(
        task=task,
        train_examples=config.train_examples,
        dev_examples=config.dev_examples,
        test_examples=config.test_examples,
        model=model,
        fresh_weights=fresh,
        length=config.length,
        seeds=(seed,),
        folds=folds,
        epochs=config.epochs,
        batch_size=config.tuning_batch,
        learning_rate=config.tuning_rate,
        patience=config.patience,
        keep="none",
    )
