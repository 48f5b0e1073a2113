"""A recorder of gradient influence, and of how output relevance rises where it is largest."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise_papers.measures.sen_curves import Records
from headwise_papers.ops.relevance import peak_positions

__all__ = ["InfluencePeaks", "Influenced"]

KEPT = ("peak", "rise", "rising", "rise_at")


class Influenced(NamedTuple):
    """What S models show on the same N rows of K positions."""

    xi: Float[Tensor, "S N K"]  # gradient influence
    beta: Float[Tensor, "S N K"]  # output relevance
    lengths: Int[Tensor, " N"]  # real positions of each row


@dataclass
class InfluencePeaks:
    """Where influence is largest, and how far output relevance has risen there and on average.

    A rise is beta^s - beta^0 at one position, with beta^0 that of the first evaluation.

    >>> xi, beta = torch.tensor([[[1.0, 5.0, 9.0]]]), torch.tensor([[[1.0, 2.0, 8.0]]])
    >>> read = lambda learnt: [Influenced(xi, learnt * beta, torch.tensor([2]))]
    >>> recorder = InfluencePeaks(read, lambda step: True)
    >>> recorder(0, 0.0), recorder(10, 1.0)
    (None, None)
    >>> recorder.tensors()["rise"].flatten(), recorder.tensors()["rise_at"].flatten()
    (tensor([0.0000, 1.5000], dtype=torch.float64), tensor([0., 2.], dtype=torch.float64))
    """

    read: Callable[[Any], Iterable[Influenced]]  # chunks of the same rows in the same order always
    at: Callable[[int], bool]
    name: str = "influence"
    _steps: list[int] = field(default_factory=list[int], init=False, repr=False)
    _first_SX: Tensor | None = field(default=None, init=False, repr=False)
    _kept: dict[str, Records] = field(
        default_factory=lambda: {name: Records() for name in KEPT}, init=False, repr=False
    )

    def __call__(self, step: int, model: Any) -> None:
        if not self.at(step) or step in self._steps[-1:]:
            return
        chunks = list(self.read(model))
        if self._first_SX is None:
            self._first_SX = torch.cat([chunk.beta.flatten(1) for chunk in chunks], dim=1).cpu()
        sizes = [chunk.beta[0].numel() for chunk in chunks]
        parts = zip(chunks, self._first_SX.split(sizes, dim=1), strict=True)
        found = [_summary(chunk, first_SX) for chunk, first_SX in parts]
        rows = {name: torch.cat([each[name] for each in found], dim=-1) for name in KEPT}
        self._steps.append(step)
        for name, value in rows.items():
            self._kept[name].append(value if name == "peak" else value.double().mean(-1))

    def tensors(self) -> dict[str, Tensor]:
        """What was recorded.

        `step` (E,), `peak` (E, S, N), `rise` (E, S), the mean over positions, then over rows,
        `rising` (E, S), the share of positions where beta has risen, `rise_at` (E, S, S), the rise
        of each model's beta where influence in every model is largest, mean over rows, and `beta_0`
        (1, S, X), the first beta of all positions, padded ones too.
        """
        first = torch.zeros(0, 0) if self._first_SX is None else self._first_SX
        return {
            "step": torch.tensor(self._steps),
            "beta_0": first[None],
            **{name: records.stacked() for name, records in self._kept.items()},
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on after what `tensors` gave earlier."""
        self._steps = tensors["step"].tolist()
        self._first_SX = tensors["beta_0"][0] if self._steps else None
        self._kept = {name: Records(tensors[name]) for name in KEPT}


def _summary(shown: Influenced, first_SX: Tensor) -> dict[str, Tensor]:
    """What is kept of a chunk, still by row, on the CPU."""
    xi_SNK, beta_SNK, lengths_N = shown
    peak_SN = peak_positions(xi_SNK, lengths_N)
    gain_SNK = beta_SNK - first_SX.to(beta_SNK.device).view_as(beta_SNK)
    real_NK = torch.arange(beta_SNK.shape[-1], device=lengths_N.device) < lengths_N[:, None]
    gain_SNK = gain_SNK.masked_fill(~real_NK, 0)
    # rows first, so that each row's gains are read at the peaks of every model
    place_NSS = peak_SN.T[:, None].expand(-1, len(gain_SNK), -1)
    at_NSS = gain_SNK.transpose(0, 1).gather(2, place_NSS)
    found = {
        "peak": peak_SN.int(),
        "rise": gain_SNK.sum(-1) / lengths_N,
        "rising": (gain_SNK > 0).sum(-1) / lengths_N,
        "rise_at": at_NSS.permute(1, 2, 0),
    }
    return {name: value.cpu() for name, value in found.items()}
