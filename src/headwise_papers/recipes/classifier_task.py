"""Runs of `headwise train classifier`: pruned as Hugging Face models, read as in their training."""

from dataclasses import replace

from torch import nn

from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.hugging_face_tasks import check_task, task_of
from headwise.workflows.prune.task import Batch, Data, Predicted, Task
from headwise.workflows.prune.texts import Labelled, first_labelled, read_labelled
from headwise_papers.recipes.tuning.classifier import Classifier, class_scores
from headwise_papers.recipes.tuning.reading import Pieces, batch_of, read_example

__all__ = ["classifier_task"]


def classifier_task(
    config: PruneConfig, classifier: Classifier, subject: HuggingFaceSubject
) -> Task:
    """The task of a classifier of texts or pairs on the files of the settings.

    Args:
        config: the settings.
        classifier: how it reads, and its classes.
        subject: the same model as one of Hugging Face, which is what is saved.
    """
    check_task(config, subject)
    known = {name: number for number, name in enumerate(classifier.classes)}
    train, dev = (
        read_labelled(files, known, reads=classifier.reads) for files in (config.data, config.dev)
    )
    dev = first_labelled(dev, config.dev_lines)
    room = min(config.length, classifier.pieces.length)
    pieces = replace(classifier.pieces, length=room)
    return replace(
        task_of("classification", subject, _data(pieces, train), _data(pieces, dev), dev.joined),
        predict=_predict,
    )


def _predict(model: nn.Module, batch: Batch) -> Predicted:
    return Predicted(class_scores(model, batch), batch["labels"])


def _data(pieces: Pieces, part: Labelled) -> Data:
    texts = zip(part.texts, part.seconds, strict=True)
    rows = pieces.read([read_example(text, second) for text, second in texts])

    def collate(chosen: list[int]) -> Batch:
        labels = [[part.labels[at]] for at in chosen]
        return batch_of(pieces, [rows[at] for at in chosen], labels)

    return Data([len(row.ids) for row in rows], collate)
