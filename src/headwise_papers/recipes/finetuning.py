"""Fine-tuning: train an encoder to classify texts or pairs, or to tag words, and score it.

    headwise train classifier --task rte --model runs/mlm
    headwise train classifier --task masakhaner-yor --model runs/mlm --folds 10

Everything is written to a run folder, with a folder in it for each training: one per seed, or one
per seed and fold. An interrupted training resumes.
"""

import gc
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.json_files import check_shape, parse_json
from headwise.recording import Run
from headwise.text import Epochs
from headwise.training import BEST, CHECKPOINT, FitConfig, Summed, fit
from headwise_papers.data.tasks import TextTask
from headwise_papers.measures import classification
from headwise_papers.measures.classification import PairedTest, Part, confusion, paired_test
from headwise_papers.measures.spans import span_counts, span_f1
from headwise_papers.recipes.classifier import (
    IGNORED,
    Batch,
    Classifier,
    Row,
    batches,
    class_scores,
)
from headwise_papers.recipes.finetuning_data import (
    FinetuningConfig,
    Split,
    Start,
    Task,
    class_name,
    examples_of,
    labels_of,
    read_task,
    reads_of,
    splits_of,
    start_of,
)
from headwise_papers.recipes.training_run import (
    MINUTES,
    Clock,
    checksum_of,
    complete_report,
    process_count,
    shared_run,
    training_bar,
    training_figures,
)

PREDICTIONS = "predictions.jsonl"
PREDICTION = {"part": str, "example": int, "gold": (str, [str]), "predicted": (str, [str])}
Measure = Callable[[Tensor], Tensor]
MEASURES: dict[str, Measure] = {
    "accuracy": classification.accuracy,
    "f1": classification.f1,
    "macro_f1": classification.macro_f1,
    "matthews": classification.matthews,
    "span_f1": span_f1,
}


class Prediction(NamedTuple):
    """Prediction of a training for one example: a class, or a tag for each word."""

    part: str  # the training
    example: int
    gold: str | list[str]
    predicted: str | list[str]


def finetune(config: FinetuningConfig, folder: Path) -> Run:
    """Train once per seed, or once per seed and fold, and score; return the finished run.

    It holds `figures.json` (mean scores, and those of each training), `predictions.jsonl` (the
    predictions of each training for its test part; see `compare`), and a folder for each training
    with its curve and, for the first, its weights (see `load_classifier`). Weights are those that
    were best on the dev part; the test part decides nothing.

    Args:
        config: the settings.
        folder: of the run; an unfinished one is resumed, if the examples have not changed.
    """
    if process_count() > 1:
        raise ValueError("Fine-tuning runs in one process; start it without accelerate launch.")
    if (folder / "figures.json").is_file():  # shown without its model and its data
        with shared_run(folder, config, "finetuning") as finished:
            complete_report(finished)
            return finished
    task = read_task(config)
    checksum = checksum_of(task.classes, task.train, task.dev, task.test)
    splits = splits_of(task, seeds=config.seeds, folds=config.folds)
    start = start_of(config, task)
    with shared_run(folder, config, "finetuning", data=checksum) as run:
        rows = start.pieces.read(examples_of(task))
        for number, split in enumerate(splits):
            keep = config.keep == "all" or (config.keep == "first" and not number)
            train_part(config, run, task, start, rows, split, keep=keep)
        _finish(run, task, rows, splits)
        complete_report(run)
    return run


def load_classifier(run: Run, part: str = "") -> Classifier:
    """Return a classifier of a finished run, in evaluation mode.

    Args:
        run: of `finetune`.
        part: the training, e.g. "seed-1"; "" is the first one that is kept.
    """
    kept = [path.parent.name for path in sorted(run.folder.glob("*/classifier.json"))]
    if (part or "") not in ("", *kept) or not kept:
        raise ValueError(
            f"{run.folder} keeps the weights of {', '.join(kept) or 'no training'}, not those of "
            f"{part or 'any'}; let it finish, or train with keep='all'."
        )
    return Classifier.load(Run.open(run.folder / (part or kept[0])))


def _finish(run: Run, task: Task, rows: Sequence[Row], splits: Sequence[Split]) -> None:
    """Write the predictions and the results of all trainings."""
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
    """Score the prediction of the commonest class of the training part."""
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
    """Train into a run folder inside the run, unless that one is finished.

    Args:
        config: the settings.
        run: the run of all trainings.
        task: the examples.
        start: makes the model.
        rows: the tokenized examples.
        split: the examples to train on, to stop by and to test on.
        keep: whether to keep the weights.
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
    """Train in place, and load the weights that were best on the dev part."""

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return _metrics(task, _predictions(classifier, task, rows, split.dev, split.name))

    with training_bar(settings.steps, label=split.name) as show:
        fit(
            classifier.model,
            _loss,
            train,
            run=part,
            config=settings,
            tokens=lambda batch: int(batch["lengths"].sum()),
            progress=show,
            evaluate=Clock(part).timed(evaluate),
        )
    if settings.graphs:
        gc.collect()  # a recorded step is a cycle, and holds memory that the next training needs
    classifier.model.load_state_dict(part.load_tensors(BEST))
    classifier.model.eval()


def _loss(model: nn.Module, batch: Batch) -> Summed:
    """Compute the cross-entropy; no tensor is read in Python, so that a step can be recorded."""
    logits, labels = class_scores(model, batch), batch["labels"]
    flat = logits.flatten(0, -2).float(), labels.flatten()
    total = cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")
    # a batch may have no word with a label, where long sentences were truncated
    return Summed(total, (labels != IGNORED).sum().clamp(min=1))


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


def metrics_of(
    gold: Sequence[str | list[str]],
    predicted: Sequence[str | list[str]],
    *,
    classes: Sequence[str],
    metric: str,
) -> dict[str, float]:
    """Compute the metrics of predictions, the deciding one first.

    Args:
        gold: classes, or tags for each word.
        predicted: classes, or tags for each word.
        classes: all classes; of F1 the last is the positive one.
        metric: the deciding one.
    """
    table = _counts(gold, predicted, classes).sum(0)
    names = ["span_f1"] if metric == "span_f1" else ["accuracy", "matthews", "macro_f1"]
    if len(classes) == 2 and metric != "span_f1":
        names.append("f1")
    ordered = [metric, *(name for name in names if name != metric)]
    return {name: float(MEASURES[name](table)) for name in ordered}


def write_predictions(run: Run, predictions: Sequence[Prediction]) -> None:
    """Write predictions into a run, one JSON object per line."""
    lines = (json.dumps(one._asdict(), ensure_ascii=False) + "\n" for one in predictions)
    run.write_text(PREDICTIONS, "".join(lines))


def read_predictions(run: Run) -> list[Prediction]:
    """Return the predictions of a run of `finetune`, training by training."""
    if not run.has(PREDICTIONS):
        raise ValueError(f"{run.folder} keeps no predictions; let the run finish first.")
    text, name = run.read_text(PREDICTIONS), str(run.path(PREDICTIONS))
    # "\n" only: words may hold other characters that count as line breaks
    rows = [parse_json(line, PREDICTION, name=name) for line in text.rstrip("\n").split("\n")]
    return [Prediction(*(row[field] for field in Prediction._fields)) for row in rows]


def compare(a: Run, b: Run, *, samples: int = 2000, seed: int = 0) -> PairedTest:
    """Test whether the models of one finished run of `finetune` are better than those of another.

    Both have the same task, seeds and folds. With folds Student's test is corrected for the overlap
    of training sets; see `headwise_papers.measures.classification.paired_test`.

    Args:
        a: the run whose lead is tested.
        b: the other run.
        samples: of the bootstrap.
        seed: of the bootstrap.
    """
    figures = [run.figures() for run in (a, b)]
    for name in ("task", "metric", "classes"):
        if figures[0][name] != figures[1][name]:
            raise ValueError(
                f"Only runs with the same {name} can be compared, got {figures[0][name]} and "
                f"{figures[1][name]}."
            )
    predictions = [read_predictions(run) for run in (a, b)]
    asked = [[row[:3] for row in rows] for rows in predictions]
    if asked[0] != asked[1]:
        raise ValueError("Only runs with the same seeds, folds and examples can be compared.")
    one, other = (_parts(rows, figures[0]["classes"]) for rows in predictions)
    sizes: Any = figures[0]["examples"]
    overlap = sizes["test"] / sizes["train"] if "fold" in next(iter(one)) else 0.0
    measure = MEASURES[figures[0]["metric"]]
    return paired_test(
        list(one.values()),
        list(other.values()),
        measure,
        overlap=overlap,
        samples=samples,
        seed=seed,
    )


def _parts(predictions: Sequence[Prediction], classes: Sequence[str]) -> dict[str, Part]:
    by_part: dict[str, list[Prediction]] = {}
    for one in predictions:
        by_part.setdefault(one.part, []).append(one)
    return {
        name: Part(
            [one.example for one in rows],
            _counts([one.gold for one in rows], [one.predicted for one in rows], classes),
        )
        for name, rows in by_part.items()
    }


def _counts(
    gold: Sequence[str | list[str]], predicted: Sequence[str | list[str]], classes: Sequence[str]
) -> Tensor:
    """Return the counts that the metrics are computed from, one row per example."""
    if gold and isinstance(gold[0], list):
        return span_counts(gold, predicted)
    number = {name: place for place, name in enumerate(classes)}
    wanted, got = ([number[str(name)] for name in names] for names in (gold, predicted))
    return confusion(wanted, got, classes=len(classes))
