"""Classifiers trained one after the other behind the interface of a stack.

On a CPU `nn.LSTM` is faster than batched products (`python -m benchmarks relevance`), so there a
sequence is what many seeds are trained with; on a GPU it is a stack.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise_papers.models.rnn import RnnClassifier
from headwise_papers.models.rnn_stack import RnnClassifierStack
from headwise_papers.ops.relevance import Looked

__all__ = ["RnnClassifierSequence", "many_classifiers"]


class RnnClassifierSequence(nn.Module):
    """S classifiers, each a module of its own; shapes may differ.

    >>> from headwise_papers.models.rnn import RnnClassifierConfig
    >>> config = RnnClassifierConfig(vocabulary=9, hidden=8)
    >>> models = RnnClassifierSequence([RnnClassifier(config) for seed in range(3)])
    >>> models(torch.ones(3, 2, 5, dtype=torch.long), torch.full((3, 2), 5)).shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, models: Sequence[RnnClassifier]) -> None:
        super().__init__()
        self.models = nn.ModuleList(deepcopy(model) for model in models)
        self.weights: dict[str, Tensor] = {
            f"{seed}.{name}": parameter
            for seed, model in enumerate(self.models)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    @property
    def seeds(self) -> int:
        """How many models there are."""
        return len(self.models)

    def forward(
        self, tokens: Int[Tensor, "S B T"], lengths: Int[Tensor, "S B"]
    ) -> Float[Tensor, "S B C"]:
        """Logits of each class, for each seed's own sentences."""
        return torch.stack([self.model(s)(tokens[s], lengths[s]) for s in range(self.seeds)])

    def loss(
        self,
        tokens: Int[Tensor, "S B T"],
        lengths: Int[Tensor, "S B"],
        labels: Int[Tensor, "S B"],
    ) -> Float[Tensor, " S"]:
        """Each seed's mean cross-entropy."""
        logits_SBC = self(tokens, lengths)
        return cross_entropy(logits_SBC.mT, labels, reduction="none").mean(-1)

    @torch.no_grad()
    def look(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], labels: Int[Tensor, " B"]
    ) -> Looked:
        """Scores and output relevance of each position, on the same sentences for every seed."""
        each = [self.model(s).look(tokens, lengths, labels) for s in range(self.seeds)]
        alpha_SNK, beta_SNK, right_SN = (
            torch.cat([getattr(looked, part) for looked in each])
            for part in ("alpha", "beta", "right")
        )
        return Looked(alpha_SNK, beta_SNK, lengths, right_SN)

    def model(self, seed: int) -> RnnClassifier:
        """One seed's classifier, itself."""
        return cast(RnnClassifier, self.models[seed])


def many_classifiers(
    models: Sequence[RnnClassifier],
) -> RnnClassifierStack | RnnClassifierSequence:
    """Many classifiers as they are trained fastest where they are: see the module."""
    on_gpu = models[0].output.weight.is_cuda
    return RnnClassifierStack(models) if on_gpu else RnnClassifierSequence(models)
