"""Words in the first attention layer of a Transformer classifier: score, value and embedding."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.ops.softmax import softmax_attention
from headwise.sites import replace
from headwise_papers.data.bags import Bags
from headwise_papers.measures.sen import class_counts, topic_purity
from headwise_papers.models.classifier import TransformerClassifier

__all__ = ["Words", "centred", "followed_words", "look"]

LOOK = 1000  # sentences looked at together


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


def followed_words(train: Bags, vocabulary: int, *, minimum: int) -> Words:
    """The words in at least `minimum` training sentences of two classes."""
    counted: dict[str, Any] = {"vocabulary": vocabulary, "lengths": train.lengths[0]}
    count_V = class_counts(train.tokens[0], train.labels[0], classes=2, **counted).sum(-1)
    purity_V = topic_purity(train.tokens[0], train.labels[0], **counted)
    numbers_W = (count_V >= minimum).nonzero()[:, 0]
    m = train.lengths.double().mean().item() - 1
    return Words(numbers_W, count_V[numbers_W], purity_V[numbers_W], m)


@torch.no_grad()
def look(model: TransformerClassifier, train: Bags, words: Words) -> dict[str, Tensor]:
    """Score (H, W), value (W, H, D) and embedding (W, M) of each followed word."""
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


def centred(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
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
