"""One training: from a start to predictions on the part that it is judged by."""

import gc
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headwise.recording import Run
from headwise.text.batching import Epochs
from headwise.training import (
    BEST,
    CHECKPOINT,
    MINUTES,
    Clock,
    FitConfig,
    Report,
    Summed,
    fit,
    progress_bar,
    training_figures,
)
from headwise_papers.recipes.tuning.classifier import Classifier, class_scores
from headwise_papers.recipes.tuning.config import FinetuningConfig
from headwise_papers.recipes.tuning.judging import Prediction, metrics_of, write_predictions
from headwise_papers.recipes.tuning.parts import Split
from headwise_papers.recipes.tuning.reading import IGNORED, Batch, Row, batches
from headwise_papers.recipes.tuning.starting import Start, Task
from headwise_papers.recipes.tuning.tasks import class_name, labels_of, reads_of

__all__ = ["train_part"]


def train_part(
    config: FinetuningConfig,
    run: Run,
    task: Task,
    start: Start,
    rows: Sequence[Row],
    split: Split,
    *,
    keep: bool,
) -> None:
    """Train into a run of its own inside the run, unless that is finished.

    Args:
        config: the settings.
        run: the run of all trainings.
        task: the examples.
        start: the model to begin with.
        rows: the examples as the model reads them.
        split: which of them are for what.
        keep: whether the weights stay.
    """
    labels = labels_of(task)
    train = batches(
        start.pieces,
        [rows[at] for at in split.train],
        [labels[at] for at in split.train],
        size=config.batch_size,
        seed=split.seed,
    )
    settings = config.fit_config(len(train), split.seed, replayable=start.replayable)
    with Run.create(run.folder / split.name, settings, "classifier") as part:
        if not part.has("figures.json"):
            torch.manual_seed(split.seed)
            classifier = Classifier(start.build(), start.pieces, task.classes, reads_of(task))
            _fit(part, classifier, task, train, rows, split, settings)
            tested = _predictions(classifier, task, rows, split.test, split.name)
            write_predictions(part, tested)
            if keep:
                classifier.save(part)
            part.save_figures(_figures(part, classifier, task, tested))
        for name in (CHECKPOINT, BEST):
            part.path(name).unlink(missing_ok=True)


def _fit(
    part: Run,
    classifier: Classifier,
    task: Task,
    train: Epochs[Batch],
    rows: Sequence[Row],
    split: Split,
    settings: FitConfig,
) -> None:
    """Train in place, and end with the weights that were best on the dev part."""
    clock = Clock(part)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        found = _predictions(classifier, task, rows, split.dev, split.name)
        return _metrics(task, found)

    with progress_bar(settings.steps, label=split.name) as show:
        fit(
            classifier.model,
            _loss,
            train,
            run=part,
            config=settings,
            tokens=lambda batch: int(batch["lengths"].sum()),
            progress=_without_minutes(show),
            evaluate=clock.timed(evaluate),
        )
    if settings.graphs:
        gc.collect()  # a recorded step holds itself, and memory that the next training needs
    classifier.model.load_state_dict(part.load_tensors(BEST))
    classifier.model.eval()


def _loss(model: nn.Module, batch: Batch) -> Summed:
    """Reads no tensor in Python, so that a step can be recorded."""
    logits, labels = class_scores(model, batch), batch["labels"]
    flat = logits.flatten(0, -2).float(), labels.flatten()
    total = cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")
    # a batch may have no word that is read, where long ones were cut
    return Summed(total, (labels != IGNORED).sum().clamp(min=1))


def _without_minutes(show: Report) -> Report:
    """The bar counts the time itself."""
    return lambda step, metrics: show(
        step, {name: value for name, value in metrics.items() if name != MINUTES}
    )


def _predictions(
    classifier: Classifier, task: Task, rows: Sequence[Row], chosen: Sequence[int], part: str
) -> list[Prediction]:
    labels = labels_of(task)
    found = classifier.predict([rows[at] for at in chosen])
    return [
        Prediction(part, at, class_name(task, labels[at]), class_name(task, numbers))
        for at, numbers in zip(chosen, found, strict=True)
    ]


def _metrics(task: Task, predictions: Sequence[Prediction]) -> dict[str, float]:
    gold, predicted = [one.gold for one in predictions], [one.predicted for one in predictions]
    return metrics_of(gold, predicted, classes=task.classes, metric=task.metric)


def _figures(
    part: Run, classifier: Classifier, task: Task, tested: Sequence[Prediction]
) -> dict[str, float | int]:
    best = part.note(BEST)
    return {
        **_metrics(task, tested),
        **{f"dev_{name}": float(best[name]) for name in _metrics(task, tested)},
        "best_step": int(best["step"]),
        **training_figures(part, classifier.model),
    }
