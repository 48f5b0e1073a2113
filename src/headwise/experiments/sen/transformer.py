"""Do score and norm of a word grow together in the first attention layer of a Transformer?

Beyond the paper. Its theory is about one query for all sentences, words without context, and
gradient descent; Appendix A expects that a positive relation of score and embedding norm "should
persist" with other modules around. Here a Transformer classifier of two layers with four heads
learns SST2, and the 618 words in 20 or more training sentences are followed, in three variants:

- *post-norm, SGD*: the nearest to the theory; the first layer attends to the embeddings themselves;
- *post-norm, AdamW*: the same, trained as is usual; steps of rare and of common words are alike;
- *pre-norm, AdamW*: a layer norm between embedding and attention hides the embedding's norm.

The commands:

    headwise reproduce sen/transformer           # 3 minutes on a GPU; 12 on two CPU cores
    headwise reproduce sen/transformer --smoke   # 4 seconds

What is measured, on all training sentences, without dropout, twice an epoch:

1. The *score* of a word in a head: what a query gives it, q . k / sqrt(width of a head), less the
   mean of what the query gives the other words of the sentence, as softmax sees differences only;
   mean over the queries of a sentence and over the word's occurrences.
2. Its *value*: its value vector less the mean of the others', mean over occurrences: the difference
   that Theorem 1 has. Its *embedding*: as the first layer gets it, without position.
3. As in Appendix A all are centred: growth of the score since the start, and the norm of the change
   of the vector ("change"). The growth of the vector's norm itself ("norm") is given too.
4. A relation is Spearman's rank correlation over words between growth of the score and change of
   the vector at the end, in each head, then the mean over heads; for embeddings, which heads share,
   with the mean score. "Given occurrence" takes out what both owe to how common a word is. A head
   has a positive relation if its correlation is above what chance gives once in forty times.
5. Pure words are the 50 with the highest topic purity, mixed words the 50 with the lowest.
6. Eq. 10 is drawn with m, the mean length of sentences less one. No scale is fitted, though it is
   derived for a query of norm 1 and one rate for scores and vectors, so only its shape can be hoped
   for. The figure set against the paper is the share of heads with a positive relation.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.analysis.sen import class_counts, theoretical_norm, topic_purity
from headwise.data.bags import Bags
from headwise.data.batching import batches_by_length
from headwise.data.sst import Sst, read_sst
from headwise.experiments.base import Expected, Experiment
from headwise.experiments.sen._plots import draw_band, panels, save
from headwise.models.classifier import ClassifierConfig, TransformerClassifier
from headwise.ops.attended import Attended
from headwise.ops.softmax import softmax_attention
from headwise.recording.run import Run
from headwise.sites import replace

VARIANTS = ("post-norm, SGD", "post-norm, AdamW", "pre-norm, AdamW")
LOOK = 1000  # sentences looked at together


@dataclass(frozen=True)
class Config:
    """A modest Transformer."""

    train: int = 6920  # sentences of SST2 to learn from, all of them
    width: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 64  # sentences
    epochs: int = 8  # with AdamW
    rate: float = 5e-4
    descent_epochs: int = 16  # with SGD
    descent_rate: float = 0.3
    minimum: int = 20  # sentences a word must be in to be followed
    chosen: int = 50  # pure words, and mixed words
    seeds: int = 5
    device: str = "auto"  # a GPU where there is one


EXPECTED = tuple(
    Expected(f"{variant}: heads with a positive relation", paper=1.0,
             where="App. A, expected", partly=0.5)
    for variant in VARIANTS
)  # fmt: skip


@dataclass(frozen=True)
class Words:
    """The words that are followed."""

    numbers_W: Tensor
    occurrence_W: Tensor
    purity_W: Tensor
    m: float  # mean length of sentences less one

    def by_purity(self, chosen: int) -> tuple[Tensor, Tensor]:
        """Places of the purest words, and of the least pure."""
        order = self.purity_W.argsort(descending=True, stable=True)
        return order[:chosen], order[-chosen:]


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train each variant with each seed; each figure with one value a seed."""
    sst = read_sst("sst2")
    train = Bags(*(x[:, : config.train] for x in vars(sst.train).values()))
    words = _words(train, len(sst.vocabulary), config)
    figures: dict[str, list[float]] = {}
    curves: dict[str, dict[str, Tensor]] = {}
    for variant in VARIANTS:
        trained = [_train(variant, seed, config, sst, train, words, run) for seed in
                   range(config.seeds)]  # fmt: skip
        curves[variant] = {name: torch.stack([one[name] for one in trained]) for name in trained[0]}
        values = _figures(curves[variant], words, config)
        figures |= {f"{variant}: {name}": values_S.tolist() for name, values_S in values.items()}
    names = sst.vocabulary.decode(words.numbers_W.tolist())
    _draw_curves(curves, words, names, config, run)
    _draw_heads(curves, words, config, run)
    _draw_correlations(curves, words, config, run)
    return figures


def _words(train: Bags, vocabulary: int, config: Config) -> Words:
    counted: dict[str, Any] = {"vocabulary": vocabulary, "lengths": train.lengths[0]}
    count_V = class_counts(train.tokens[0], train.labels[0], classes=2, **counted).sum(-1)
    purity_V = topic_purity(train.tokens[0], train.labels[0], **counted)
    numbers_W = (count_V >= config.minimum).nonzero()[:, 0]
    m = train.lengths.double().mean().item() - 1
    return Words(numbers_W, count_V[numbers_W], purity_V[numbers_W], m)


def _train(
    variant: str, seed: int, config: Config, sst: Sst, train: Bags, words: Words, run: Run
) -> dict[str, Tensor]:
    """Curves of the words, (E, H, W) or (E, W), and the test accuracy; read if already there."""
    file = f"trace/{variant.replace(', ', '-')}/seed-{seed}.safetensors"
    if run.has(file):
        return run.load_tensors(file)
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cuda = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        shape = ClassifierConfig(
            vocabulary=len(sst.vocabulary),
            width=config.width,
            heads=config.heads,
            layers=config.layers,
            feed_forward=2 * config.width,
            norm="pre" if variant.startswith("pre") else "post",
        )
        model = TransformerClassifier(shape).to(device)
        records = _learn(model, variant, seed, config, train.to(device), words)
    curves = _centred(records)
    curves["accuracy"] = _accuracy(model, sst.test.to(device))
    run.save_tensors(file, curves)
    return curves


def _learn(
    model: TransformerClassifier, variant: str, seed: int, config: Config, train: Bags, words: Words
) -> list[dict[str, Tensor]]:
    """Train in place; what the words were like at the start and twice an epoch."""
    if variant.endswith("SGD"):
        optimizer = torch.optim.SGD(model.parameters(), lr=config.descent_rate)
        epochs = config.descent_epochs
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=0.0)
        epochs = config.epochs
    tokens_NT, lengths_N, labels_N = train.tokens[0], train.lengths[0], train.labels[0]
    lengths = lengths_N.tolist()
    records = [_look(model, train, words)]
    for epoch in range(epochs):
        batches = list(batches_by_length(lengths, size=config.batch, seed=1000 * seed + epoch))
        for number, batch in enumerate(batches, start=1):
            rows = torch.tensor(batch, device=tokens_NT.device)
            longest = max(lengths[row] for row in batch)
            logits_BC = model.train()(tokens_NT[rows, :longest], lengths_N[rows])
            loss = cross_entropy(logits_BC, labels_N[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number in (len(batches) // 2, len(batches)):
                records.append(_look(model, train, words))
    return records


@torch.no_grad()
def _look(model: TransformerClassifier, train: Bags, words: Words) -> dict[str, Tensor]:
    """Score (H, W), value (W, H, D) and embedding (W, M) of each word, as the docstring says."""
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
        for rows in order.split(LOOK):
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


def _centred(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Growth since the start: of scores, of norms, and of the distance from the start."""
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


@torch.no_grad()
def _accuracy(model: TransformerClassifier, bags: Bags) -> Tensor:
    right_N = model.eval()(bags.tokens[0], bags.lengths[0]).argmax(-1) == bags.labels[0]
    return right_N.double().mean().cpu()
