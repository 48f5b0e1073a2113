"""How predictions are judged, kept and compared."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from headwise.json_files import parse_json
from headwise.recording import Run
from headwise_papers.measures import classification
from headwise_papers.measures.classification import PairedTest, Part, confusion, paired_test
from headwise_papers.measures.spans import span_counts, span_f1

__all__ = ["Prediction", "compare", "metrics_of", "read_predictions", "write_predictions"]

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
    """What a training said of one example: a class, or a tag for each word."""

    part: str  # the training
    example: int
    gold: str | list[str]
    predicted: str | list[str]


def metrics_of(
    gold: Sequence[str | list[str]],
    predicted: Sequence[str | list[str]],
    *,
    classes: Sequence[str],
    metric: str,
) -> dict[str, float]:
    """The figures of some predictions, the one that decides first.

    Args:
        gold: classes, or tags for each word.
        predicted: the same.
        classes: all there are; of F1 the last is the positive one.
        metric: which decides.
    """
    table = _counts(gold, predicted, classes).sum(0)
    names = ["span_f1"] if metric == "span_f1" else ["accuracy", "matthews", "macro_f1"]
    if len(classes) == 2 and metric != "span_f1":
        names.append("f1")
    ordered = [metric, *(name for name in names if name != metric)]
    return {name: float(MEASURES[name](table)) for name in ordered}


def write_predictions(run: Run, predictions: Sequence[Prediction]) -> None:
    """Keep predictions in a run, a JSON object a line."""
    lines = (json.dumps(one._asdict(), ensure_ascii=False) + "\n" for one in predictions)
    run.write_text(PREDICTIONS, "".join(lines))


def read_predictions(run: Run) -> list[Prediction]:
    """The predictions of a run of `finetune`, training by training."""
    if not run.has(PREDICTIONS):
        raise ValueError(f"{run.folder} keeps no predictions; let the run finish first.")
    text, name = run.read_text(PREDICTIONS), str(run.path(PREDICTIONS))
    # "\n" only: words may hold other characters that count as line breaks
    rows = [parse_json(line, PREDICTION, name=name) for line in text.rstrip("\n").split("\n")]
    return [Prediction(*(row[field] for field in Prediction._fields)) for row in rows]


def compare(a: Run, b: Run, *, samples: int = 2000, seed: int = 0) -> PairedTest:
    """Whether the models of one finished run of `finetune` are better than those of another.

    Both had the same task, seeds and folds. With folds Student's test is corrected for what their
    training sets share, see `headwise_papers.measures.classification.paired_test`.

    Args:
        a: the one whose lead is told.
        b: the other.
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
    """What the measures are functions of, a row an example."""
    if gold and isinstance(gold[0], list):
        return span_counts(gold, predicted)
    number = {name: place for place, name in enumerate(classes)}
    wanted, got = ([number[str(name)] for name in names] for names in (gold, predicted))
    return confusion(wanted, got, classes=len(classes))
