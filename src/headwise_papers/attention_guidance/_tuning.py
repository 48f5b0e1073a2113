"""Pre-trained encoders, fine-tuned on tasks: settings, runs by seed, and differences of scores.

The seed of an encoder is that of its fine-tuning too. An encoder that diverged is not fine-tuned:
it is counted, and left out of scores and, with its partner, of differences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import TINY, jobs, pretrain_encoder
from headwise_papers.core import Job, Result, find_or_train
from headwise_papers.recipes.finetuning import FinetuningConfig, finetune, read_task
from headwise_papers.recipes.pretraining import PretrainingConfig

TUNING = FinetuningConfig(
    epochs=5,  # at most
    batch_size=32,
    length=128,
    fit=replace(FinetuningConfig.fit, learning_rate=5e-5, patience=2),
    keep="none",
)
TINY_TUNING = replace(
    TUNING,
    epochs=4,
    batch_size=8,
    length=24,
    train_examples=80,
    dev_examples=8,
    test_examples=16,
    fit=replace(TUNING.fit, learning_rate=3e-3),
)
TINY_ENCODER = (*TINY, "fit.steps=20", "fit.evaluate_every=20", "fit.checkpoint_every=20")
Runs = Mapping[str, Sequence[Run]]  # by start, one per seed


@dataclass(frozen=True)
class Start:
    """Settings of an encoder and of its fine-tuning; `tuning.model` is filled in."""

    encoder: PretrainingConfig
    tuning: FinetuningConfig

    @staticmethod
    def on(
        task: str,
        encoder: PretrainingConfig,
        tuning: FinetuningConfig,
        *,
        fresh: bool = False,
        folds: int = 0,
    ) -> "Start":
        """Return the start of an encoder on a task.

        Args:
            task: see `headwise_papers.data.tasks` and `headwise_papers.data.tasks`.
            encoder: its settings; its seed is that of the fine-tuning.
            tuning: settings of every fine-tuning.
            fresh: take the encoder's shape and tokenizer alone, and draw its weights anew.
            folds: of cross-validation; 0 keeps the published parts.
        """
        seeds = (encoder.fit.seed,)
        own = replace(tuning, task=task, seeds=seeds, fresh_weights=fresh, folds=folds)
        return Start(encoder, own)


def tuned(start: Start) -> Run:
    """Return a fine-tuned encoder, found in the cache or made now."""
    return find_or_train(finetune_encoder, start)


def finetune_encoder(start: Start, folder: Path) -> Run:
    """Fine-tune an encoder, found or pre-trained; `tuning` below the folder holds predictions."""
    encoder = find_or_train(pretrain_encoder, start.encoder)
    with Run.create(folder, start) as run:
        if "diverged" in encoder.figures():
            run.save_figures({"diverged": encoder.figures()["diverged"]})
        else:
            own = replace(start.tuning, model=str(encoder.folder))
            run.save_figures(finetune(own, folder / "tuning").figures())
    return run


def tuning_jobs(starts: Iterable[Start]) -> Iterator[Job]:
    """Yield texts, encoders and fine-tunings."""
    listed = list(starts)
    yield from jobs(dict.fromkeys(start.encoder for start in listed))
    yield from (Job(finetune_encoder, start) for start in listed)


def check_tasks(tasks: Sequence[str], tuning: FinetuningConfig) -> None:
    """Raise for tasks that are not there, before anything is trained."""
    if not tasks:
        raise ValueError("One task or more is needed.")
    for task in tasks:
        read_task(replace(tuning, task=task))


def diverged(run: Run) -> bool:
    """Return whether the encoder diverged in pre-training."""
    return "diverged" in run.figures()


def values_of(runs: Iterable[Run], name: str) -> list[float]:
    """Return a metric of the fine-tunings whose encoders did not diverge."""
    return [float(run.figures()[name]) for run in runs if not diverged(run)]


def scores(task: str, runs: Runs) -> dict[str, Result]:
    """Return scores in per cent by start, and how many encoders diverged."""
    results: dict[str, Result] = {}
    for name, several in runs.items():
        if found := values_of(several, "score"):
            results[f"{task}: {name}"] = Result([100 * score for score in found])
        if number := sum(map(diverged, several)):
            results[f"{task}: trainings that diverged, {name}"] = Result([float(number)])
    return results


def gains(task: str, runs: Runs, pairs: Iterable[tuple[str, str]]) -> dict[str, Result]:
    """Return differences of scores, by the seeds of which neither diverged."""
    results: dict[str, Result] = {}
    for first, second in pairs:
        both = [
            [run.figures()["score"] for run in pair]
            for pair in zip(runs[first], runs[second], strict=True)
            if not any(map(diverged, pair))
        ]
        if both:
            found = Result([100 * (a - b) for a, b in both], "difference")
            results[f"{task}: {first} - {second}"] = found
    return results
