"""Recorders of words through training: score and embedding norm, and which words are attended.

They need two tables of a model, the score and the vector of each word, so they follow any
classifier whose words have both: pass functions that read them. `recipes.descent.descend` calls
recorders with (epoch, model), keeps what was recorded in its checkpoints, and writes it to the
run's `trace/<name>/curves.safetensors`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise_papers.data.bags import Bags

__all__ = ["AttendedWords", "Records", "SenCurves"]

BLOCK_ROWS, BLOCK_NUMBERS = 1024, 2**20  # the most a block of records holds

Read = Callable[[Any], Tensor]  # from a model to a table of its words, with or without a seed axis


def _word_scores(model: Any) -> Tensor:
    return cast(Tensor, model.word_scores())


def _word_vectors(model: Any) -> Tensor:
    return cast(Tensor, model.word_vectors())


class Records:
    """Tensors of one shape, one per epoch, copied into preallocated blocks.

    Small tensors kept every epoch would pin the large blocks freed around them on the heap, and
    memory would grow by megabytes an epoch.

    Args:
        rows: records to begin with, on the leading axis.

    >>> records = Records()
    >>> records.append(torch.ones(3))
    >>> records.stacked().shape
    torch.Size([1, 3])
    """

    def __init__(self, rows: Tensor | None = None) -> None:
        self._full = [] if rows is None or not len(rows) else [rows]
        self._block = torch.zeros(0)
        self._used = 0  # rows of the block

    def __bool__(self) -> bool:
        return bool(self._full) or self._used > 0

    def append(self, record: Tensor) -> None:
        """Copy a record, without waiting for its device."""
        if self._used == len(self._block):
            self._begin_block(record)
        self._block[self._used] = record.detach()
        self._used += 1

    def last(self) -> Tensor:
        """Return the latest record."""
        return self._block[self._used - 1] if self._used else self._full[-1][-1]

    def stacked(self) -> Tensor:
        """Return all records as one tensor on the CPU, records on the leading axis."""
        if not self:
            return torch.zeros(0)
        parts = [*self._full, self._block[: self._used]] if self._used else self._full
        return torch.cat([part.cpu() for part in parts])

    def _begin_block(self, like: Tensor) -> None:
        if self._used:
            self._full.append(self._block)
        rows = min(BLOCK_ROWS, max(1, BLOCK_NUMBERS // max(1, like.numel())))
        self._block, self._used = like.new_empty(rows, *like.shape), 0


@dataclass
class SenCurves:
    """Score and embedding norm of chosen words, epoch by epoch.

    >>> from types import SimpleNamespace
    >>> recorder = SenCurves(
    ...     torch.tensor([0, 2]), scores=lambda model: model.s, vectors=lambda model: model.v
    ... )
    >>> recorder(0, SimpleNamespace(s=torch.zeros(3), v=torch.eye(3)))
    >>> recorder.tensors()["norm"].shape  # epochs, seeds, words
    torch.Size([1, 1, 2])
    """

    words: Int[Tensor, "*S W"]  # the words to follow, the same in every seed or its own
    scores: Read = _word_scores  # to (S, V), or (V,) for one model
    vectors: Read = _word_vectors  # to (S, V, D), or (V, D)
    every: int = 1  # epochs between records
    name: str = "sen"
    _epochs: list[int] = field(default_factory=list[int])
    _scores: Records = field(default_factory=Records)
    _norms: Records = field(default_factory=Records)

    @torch.no_grad()
    def __call__(self, epoch: int, model: Any) -> None:
        if epoch % self.every:
            return
        scores_SV, vectors_SVD = self.scores(model), self.vectors(model)
        if scores_SV.dim() == 1:
            scores_SV, vectors_SVD = scores_SV[None], vectors_SVD[None]
        seed_S1 = torch.arange(len(scores_SV), device=scores_SV.device)[:, None]
        words_SW = self.words.to(scores_SV.device).expand(len(scores_SV), -1)
        self._epochs.append(epoch)
        self._scores.append(scores_SV[seed_S1, words_SW])
        self._norms.append(vectors_SVD[seed_S1, words_SW].norm(dim=-1))

    def tensors(self) -> dict[str, Tensor]:
        """Return `epoch` (E,), `score` and `norm` (E, S, W), and `words`."""
        return {
            "epoch": torch.tensor(self._epochs),
            "score": self._scores.stacked(),
            "norm": self._norms.stacked(),
            "words": self.words,
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume after what `tensors` returned earlier."""
        self._epochs = tensors["epoch"].tolist()
        self._scores = Records(tensors["score"])
        self._norms = Records(tensors["norm"])


@dataclass
class AttendedWords:
    """The word that is attended in each sentence, epoch by epoch.

    It is the word with the largest score (Section 5.2); of several one is taken at random, and
    the same one for the same epoch.
    """

    bags: Bags  # sentences, of one seed if the same for all
    scores: Read = _word_scores  # to (S, V), or (V,) for one model
    every: int = 10  # epochs between records
    name: str = "attended"
    _epochs: list[int] = field(default_factory=list[int])
    _words: Records = field(default_factory=Records)

    @torch.no_grad()
    def __call__(self, epoch: int, model: Any) -> None:
        if epoch % self.every == 0:
            self._epochs.append(epoch)
            self._words.append(self.attended(self.scores(model), epoch=epoch).int())

    def attended(self, scores: Float[Tensor, "*S V"], *, epoch: int = 0) -> Int[Tensor, "S N"]:
        """Return the word with the largest score in each sentence.

        Args:
            scores: of each word.
            epoch: seeds the choice among equal scores.
        """
        bags, scores_SV = self.bags.to(scores.device), scores.reshape(-1, scores.shape[-1])
        tokens_SNT = bags.tokens.expand(len(scores_SV), -1, -1)
        real_SNT = (
            torch.arange(tokens_SNT.shape[-1], device=scores.device) < bags.lengths[..., None]
        )
        score_SNT = scores_SV.gather(1, tokens_SNT.flatten(1)).view(tokens_SNT.shape)
        score_SNT.masked_fill_(~real_SNT, -torch.inf)
        generator = torch.Generator(scores.device).manual_seed(epoch)
        lot_SNT = torch.rand(score_SNT.shape, generator=generator, device=scores.device)
        best_SNT = score_SNT == score_SNT.amax(-1, keepdim=True)
        place_SN1 = lot_SNT.masked_fill_(~best_SNT, -1).argmax(-1, keepdim=True)
        return tokens_SNT.gather(-1, place_SN1)[..., 0]

    def tensors(self) -> dict[str, Tensor]:
        """Return `epoch` (E,) and `word` (E, S, N)."""
        return {"epoch": torch.tensor(self._epochs), "word": self._words.stacked()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume after what `tensors` returned earlier."""
        self._epochs, self._words = tensors["epoch"].tolist(), Records(tensors["word"])
