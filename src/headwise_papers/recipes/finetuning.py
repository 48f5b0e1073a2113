"""Fine-tune an encoder to classify texts or pairs, or to tag words, and judge it.

    headwise train classifier --task rte --model runs/mlm
    headwise train classifier --task masakhaner-yor --model runs/mlm --folds 10

Everything is written to a Run folder, with a folder in it for each training: one a seed, or one a
seed and fold. Started again after an interruption it goes on where it stopped.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from headwise.json_files import check_shape
from headwise.recording import Run
from headwise.recording.files import writing_alone
from headwise.workflows.training_run import MINUTES, complete_report, process_count
from headwise_papers.data.tasks import TextTask
from headwise_papers.recipes.same_data import check_data, checksum_of, keep_checksum
from headwise_papers.recipes.tuning.classifier import Classifier
from headwise_papers.recipes.tuning.config import FinetuningConfig
from headwise_papers.recipes.tuning.judging import (
    Prediction,
    compare,
    metrics_of,
    read_predictions,
    write_predictions,
)
from headwise_papers.recipes.tuning.parts import Split, splits_of
from headwise_papers.recipes.tuning.reading import Row
from headwise_papers.recipes.tuning.starting import NO_MODEL, Start, Task, from_folder, from_nothing
from headwise_papers.recipes.tuning.tasks import class_name, examples_of, labels_of, read_task
from headwise_papers.recipes.tuning.training import train_part

__all__ = [
    "Classifier",
    "FinetuningConfig",
    "Prediction",
    "compare",
    "finetune",
    "load_classifier",
    "read_predictions",
    "read_task",
]


def finetune(config: FinetuningConfig, folder: Path) -> Run:
    """Train once a seed, or once a seed and fold, and judge; returns the finished run.

    It holds `figures.json` (mean scores, and those of each training), `predictions.jsonl` (what
    each training said of each example it was judged by; see `compare`), and a folder for each
    training with its curve and, for the first, its weights (see `load_classifier`). Weights are
    those that were best on the dev part; the test part decides nothing.

    Args:
        config: the settings.
        folder: of the run; one that is there is continued, if the examples are as they were.
    """
    if process_count() > 1:
        raise ValueError("Fine-tuning runs in one process; start it without accelerate launch.")
    if (folder / "figures.json").is_file():  # it is shown without its model and its data
        with writing_alone(folder), Run.create(folder, config, "finetuning") as finished:
            complete_report(finished)
            return finished
    task = read_task(config)
    checksum = checksum_of(task.classes, task.train, task.dev, task.test)
    check_data(folder, config, checksum)
    splits = splits_of(task, seeds=config.seeds, folds=config.folds)
    start = _start(config, task)
    with writing_alone(folder), Run.create(folder, config, "finetuning") as run:
        if not any((folder / split.name).exists() for split in splits):
            keep_checksum(run, checksum)
        rows = start.pieces.read(examples_of(task))
        for number, split in enumerate(splits):
            keep = config.keep == "all" or (config.keep == "first" and not number)
            train_part(config, run, task, start, rows, split, keep=keep)
        _finish(run, task, rows, splits)
        complete_report(run)
    return run


def load_classifier(run: Run, part: str = "") -> Classifier:
    """A classifier of a finished run, in evaluation mode.

    Args:
        run: of `finetune`.
        part: which training, e.g. "seed-1"; the first that is kept unless given.
    """
    kept = [path.parent.name for path in sorted(run.folder.glob("*/classifier.json"))]
    if (part or "") not in ("", *kept) or not kept:
        raise ValueError(
            f"{run.folder} keeps the weights of {', '.join(kept) or 'no training'}, not those of "
            f"{part or 'any'}; let it finish, or train with keep='all'."
        )
    return Classifier.load(Run.open(run.folder / (part or kept[0])))


def _start(config: FinetuningConfig, task: Task) -> Start:
    if config.model != NO_MODEL:
        folder, fresh = Path(config.model), config.fresh_weights
        return from_folder(folder, task, length=config.length, fresh=fresh)
    return from_nothing(task, shape=config.shape, vocab=config.vocab_size, length=config.length)


def _finish(run: Run, task: Task, rows: Sequence[Row], splits: Sequence[Split]) -> None:
    """Put the trainings together."""
    parts = {split.name: Run.open(run.folder / split.name) for split in splits}
    write_predictions(run, [row for part in parts.values() for row in read_predictions(part)])
    own = {name: part.figures() for name, part in parts.items()}
    first = next(iter(own.values()))
    shape = {name: float for name, value in first.items() if isinstance(value, float)}
    counted = {"updates": int, MINUTES: float, "parameters": int, task.metric: float}
    for name, figures in own.items():
        check_shape(figures, shape | counted, name=str(parts[name].path("figures.json")))
    scores = {name: figures[task.metric] for name, figures in own.items()}
    totals = {name: sum(figures[name] for figures in own.values()) for name in ("updates", MINUTES)}
    means = {
        name: fmean(figures[name] for figures in own.values())
        for name, value in first.items()
        if isinstance(value, float) and name != MINUTES
    }
    sizes = {name: len(getattr(splits[0], name)) for name in ("train", "dev", "test")}
    run.save_figures(
        {
            "task": task.name,
            "metric": task.metric,
            "score": fmean(scores.values()),
            "spread": stdev(scores.values()) if len(scores) > 1 else None,
            **means,
            **_commonest(task, splits),
            **totals,
            "parameters": first["parameters"],
            "scores": scores,
            "classes": list(task.classes),
            "examples": sizes,
            "texts_cut": sum(row.cut for row in rows),
        }
    )


def _commonest(task: Task, splits: Sequence[Split]) -> dict[str, Any]:
    """What always saying the commonest class of the training part would score."""
    if not isinstance(task, TextTask):
        return {}
    labels, scores = labels_of(task), list[float]()
    for split in splits:
        best = Counter(labels[at][0] for at in split.train).most_common(1)[0][0]
        gold = [class_name(task, labels[at]) for at in split.test]
        said = [class_name(task, [best])] * len(gold)
        found = metrics_of(gold, said, classes=task.classes, metric=task.metric)
        scores.append(found[task.metric])
    return {"commonest_class": fmean(scores)}
