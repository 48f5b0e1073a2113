"""A recorder of where attention and output relevance are largest, through training.

Rows of alpha and beta for every evaluation would not fit; what every measure of the paper asks of
them does: where each is largest, and which positions are highly ranked.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from headwise_papers.measures.sen_curves import Records
from headwise_papers.ops.relevance import Looked, packed, peak_positions, top_positions

__all__ = ["RelevanceCurves", "schedule"]

KEPT = ("accuracy", "alpha_peak", "beta_peak", "alpha_top", "beta_top")


def schedule(every: int, *, until: int = 0, then: int | None = None) -> Callable[[int], bool]:
    """Return a test of steps to evaluate at: every `every` steps; after `until`, every `then`.

    The paper's is schedule(10, until=100, then=50).

    >>> at = schedule(1, until=3, then=5)
    >>> [step for step in range(16) if at(step)]
    [0, 1, 2, 3, 5, 10, 15]
    """
    if min(every, then or 1) < 1:
        raise ValueError(f"Steps between looks must be 1 or more, got {every} and {then}.")

    def at(step: int) -> bool:
        return step % (every if then is None or step <= until else then) == 0

    return at


@dataclass
class RelevanceCurves:
    """Peaks and highly ranked positions of alpha and beta, evaluation by evaluation.

    >>> rows = torch.eye(3)[None]
    >>> looked = Looked(rows, -rows, torch.tensor([3, 3, 2]), torch.ones(1, 3, dtype=torch.bool))
    >>> recorder = RelevanceCurves(lambda model: [looked], schedule(10))
    >>> recorder(0, None)
    >>> recorder.tensors()["alpha_peak"]
    tensor([[[0, 1, 0]]], dtype=torch.int32)
    """

    read: Callable[[Any], Iterable[Looked]]  # chunks of the same rows in the same order every time
    at: Callable[[int], bool]  # at which steps to look, e.g. `schedule(10, until=100, then=50)`
    name: str = "relevance"
    _steps: list[int] = field(default_factory=list[int], init=False, repr=False)
    _lengths: Int[Tensor, " N"] = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.int32), init=False, repr=False
    )
    _kept: dict[str, Records] = field(
        default_factory=lambda: {name: Records() for name in KEPT}, init=False, repr=False
    )

    @torch.no_grad()
    def __call__(self, step: int, model: Any) -> None:
        if not self.at(step):
            return
        chunks = list(map(_summary, self.read(model)))
        if not chunks:
            raise ValueError("There is nothing to record: `read` gave no rows.")
        found = {name: _joined([chunk[name] for chunk in chunks]).cpu() for name in chunks[0]}
        lengths_N = found.pop("lengths")
        if self._steps and not torch.equal(lengths_N, self._lengths):
            raise ValueError(
                f"At step {step} the rows have other lengths than at step {self._steps[-1]}; "
                "`read` must give the same rows every time."
            )
        found["accuracy"] = found.pop("right").double().mean(-1)
        self._steps.append(step)
        self._lengths = lengths_N
        for name, value in found.items():
            self._kept[name].append(value)

    def tensors(self) -> dict[str, Tensor]:
        """Return the recorded tensors.

        `step` (E,), `accuracy` (E, S), `alpha_peak` and `beta_peak` (E, S, N), `alpha_top` and
        `beta_top` (E, S, N, P), eight positions to a byte (`headwise_papers.ops.relevance.packed`),
        and `lengths` (N,).
        """
        return {
            "step": torch.tensor(self._steps, dtype=torch.long),
            "lengths": self._lengths,
            **{name: records.stacked() for name, records in self._kept.items()},
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from the tensors that `tensors` returned earlier."""
        self._steps = tensors["step"].tolist()
        self._lengths = tensors["lengths"]
        self._kept = {name: Records(tensors[name]) for name in KEPT}


def _summary(looked: Looked) -> dict[str, Tensor]:
    """Return the kept tensors of a chunk, still on its device."""
    alpha_SNK, beta_SNK, lengths_N, right_SN = looked
    rows = tuple(alpha_SNK.shape[:2])
    if (
        alpha_SNK.dim() != 3
        or beta_SNK.shape != alpha_SNK.shape
        or tuple(right_SN.shape) != rows
        or tuple(lengths_N.shape) != rows[1:]
    ):
        raise ValueError(
            "alpha and beta must be (seeds, rows, positions), right (seeds, rows) and lengths "
            f"(rows,), got {tuple(alpha_SNK.shape)}, {tuple(beta_SNK.shape)}, "
            f"{tuple(right_SN.shape)} and {tuple(lengths_N.shape)}; for one model add an axis with "
            "[None]."
        )
    return {
        "lengths": lengths_N.int(),
        "right": right_SN,
        "alpha_peak": peak_positions(alpha_SNK, lengths_N).int(),
        "beta_peak": peak_positions(beta_SNK, lengths_N).int(),
        "alpha_top": packed(top_positions(alpha_SNK, lengths_N)),
        "beta_top": packed(top_positions(beta_SNK, lengths_N)),
    }


def _joined(chunks: list[Tensor]) -> Tensor:
    """Concatenate chunks along their rows; pad packed ones to the widest."""
    if chunks[0].dim() < 3:
        return torch.cat(chunks, dim=-1)
    width = max(chunk.shape[-1] for chunk in chunks)
    return torch.cat([pad(chunk, (0, width - chunk.shape[-1])) for chunk in chunks], dim=1)
