"""What encoders are pre-trained to guess: models, batches and losses of each objective."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from headwise_papers.data.masking import (
    EncodedText,
    MaskedBatch,
    MaskedBatches,
    PackedBlocks,
    PairBatch,
    PairBatches,
    ReplacedBatch,
    ReplacedBatches,
    SegmentPairs,
)
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import MaskedLM, MaskedLMWithNextSentence, ReplacedToken
from headwise_papers.recipes.pretraining_settings import PretrainingConfig
from headwise_papers.recipes.pretraining_text import PretrainingText

__all__ = [
    "Batch",
    "Batches",
    "PretrainingModel",
    "TaskLoss",
    "check_parts",
    "fresh_model",
    "task_loss",
    "training_batches",
    "validate",
    "validation_batches",
]

PretrainingModel = MaskedLM | MaskedLMWithNextSentence | ReplacedToken
Batch = MaskedBatch | PairBatch | ReplacedBatch
Batches = MaskedBatches | PairBatches | ReplacedBatches
VALIDATION_SEED = 12345  # of places hidden in the validation part, which is the same for all runs


class TaskLoss(NamedTuple):
    """What a batch costs, in nats."""

    main: Tensor  # a hidden piece; or a piece that may have been replaced
    beside: Tensor | None  # of next-sentence prediction


def fresh_model(settings: PretrainingConfig, shape: EncoderConfig) -> PretrainingModel:
    """A model with its first weights."""
    encoder = Encoder(shape)
    if settings.objective == "electra":
        return ReplacedToken(encoder)
    return MaskedLMWithNextSentence(encoder) if settings.next_sentence else MaskedLM(encoder)


def check_parts(settings: PretrainingConfig, text: PretrainingText) -> None:
    """Refuse a text of which a part does not fill one block."""
    training_batches(settings, text)
    validation_batches(settings, text)


def training_batches(settings: PretrainingConfig, text: PretrainingText) -> Batches:
    """The numbered batches to train on."""
    part = _Part("part to train on", text.train)
    return _batches(settings, text, part, seed=settings.fit.seed, shuffled=True)


def validation_batches(settings: PretrainingConfig, text: PretrainingText) -> Batches:
    """All of the validation part, once, with the same hidden places whatever the seed."""
    part = _Part("part held out", text.valid)
    return _batches(settings, text, part, seed=VALIDATION_SEED, shuffled=False)


class _Part(NamedTuple):
    name: str  # for messages
    text: EncodedText


def _batches(
    settings: PretrainingConfig,
    text: PretrainingText,
    part: _Part,
    *,
    seed: int,
    shuffled: bool,
) -> Batches:
    size, share, pieces = settings.batch_size, settings.masked, text.pieces
    if settings.next_sentence:
        pairs = SegmentPairs(part.text, pieces, settings.model.max_length, part.name)
        return PairBatches(pairs, size, seed=seed, share=share, shuffled=shuffled)
    blocks = PackedBlocks(part.text, pieces, settings.model.max_length, part.name)
    if settings.objective == "electra":
        counts = text.train.counts(len(pieces))
        return ReplacedBatches(
            blocks, size, seed=seed, share=share, shuffled=shuffled, counts=counts
        )
    return MaskedBatches(blocks, size, seed=seed, share=share, shuffled=shuffled)


def task_loss(model: nn.Module, batch: Batch) -> TaskLoss:
    """The loss of a batch: cross-entropy of hidden pieces, or logistic loss of all pieces."""
    if isinstance(batch, ReplacedBatch):
        logits_BT = model(batch.ids).float()
        return TaskLoss(binary_cross_entropy_with_logits(logits_BT, batch.replaced.float()), None)
    if isinstance(batch, PairBatch):
        found = model(batch.ids, batch.places, token_types=batch.token_types)
        # class 0 says that the second follows
        beside = cross_entropy(found.follows.float(), 1 - batch.follows)
        return TaskLoss(cross_entropy(found.words.float(), batch.targets), beside)
    logits_NV = model(batch.ids, batch.places)
    return TaskLoss(cross_entropy(logits_NV.float(), batch.targets), None)


@torch.no_grad()
def validate(
    model: nn.Module, batches: Iterable[Batch], *, bfloat16: bool = False
) -> dict[str, float]:
    """Losses over some batches; each block has as many places as any other, so blocks count alike.

    Args:
        model: in evaluation mode.
        batches: with pairs or without.
        bfloat16: compute as a training in that precision does.

    Returns:
        `validation_loss`, of what is hidden or replaced alone, and with pairs
        `validation_next_sentence_loss`.
    """
    device = next(model.parameters()).device
    totals, blocks = torch.zeros(2, dtype=torch.float64), 0
    pairs = False
    for batch in batches:
        there = type(batch)(*(tensor.to(device) for tensor in batch))
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            found = task_loss(model, there)
        pairs = found.beside is not None
        both = torch.stack([found.main, found.main if found.beside is None else found.beside])
        totals += both.double().cpu() * len(batch.ids)
        blocks += len(batch.ids)
    main, beside = (totals / blocks).tolist()
    more = {"validation_next_sentence_loss": beside} if pairs else {}
    return {"validation_loss": main, **more}
