"""Two ways to find how often attention and output relevance agree on a test set."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import SEED
from headwise.text.batching import batches_by_length
from headwise_papers.data.batches import pad
from headwise_papers.models.rnn import RnnClassifier
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.ops.relevance import highly_ranked, mode_match


def look_at_batches(
    model: RnnClassifier,
    texts: list[Tensor],
    labels: list[int],
    positions: int,
    device: torch.device,
) -> Callable[[], tuple[float, float]]:
    """Acc and hr (Eq. 3 and 4) with `look` and the vectorised measures."""
    stack = RnnClassifierStack([model])
    batches: list[tuple[Tensor, ...]] = []
    for chosen in batches_by_length([len(text) for text in texts], tokens=positions, seed=SEED):
        padded = pad([texts[index].tolist() for index in chosen])
        label_B = torch.tensor([labels[index] for index in chosen])
        batches.append(tuple(x.to(device) for x in (padded.ids, padded.lengths, label_B)))

    def look() -> tuple[float, float]:
        matched: list[Tensor] = []
        ranked: list[Tensor] = []
        for batch in batches:
            alpha_SBT, beta_SBT, lengths_B, _ = stack.look(*batch)
            matched.append(mode_match(alpha_SBT, beta_SBT, lengths_B)[0])
            ranked.append(highly_ranked(alpha_SBT, beta_SBT, lengths_B)[0])
        return _mean(torch.cat(matched)), _mean(torch.cat(ranked))

    return look


def look_at_sentences(
    model: RnnClassifier, texts: list[Tensor], labels: list[int], device: torch.device
) -> Callable[[], tuple[float, float]]:
    """The obvious way, though one that waits for the device only once."""
    sentences = [text[None].to(device) for text in texts]

    @torch.no_grad()
    def look() -> tuple[float, float]:
        matched: list[Tensor] = []
        ranked: list[Tensor] = []
        for tokens_1T, label in zip(sentences, labels, strict=True):
            hidden_TM = model.encoder(model.embed(tokens_1T))[0][0]
            score_T = model.query(model.key(hidden_TM).relu())[:, 0]
            theta_TC = model.output(hidden_TM)
            beta_T = theta_TC[:, label] - theta_TC[:, 1 - label]
            peak_1 = score_T.argmax(0, keepdim=True)
            matched.append(peak_1 == beta_T.argmax())
            ranked.append(20 * (beta_T > beta_T[peak_1]).sum() < len(beta_T))
        return _mean(torch.cat(matched)), _mean(torch.stack(ranked))

    return look


def _mean(chosen_N: Tensor) -> float:
    return chosen_N.double().mean().item()
