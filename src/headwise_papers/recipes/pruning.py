"""Tasks of `headwise prune` for runs of the papers: translators, classifiers and encoders."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from headwise.analysis import bleu
from headwise.pruning import check_replaceable, record_of, seal
from headwise.recording import Run, recover, replacing_folder
from headwise.workflows.inspect import open_subject
from headwise.workflows.prune import (
    IGNORED,
    Batch,
    Data,
    Labelled,
    Pairs,
    Predicted,
    PruneConfig,
    Task,
    as_hugging_face,
    hugging_face_task,
    read_labelled,
    read_pairs,
    task_of,
)
from headwise_papers.data.batches import parallel_batch
from headwise_papers.data.vocabulary import PAD
from headwise_papers.models import Transformer
from headwise_papers.recipes.classifier import (
    Classifier,
    TruncatingTokenizer,
    batch_of,
    class_scores,
    read_example,
)
from headwise_papers.recipes.encoder_subject import classifier_subject
from headwise_papers.recipes.own_subjects import TranslatorSubject
from headwise_papers.recipes.translation import encoded_pairs, width_multiple, with_padding
from headwise_papers.recipes.translator import Translator

SMOOTHING = 0.1  # of labels, as in the training of translators
TOGETHER = 256  # sentences translated at the same time


def encoder_task(folder: Path, config: PruneConfig) -> Task:
    """Return the task of a run of `headwise train mlm` or `electra`, as a Hugging Face model."""
    return hugging_face_task(config, open_subject(folder, device="cpu"))


def classifier_task(folder: Path, config: PruneConfig) -> Task:
    """Return the task of a run of `headwise train classifier`: texts are read as in its training.

    The model is pruned and saved as one of Hugging Face.
    """
    classifier = Classifier.load(Run.open(folder))
    subject = as_hugging_face(config, classifier_subject(classifier))
    known = {name: number for number, name in enumerate(classifier.classes)}
    train, dev = (
        read_labelled(files, known, reads=classifier.reads) for files in (config.data, config.dev)
    )
    dev = dev.first(config.dev_lines)
    pieces = replace(classifier.pieces, length=min(config.length, classifier.pieces.length))
    parts = _labelled(pieces, train), _labelled(pieces, dev)
    return replace(task_of("classification", subject, *parts, dev.joined), predict=_predict_classes)


def _predict_classes(model: nn.Module, batch: Batch) -> Predicted:
    return Predicted(class_scores(model, batch), batch["labels"])


def _labelled(pieces: TruncatingTokenizer, part: Labelled) -> Data:
    texts = zip(part.texts, part.seconds, strict=True)
    rows = pieces.read([read_example(text, second) for text, second in texts])

    def collate(chosen: list[int]) -> Batch:
        labels = [[part.labels[at]] for at in chosen]
        return batch_of(pieces, [rows[at] for at in chosen], labels)

    return Data([len(row.ids) for row in rows], collate)


def translation_task(folder: Path, config: PruneConfig) -> Task:
    """Return the task of a translator's run; pruned, it is still a run that `translate` opens."""
    return translator_task(config, Translator.load(Run.open(folder)))


def translator_task(config: PruneConfig, translator: Translator) -> Task:
    """Return the task of a translator on the files of the settings."""
    if config.task not in ("auto", "translation"):
        raise ValueError(f"{config.model} is pruned for translation, not for {config.task!r}.")
    train, dev = read_pairs(config.data), read_pairs(config.dev).first(config.dev_lines)

    def score(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Transformer)
        scored = Translator(model, translator.source, translator.target)
        found = scored.translate(dev.source, beams=config.beams, batch=TOGETHER)
        return {"bleu": bleu(found, dev.target).value}

    return Task(
        kind="translation",
        model=translator.model,
        train=_pairs(translator, train, tokens=config.tokens),
        dev=_pairs(translator, dev, tokens=config.tokens),
        predict=_predict_words,
        quality="bleu",
        score=score,
        save=partial(_save_run, translator, config),
        load=lambda folder: Translator.load(Run.open(folder)).model,
        subject=TranslatorSubject.of(translator),
        texts=dev.source,
        smoothing=SMOOTHING,
        replayable=True,
        as_run=True,
    )


def _save_run(translator: Translator, config: PruneConfig, folder: Path) -> None:
    recover(folder)
    check_replaceable(folder, as_run=True)
    record = record_of(translator.model)
    assert record is not None, "it was pruned"
    with replacing_folder(folder) as new, Run.create(new, config, "translation") as run:
        translator.save(run)
        seal(new, translator.model, record)


def _predict_words(model: nn.Module, batch: Batch) -> Predicted:
    logits = model(batch["source"], batch["source_lengths"], batch["target_in"])
    return Predicted(logits, batch["labels"])


def _pairs(translator: Translator, lines: Pairs, *, tokens: int) -> Data:
    """Return pairs as ids; those longer than the model's maximum length are left out."""
    pairs = encoded_pairs(translator, lines)
    multiple, most = width_multiple(), translator.model.config.max_length

    def collate(chosen: Sequence[int]) -> Batch:
        sources, targets = zip(*(pairs[place] for place in chosen), strict=True)
        batch = parallel_batch(sources, targets, multiple=multiple, most=most)
        return {
            "source": batch.source,
            "source_lengths": batch.source_lengths,
            "target_in": batch.target_in,
            "labels": torch.where(batch.target_out == PAD, IGNORED, batch.target_out),
        }

    lengths = [max(map(len, pair)) + 1 for pair in pairs]
    tokens = with_padding(tokens, lengths, multiple=multiple)
    return Data(lengths, collate, tokens=tokens, multiple=multiple)
