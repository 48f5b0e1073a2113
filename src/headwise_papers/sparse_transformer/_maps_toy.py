"""Translators of the toy language, whose gold alignments are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headwise.recording.run import Run
from headwise.training import FitConfig, fit, label_smoothed_loss
from headwise_papers.data.batches import ParallelBatch, ParallelData
from headwise_papers.data.toy import ToyLanguage, ToyPair
from headwise_papers.data.vocabulary import PAD, Vocabulary
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.recipes.codec import InWords
from headwise_papers.recipes.translator import Translator

__all__ = ["ToyTraining", "gold_links", "toy_batch", "toy_pairs", "toy_translator"]

TEST_SEED = 1_000_000  # of the sentences that are looked at


@dataclass(frozen=True)
class ToyTraining:
    """How one translator of the toy language is trained."""

    attention: str
    seed: int
    pairs: int
    steps: int
    width: int
    heads: int
    layers: int
    batch_size: int
    learning_rate: float
    warmup: int

    def shape(self, source_vocab: int, target_vocab: int) -> TransformerConfig:
        """Of the model."""
        return TransformerConfig(
            source_vocab,
            target_vocab,
            width=self.width,
            heads=self.heads,
            encoder_layers=self.layers,
            decoder_layers=self.layers,
            feed_forward=2 * self.width,
            max_length=64,
            encoder_attention=self.attention,
            decoder_attention=self.attention,
            cross_attention=self.attention,
        )


def toy_pairs(train: int, test: int) -> tuple[list[ToyPair], list[ToyPair]]:
    """Pairs to train on, and others with no source among them."""
    language = ToyLanguage()
    learnt = language.pairs(train, seed=0)
    known = {pair.source for pair in learnt}
    drawn = language.pairs(4 * test, seed=TEST_SEED)
    unseen = [pair for pair in drawn if pair.source not in known]
    if len(unseen) < test:
        raise ValueError(f"{test} unseen sentences were wanted, but there are {len(unseen)}.")
    return learnt, unseen[:test]


def toy_translator(config: ToyTraining, train: Sequence[ToyPair], folder: Path) -> Translator:
    """Train one, or find it done; on the CPU."""
    with Run.create(folder, config, "translation") as run:
        if not run.has("model.safetensors"):
            _train(config, train, run)
        return Translator.load(run)


def _train(config: ToyTraining, train: Sequence[ToyPair], run: Run) -> None:
    sources = InWords(Vocabulary.from_sentences(pair.source for pair in train))
    targets = InWords(Vocabulary.from_sentences(pair.target for pair in train))
    torch.manual_seed(config.seed)
    translator = Translator(Transformer(config.shape(len(sources), len(targets))), sources, targets)
    data = ParallelData(
        [sources.encode(" ".join(pair.source)) for pair in train],
        [targets.encode(" ".join(pair.target)) for pair in train],
        batch_size=config.batch_size,
        seed=config.seed,
    )

    def loss(model: nn.Module, batch: ParallelBatch) -> Tensor:
        logits_BTV = model(batch.source, batch.source_lengths, batch.target_in)
        return label_smoothed_loss(logits_BTV, batch.target_out, pad=PAD)

    settings = FitConfig(
        steps=config.steps,
        learning_rate=config.learning_rate,
        warmup=config.warmup,
        precision="float32",
        average=1,
        checkpoint_every=config.steps,
        seed=config.seed,
    )
    fit(translator.model, loss, data, run=run, config=settings)
    translator.save(run)


def toy_batch(translator: Translator, pairs: Sequence[ToyPair]) -> ParallelBatch:
    """Pairs as the model takes them."""
    return translator.text_batch(
        [" ".join(pair.source) for pair in pairs], [" ".join(pair.target) for pair in pairs]
    )


def gold_links(pairs: Sequence[ToyPair]) -> list[dict[int, int]]:
    """For each pair the source position that each target word translates."""
    return [dict(pair.alignment) for pair in pairs]
