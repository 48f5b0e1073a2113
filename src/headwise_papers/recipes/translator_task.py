"""Our own translators: pruned, they are still runs that `translate` and `inspect` open."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from headwise.analysis.scores import bleu
from headwise.pruning.folders import recover, replacing_folder
from headwise.pruning.record import record_of
from headwise.pruning.saving import seal
from headwise.recording import Run
from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.places import check_replaceable
from headwise.workflows.prune.task import IGNORED, Batch, Data, Predicted, Task
from headwise.workflows.prune.texts import first, read_pairs
from headwise_papers.data.parallel import parallel_batch
from headwise_papers.data.translation import Lines
from headwise_papers.data.vocabulary import PAD
from headwise_papers.models import Transformer
from headwise_papers.recipes.own_subjects import TranslatorSubject
from headwise_papers.recipes.translation_batches import width_multiple, with_padding
from headwise_papers.recipes.translator import Translator

__all__ = ["translator_task"]

SMOOTHING = 0.1  # of labels, as in their training
TOGETHER = 256  # sentences translated at the same time


def translator_task(config: PruneConfig, translator: Translator) -> Task:
    """The task of a translator on the files of the settings."""
    if config.task not in ("auto", "translation"):
        raise ValueError(f"{config.model} translates, so task={config.task!r} is none of its own.")
    train, dev = read_pairs(config.data), first(read_pairs(config.dev), config.dev_lines)

    def score(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Transformer)
        scored = Translator(model, translator.source, translator.target)
        found = scored.translate(dev.source, beams=config.beams, batch=TOGETHER)
        return {"bleu": bleu(found, dev.target).value}

    def write(folder: Path) -> None:
        recover(folder)
        check_replaceable(folder, as_run=True)
        record = record_of(translator.model)
        assert record is not None, "it was pruned"
        with replacing_folder(folder) as new, Run.create(new, config, "translation") as run:
            translator.save(run)
            seal(new, translator.model, record)

    return Task(
        kind="translation",
        model=translator.model,
        train=_data(translator, train, tokens=config.tokens),
        dev=_data(translator, dev, tokens=config.tokens),
        predict=_predict,
        quality="bleu",
        score=score,
        save=write,
        load=lambda folder: Translator.load(Run.open(folder)).model,
        subject=TranslatorSubject.of(translator),
        texts=dev.source,
        smoothing=SMOOTHING,
        replayable=True,
    )


def _predict(model: nn.Module, batch: Batch) -> Predicted:
    logits = model(batch["source"], batch["source_lengths"], batch["target_in"])
    return Predicted(logits, batch["labels"])


def _data(translator: Translator, lines: Lines, *, tokens: int) -> Data:
    """Pairs as ids; those too long for the model are left out."""
    both = zip(
        map(translator.source.encode, lines.source),
        map(translator.target.encode, lines.target),
        strict=True,
    )
    pairs = [pair for pair in both if max(map(len, pair)) <= translator.room]
    multiple, most = width_multiple(), translator.model.config.max_length
    if not pairs:
        raise ValueError(f"No sentence pair fits the {translator.room} pieces of the model.")

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
