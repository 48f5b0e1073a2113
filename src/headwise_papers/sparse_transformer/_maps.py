"""Attention of translators: keys that carry weight, alignments of words, and the toy language."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headwise.ops import Attended
from headwise.recording import Run
from headwise.sites import Site, observe
from headwise.training import FitConfig, fit, label_smoothed_loss
from headwise_papers.data.batches import ParallelBatch, ParallelData
from headwise_papers.data.toy import ToyLanguage, ToyPair
from headwise_papers.data.vocabulary import PAD, Vocabulary
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.recipes.translator import Translator, WordCodec

__all__ = [
    "KINDS",
    "Alignments",
    "Keys",
    "ToyConfig",
    "alignment_error",
    "count_keys",
    "cross_weights",
    "gold_links",
    "last_token_weight",
    "toy_batch",
    "toy_pairs",
    "train_toy",
]

TEST_SEED = 1_000_000  # of the sentences that are looked at

CARRIES = 0.01  # of the weight: from here on a key counts as carrying some
KINDS = {
    "encoder": "encoder.*.self",
    "decoder": "decoder.*.self",
    "cross": "decoder.*.cross",
}


class Keys(NamedTuple):
    """Means over queries, by layer and head."""

    weighted: Tensor  # keys with any weight
    carrying: Tensor  # keys with 1 % of the weight or more
    effective: Tensor  # exp of the entropy: as many keys of equal weight are as uncertain
    most: int  # the largest number of keys with any weight


@dataclass
class Counting:
    """Counter of keys at every site; `start` says which queries are words."""

    real: dict[str, Tensor] = field(default_factory=dict[str, Tensor])  # (B, Q) by stack
    sums: dict[str, Tensor] = field(default_factory=dict[str, Tensor])  # (3, H) by site
    queries: dict[str, int] = field(default_factory=dict[str, int])
    most: dict[str, int] = field(default_factory=dict[str, int])

    def start(self, batch: ParallelBatch) -> None:
        """Note which queries of the next batch are words."""
        self.real = {"encoder": batch.source != PAD, "decoder": batch.target_in != PAD}

    def __call__(self, site: Site, attended: Attended) -> None:
        def counted(weights_BHQK: Tensor, _: slice) -> tuple[Tensor, ...]:
            logs_BHQK = torch.special.entr(weights_BHQK.float())
            return (
                (weights_BHQK > 0).sum(-1).float(),
                (weights_BHQK >= CARRIES).sum(-1).float(),
                logs_BHQK.sum(-1).exp(),
            )

        found_3BHQ = torch.stack(attended.sweep(counted))
        real_B1Q = self.real[site.queries][:, None]
        found_3BHQ = found_3BHQ.masked_fill(~real_B1Q, 0)
        sums_3H = found_3BHQ.sum(dim=(1, 3)).double().cpu()
        self.sums[site.name] = self.sums.get(site.name, torch.zeros_like(sums_3H)) + sums_3H
        self.queries[site.name] = self.queries.get(site.name, 0) + int(real_B1Q.sum())
        self.most[site.name] = max(self.most.get(site.name, 0), int(found_3BHQ[0].max()))

    def keys(self, kind: str) -> Keys:
        """Return the counts of the encoder's, the decoder's or the cross-attention sites."""
        stack, end = ("decoder", "cross") if kind == "cross" else (kind, "self")
        names = [n for n in self.sums if n.startswith(f"{stack}.") and n.endswith(f".{end}")]
        means_L3H = torch.stack([self.sums[name] / self.queries[name] for name in names])
        return Keys(*means_L3H.unbind(1), most=max(self.most[name] for name in names))


@torch.no_grad()
def count_keys(translator: Translator, batches: Sequence[ParallelBatch]) -> dict[str, Keys]:
    """Count keys by kind of attention, while a translator reads sentence pairs."""
    translator.model.eval()
    counting = Counting()
    with observe(translator.model, counting):
        for batch in batches:
            counting.start(batch)
            translator.model(batch.source, batch.source_lengths, batch.target_in)
    return {kind: counting.keys(kind) for kind in KINDS}


@torch.no_grad()
def cross_weights(translator: Translator, batch: ParallelBatch) -> Tensor:
    """Return the cross-attention of a batch as (layers, B, H, T, K), on the CPU."""
    found: list[Tensor] = []

    def watch(site: Site, attended: Attended) -> None:
        found.append(attended.weights.float().cpu())

    translator.model.eval()
    with observe(translator.model, watch, where=KINDS["cross"]):
        translator.model(batch.source, batch.source_lengths, batch.target_in)
    return torch.stack(found)


def last_token_weight(translator: Translator, batches: Sequence[ParallelBatch]) -> float:
    """Return the mean weight on the last source token, the end mark, in the top layer."""
    total, queries = 0.0, 0
    for batch in batches:
        mean_BTK = cross_weights(translator, batch)[-1].mean(1)
        last_BT1 = (batch.source_lengths.cpu() - 1)[:, None, None].expand(-1, mean_BTK.shape[1], 1)
        real_BT = batch.target_in.cpu() != PAD
        total += float(mean_BTK.gather(2, last_BT1)[..., 0][real_BT].double().sum())
        queries += int(real_BT.sum())
    return total / queries


class Alignments(NamedTuple):
    """Errors of cross-attention as a word alignment."""

    layer_error: Tensor  # (L,) of the mean over heads
    head_error: Tensor  # (L, H)
    layer_mass: Tensor  # (L,) weight on the aligned word, the mean over heads


def alignment_error(
    weights: Tensor, gold: Sequence[Mapping[int, int]], source_words: Sequence[int]
) -> Alignments:
    """Return the error rate of links from target words to the source words they look at most.

        AER = 1 - 2 |A and S| / (|A| + |S|)

    A is the set of links found and S that of the gold ones, all of them sure. A word that looks at
    the end mark most has no link.

    Args:
        weights: (L, B, H, T, K) from `cross_weights`.
        gold: for each sentence the source position of each target position.
        source_words: how many words each source has, without its end mark.
    """
    rows = [(b, t, s) for b, links in enumerate(gold) for t, s in sorted(links.items())]
    item_N, target_N, source_N = torch.tensor(rows).unbind(1)
    inside_N = torch.tensor(source_words)[item_N]
    asked_NLHK = weights.permute(1, 3, 0, 2, 4)[item_N, target_N]
    mean_NLK = asked_NLHK.mean(2)
    place_NL1 = source_N[:, None, None].expand(-1, mean_NLK.shape[1], 1)
    return Alignments(
        _error(mean_NLK.argmax(-1), source_N, inside_N),
        _error(asked_NLHK.argmax(-1), source_N, inside_N),
        mean_NLK.gather(2, place_NL1)[..., 0].mean(0),
    )


def _error(looked_NX: Tensor, source_N: Tensor, inside_N: Tensor) -> Tensor:
    shape = (-1, *[1] * (looked_NX.dim() - 1))
    right_X = (looked_NX == source_N.view(shape)).sum(0)
    links_X = (looked_NX < inside_N.view(shape)).sum(0)
    return 1 - 2 * right_X / (links_X + len(source_N))


@dataclass(frozen=True)
class ToyConfig:
    """Settings of a translator of the toy language."""

    attention: str = "softmax"
    seed: int = 0
    pairs: int = 20_000
    steps: int = 800
    width: int = 128
    heads: int = 4
    layers: int = 2  # in encoder and decoder alike
    batch_size: int = 64
    learning_rate: float = 3e-3
    warmup: int = 100

    def shape(self, source_vocab: int, target_vocab: int) -> TransformerConfig:
        """Return the model's settings."""
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
    """Return pairs to train on, and others with no source among them."""
    language = ToyLanguage()
    learnt = language.pairs(train, seed=0)
    known = {pair.source for pair in learnt}
    drawn = language.pairs(4 * test, seed=TEST_SEED)
    unseen = [pair for pair in drawn if pair.source not in known]
    if len(unseen) < test:
        raise ValueError(f"{test} unseen sentences were wanted, but there are {len(unseen)}.")
    return learnt, unseen[:test]


def train_toy(config: ToyConfig, folder: Path) -> Run:
    """Train a translator of the toy language, on the CPU."""
    pairs = ToyLanguage().pairs(config.pairs, seed=0)
    sources = WordCodec(Vocabulary.from_sentences(pair.source for pair in pairs))
    targets = WordCodec(Vocabulary.from_sentences(pair.target for pair in pairs))
    torch.manual_seed(config.seed)
    translator = Translator(Transformer(config.shape(len(sources), len(targets))), sources, targets)
    data = ParallelData(
        [sources.encode(" ".join(pair.source)) for pair in pairs],
        [targets.encode(" ".join(pair.target)) for pair in pairs],
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
    with Run.create(folder, config, "translation") as run:
        fit(translator.model, loss, data, run=run, config=settings)
        translator.save(run)
        run.save_figures({"updates": config.steps})
    return run


def toy_batch(translator: Translator, pairs: Sequence[ToyPair]) -> ParallelBatch:
    """Return pairs as the model takes them."""
    return translator.text_batch(
        [" ".join(pair.source) for pair in pairs], [" ".join(pair.target) for pair in pairs]
    )


def gold_links(pairs: Sequence[ToyPair]) -> list[dict[int, int]]:
    """Return for each pair the source position that each target word translates."""
    return [dict(pair.alignment) for pair in pairs]
