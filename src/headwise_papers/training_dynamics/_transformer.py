"""Training of Transformer classifiers on SST2, and words in their first attention layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.ops import Attended, softmax_attention
from headwise.recording import Run
from headwise.sites import replace
from headwise.text import batches_by_length
from headwise_papers.data.bags import Bags, Sst, read_sst
from headwise_papers.models.classifier import ClassifierConfig, TransformerClassifier
from headwise_papers.models.stacking import best_device
from headwise_papers.ops.sen import class_counts, topic_purity

BATCH = 1000  # sentences
CURVES = "trace/words/curves.safetensors"


@dataclass(frozen=True)
class Training:
    """Settings of one model."""

    optimizer: Literal["SGD", "AdamW"] = "AdamW"
    epochs: int = 8
    rate: float = 5e-4
    norm: Literal["pre", "post"] = "post"
    sentences: int = 6920  # of SST2 to learn from, all of them
    width: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 64  # sentences
    minimum: int = 20  # sentences that a followed word is in
    seed: int = 0


@dataclass(frozen=True)
class Words:
    """Words that are followed through training."""

    numbers_W: Tensor
    occurrence_W: Tensor
    purity_W: Tensor
    m: float  # mean length of sentences less one

    def by_purity(self, chosen: int) -> tuple[Tensor, Tensor]:
        """Return the places of the purest words, and of the least pure."""
        order = self.purity_W.argsort(descending=True, stable=True)
        return order[:chosen], order[-chosen:]


def followed_words(train: Bags, vocabulary: int, *, minimum: int) -> Words:
    """Return the words in at least `minimum` training sentences of two classes."""
    counted: dict[str, Any] = {"vocabulary": vocabulary, "lengths": train.lengths[0]}
    count_V = class_counts(train.tokens[0], train.labels[0], classes=2, **counted).sum(-1)
    purity_V = topic_purity(train.tokens[0], train.labels[0], **counted)
    numbers_W = (count_V >= minimum).nonzero()[:, 0]
    m = train.lengths.double().mean().item() - 1
    return Words(numbers_W, count_V[numbers_W], purity_V[numbers_W], m)


@torch.no_grad()
def observe_words(model: TransformerClassifier, train: Bags, words: Words) -> dict[str, Tensor]:
    """Return score (H, W), value (W, H, D) and embedding (W, M) of each followed word.

    Scores and values are differences from the mean of the other words of a sentence, as softmax
    sees differences only; means over queries and over the word's occurrences.
    """
    vocabulary, heads = model.config.vocabulary, model.config.heads
    device, width = train.tokens.device, model.config.width
    score_VH = torch.zeros(vocabulary, heads, device=device)
    value_VHD = torch.zeros(vocabulary, heads, width // heads, device=device)
    count_V = torch.zeros(vocabulary, device=device)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Attended:
        seen.append((q, k, v))
        return softmax_attention(q, k, v, **options)

    order = train.lengths[0].argsort()
    order = order[train.lengths[0][order] > 1]  # a word alone has nothing to be compared with
    with replace(model.eval(), attend, where="encoder.0.self"):
        for rows in order.split(BATCH):
            lengths_B = train.lengths[0][rows]
            tokens_BT = train.tokens[0][rows, : int(lengths_B.max())]
            model.encoder[0](model.embed(tokens_BT), lengths_B)  # the first layer is enough
            q_BHTD, k_BHTD, v_BHTD = seen.pop()
            real_BT = torch.arange(tokens_BT.shape[1], device=device) < lengths_B[:, None]
            query_BH1D = _mean_over_words(q_BHTD, real_BT)
            score_BHT = (query_BH1D * k_BHTD).sum(-1) / math.sqrt(q_BHTD.shape[-1])
            word_P = tokens_BT[real_BT]
            for total, own_BHTX in ((score_VH, score_BHT[..., None]), (value_VHD, v_BHTD)):
                # own - mean of others = (own - mean of all) * n / (n - 1)
                lead_BHTX = own_BHTX - _mean_over_words(own_BHTX, real_BT)
                lead_BHTX = lead_BHTX * (lengths_B / (lengths_B - 1))[:, None, None, None]
                lead_PHX = lead_BHTX.transpose(1, 2)[real_BT]
                total.index_add_(0, word_P, lead_PHX.view(-1, *total.shape[1:]))
            count_V.index_add_(0, word_P, torch.ones_like(word_P, dtype=count_V.dtype))
    chosen_W = words.numbers_W.to(device)
    count_W = count_V[chosen_W]
    return {
        "score": (score_VH[chosen_W] / count_W[:, None]).T.cpu(),
        "value": (value_VHD[chosen_W] / count_W[:, None, None]).cpu(),
        "embedding": (model.embed.words.weight[chosen_W] * math.sqrt(width)).cpu(),
    }


def _mean_over_words(x_BHTD: Tensor, real_BT: Tensor) -> Tensor:
    real_B1T1 = real_BT[:, None, :, None]
    return (x_BHTD * real_B1T1).sum(2, keepdim=True) / real_B1T1.sum(2, keepdim=True)


def centred(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the growth of scores and norms since the start, and the distance from the start."""
    kept = {name: torch.stack([record[name] for record in records]) for name in records[0]}
    score_EHW, value_EWHD, embedding_EWM = kept["score"], kept["value"], kept["embedding"]
    value_EHW = value_EWHD.norm(dim=-1).mT
    return {
        "score": score_EHW - score_EHW[0],
        "value change": (value_EWHD - value_EWHD[0]).norm(dim=-1).mT.contiguous(),
        "value norm": value_EHW - value_EHW[0],
        "embedding change": (embedding_EWM - embedding_EWM[0]).norm(dim=-1),
        "embedding norm": embedding_EWM.norm(dim=-1) - embedding_EWM[0].norm(dim=-1),
    }


def train_classifier(config: Training, folder: Path) -> Run:
    """Train one model, following words twice an epoch; not resumable, as it takes a minute."""
    sst, train, words = read_words(config)
    device = best_device()
    cuda = [torch.cuda.current_device()] if device == "cuda" else []
    with Run.create(folder, config) as run, torch.random.fork_rng(devices=cuda):
        torch.manual_seed(config.seed)
        shape = ClassifierConfig(
            vocabulary=len(sst.vocabulary),
            width=config.width,
            heads=config.heads,
            layers=config.layers,
            feed_forward=2 * config.width,
            norm=config.norm,
        )
        model = TransformerClassifier(shape).to(device)
        curves = centred(list(learn(model, config, train.to(device), words)))
        run.save_tensors(CURVES, curves)
        test = sst.test.to(device)
        with torch.no_grad():
            right_N = model.eval()(test.tokens[0], test.lengths[0]).argmax(-1) == test.labels[0]
        run.save_figures({"accuracy": right_N.double().mean().item()})
    return run


def read_words(config: Training) -> tuple[Sst, Bags, Words]:
    """Read SST2; so many training sentences from all over, as the file has positive ones first."""
    sst = read_sst("sst2")
    there = sst.train.tokens.shape[1]
    rows = torch.linspace(0, there - 1, min(config.sentences, there)).round().long()
    train = Bags(*(x[:, rows] for x in vars(sst.train).values()))
    return sst, train, followed_words(train, len(sst.vocabulary), minimum=config.minimum)


def learn(
    model: TransformerClassifier, config: Training, train: Bags, words: Words
) -> Iterator[dict[str, Tensor]]:
    """Train in place; yields the state of the words at the start and twice an epoch."""
    if config.optimizer == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=config.rate)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=0.0)
    tokens_NT, lengths_N, labels_N = train.tokens[0], train.lengths[0], train.labels[0]
    lengths = lengths_N.tolist()
    yield observe_words(model, train, words)
    for epoch in range(config.epochs):
        order = 1000 * config.seed + epoch
        batches = list(batches_by_length(lengths, size=config.batch, seed=order))
        for number, batch in enumerate(batches, start=1):
            rows = torch.tensor(batch, device=tokens_NT.device)
            longest = max(lengths[row] for row in batch)
            logits_BC = model.train()(tokens_NT[rows, :longest], lengths_N[rows])
            loss = cross_entropy(logits_BC, labels_N[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number in (len(batches) // 2, len(batches)):
                yield observe_words(model, train, words)
