"""Many classifiers that attend to pairs of neighbours, trained together (Attn-TC-CNN, Appendix A).

A convolution over two neighbours is a sum of a left part and a right part, and each part belongs
to a word. So both parts, the score and what the classifier's first layer makes of the vector, are
computed once for each word of the vocabulary and only then looked up for each pair. Gradients are
PyTorch's, but for the look-up's; seeds do not mix, so the gradient of the sum of their losses is
that of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding

from headwise_papers.data.bags import Bags
from headwise_papers.models.bag import BagClassifier
from headwise_papers.models.bag_stack import csr
from headwise_papers.models.stacking import (
    Evaluation,
    common_config,
    load_into,
    stacked_parameters,
    unstacked,
)

__all__ = ["PairStack", "PairTokens"]


@dataclass(frozen=True)
class PairTokens:
    """Sentences as pairs of neighbours. Made by `PairStack.prepare`."""

    left_SNT: Tensor  # the first word of each pair, seeds counted through
    right_SNT: Tensor
    by_left: Tensor  # CSR (S*V, S*N*T): at which places each word is first in a pair
    by_right: Tensor
    real_SNT: Tensor  # False at padding
    label_SN: Tensor


class PairStack:
    """S classifiers with a convolution, as stacked tensors; used like `BagStack`.

    Args:
        models: of the same config, with `convolution=True`; they are copied.
    """

    def __init__(self, models: Sequence[BagClassifier]) -> None:
        self.config = common_config(models)
        if not self.config.convolution:
            raise ValueError("PairStack wants models with convolution=True; use BagStack.")
        self.parameters = stacked_parameters(models)

    @property
    def seeds(self) -> int:
        """Number of classifiers."""
        return len(self.parameters["embeddings"])

    def prepare(self, bags: Bags) -> PairTokens:
        """Convert sentences once, before training or evaluating on them."""
        if bags.seeds != self.seeds or bool((bags.lengths < 2).any()):
            raise ValueError(
                f"Sentences of two or more words for {self.seeds} seeds were wanted, got "
                f"{bags.seeds} seeds and a shortest sentence of {int(bags.lengths.min())}."
            )
        bags = bags.to(self.parameters["embeddings"].device)
        seed_S = torch.arange(self.seeds, device=bags.tokens.device)
        word_SNT = bags.tokens + self.config.vocabulary * seed_S[:, None, None]
        place_T = torch.arange(word_SNT.shape[-1] - 1, device=word_SNT.device)
        left_SNT, right_SNT = word_SNT[..., :-1].contiguous(), word_SNT[..., 1:].contiguous()
        return PairTokens(
            left_SNT,
            right_SNT,
            self._places(left_SNT),
            self._places(right_SNT),
            place_T < bags.lengths[..., None] - 1,
            bags.labels.contiguous(),
        )

    def step(self, data: PairTokens, *, rate: float) -> Float[Tensor, " S"]:
        """Do one step of gradient descent, and return each seed's mean loss before it."""
        leaves = {
            name: parameter.detach().requires_grad_(name in self.config.trainable)
            for name, parameter in self.parameters.items()
        }
        loss_S = _losses(self._logits(leaves, data), data.label_SN)
        trained = [name for name in leaves if name in self.config.trainable]
        gradients = torch.autograd.grad(loss_S.sum(), [leaves[name] for name in trained])
        for name, gradient in zip(trained, gradients, strict=True):
            self.parameters[name].sub_(gradient, alpha=rate)
        return loss_S.detach()

    @torch.no_grad()
    def evaluate(self, data: PairTokens) -> Evaluation:
        """Return loss and accuracy of each seed."""
        logits_SNC = self._logits(self.parameters, data)
        loss_S = _losses(logits_SNC, data.label_SN)
        return Evaluation(loss_S, (logits_SNC.argmax(-1) == data.label_SN).to(loss_S).mean(-1))

    @torch.no_grad()
    def pair_scores(self, pairs: Int[Tensor, "S P 2"]) -> Float[Tensor, "S P"]:
        """Return the score of each pair of words."""
        query_SE1 = self.parameters["query"][..., None]
        return (self._mixed("keys", pairs) @ query_SE1)[..., 0]

    @torch.no_grad()
    def pair_vectors(self, pairs: Int[Tensor, "S P 2"]) -> Float[Tensor, "S P D"]:
        """Return the convolved embedding of each pair, times the norm of the query."""
        return self._mixed("embeddings", pairs) * self.query_norms()[:, None, None]

    def query_norms(self) -> Float[Tensor, " S"]:
        """Return the norm of each seed's query."""
        return self.parameters["query"].norm(dim=-1)

    def model(self, seed: int) -> BagClassifier:
        """Copy one seed's classifier."""
        return unstacked(self.config, self.parameters, seed)

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Copy stacked parameters, for example those saved earlier."""
        load_into(self.parameters, parameters)

    def _mixed(self, kind: str, pairs_SP2: Tensor) -> Tensor:
        """Compute the convolution of "embeddings" or "keys" at chosen pairs."""
        table_SVD, weight_SODK = self.parameters[kind], self.parameters[f"mix_{kind}.weight"]
        seed_S1 = torch.arange(self.seeds, device=table_SVD.device)[:, None]
        parts = [
            table_SVD[seed_S1, pairs_SP2[..., side]] @ weight_SODK[..., side].mT for side in (0, 1)
        ]
        return parts[0] + parts[1] + self.parameters[f"mix_{kind}.bias"][:, None]

    def _logits(self, parameters: Mapping[str, Tensor], data: PairTokens) -> Tensor:
        left, right = (self._sides(parameters, side) for side in (0, 1))
        pair_SNTX = _look_up(left, data.left_SNT, data.by_left)
        pair_SNTX = pair_SNTX + _look_up(right, data.right_SNT, data.by_right)
        score_SNT = pair_SNTX[..., -1].masked_fill(~data.real_SNT, -torch.inf)
        output_SNO = torch.einsum("snt,snto->sno", score_SNT.softmax(-1), pair_SNTX[..., :-1])
        if self.config.classifier != "TL":
            return output_SNO
        hidden_SNH = (output_SNO + parameters["hidden.bias"][:, None]).relu()
        bias_S1C = parameters["output.bias"][:, None]
        return torch.baddbmm(bias_S1C, hidden_SNH, parameters["output.weight"].mT)

    def _places(self, word_SNT: Tensor) -> Tensor:
        word_P = word_SNT.flatten()
        place_P = torch.arange(len(word_P), device=word_P.device)
        one_P = torch.ones_like(word_P, dtype=self.parameters["embeddings"].dtype)
        return csr(word_P, place_P, one_P, (self.seeds * self.config.vocabulary, len(word_P)))

    def _sides(self, parameters: Mapping[str, Tensor], side: int) -> Tensor:
        """Return one side's share of a pair per word: first-layer outputs, the score last."""
        first = "hidden" if self.config.classifier == "TL" else "output"
        parts: list[Tensor] = []
        for kind, reader in (
            ("embeddings", parameters[f"{first}.weight"].mT),
            ("keys", parameters["query"][..., None]),
        ):
            weight_SDO = parameters[f"mix_{kind}.weight"][..., side].mT
            part_SVO = parameters[kind] @ (weight_SDO @ reader)
            if side == 0:  # the bias comes once
                part_SVO = part_SVO + parameters[f"mix_{kind}.bias"][:, None] @ reader
            parts.append(part_SVO)
        return torch.cat(parts, dim=-1).flatten(0, 1)


class _LookUp(torch.autograd.Function):
    """Rows of a table; its gradient as a sparse product, several times faster than PyTorch's."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, row: Tensor, places: Tensor) -> Tensor:
        ctx.places = places
        return embedding(row, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = grads
        return ctx.places @ gradient.reshape(-1, gradient.shape[-1]), None, None


def _look_up(table: Tensor, row: Tensor, places: Tensor) -> Tensor:
    return cast(Tensor, _LookUp.apply(table, row, places))


def _losses(logits_SNC: Tensor, label_SN: Tensor) -> Tensor:
    return cross_entropy(logits_SNC.mT, label_SN, reduction="none").mean(-1)
