"""Recorders of words through training: score and embedding norm, and which words are attended.

They ask a model for two tables only, the score and the vector of each word, so they follow any
classifier whose words have both: hand in functions that read them. Call a recorder with (epoch,
model) as often as you like; `headwise.training.descend` does, keeps what was recorded in its
checkpoints, and writes it to the run's `trace/<name>/curves.safetensors`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise_papers.data.bags import Bags

__all__ = ["AttendedWords", "Records", "SenCurves", "stack_records"]

BLOCK_ROWS, BLOCK_NUMBERS = 1024, 2**20  # the most a block of records holds

Read = Callable[[Any], Tensor]  # from a model to a table of its words, with or without a seed axis


def _word_scores(model: Any) -> Tensor:
    return cast(Tensor, model.word_scores())


def _word_vectors(model: Any) -> Tensor:
    return cast(Tensor, model.word_vectors())


class Records:
    """Tensors of one shape, one an epoch, copied into blocks that are made once.

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
        """Copy a record; nothing waits for its device."""
        if self._used == len(self._block):
            self._begin_block(record)
        self._block[self._used] = record.detach()
        self._used += 1

    def last(self) -> Tensor:
        """The latest record."""
        return self._block[self._used - 1] if self._used else self._full[-1][-1]

    def stacked(self) -> Tensor:
        """A copy of all records as one tensor on the CPU, records on the leading axis."""
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
        """What was recorded: `epoch` (E,), `score` and `norm` (E, S, W), and `words`."""
        return {
            "epoch": torch.tensor(self._epochs),
            "score": self._scores.stacked(),
            "norm": self._norms.stacked(),
            "words": self.words,
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on after what `tensors` gave earlier."""
        self._epochs = tensors["epoch"].tolist()
        self._scores = Records(tensors["score"])
        self._norms = Records(tensors["norm"])


@dataclass
class AttendedWords:
    """Mean topic purity and occurrence of the words that are attended, epoch by epoch.

    In each sentence the attended word is the one with the largest score (Section 5.2). The first
    column is over all sentences (Fig. 7), the others over those that contain each word of `among`
    (Fig. 6).
    """

    bags: Bags  # the sentences, of one seed if the same for all
    purity: Float[Tensor, "*S V"]  # of each word, see headwise_papers.ops.sen.topic_purity
    occurrence: Tensor  # (*S, V) in how many sentences each word is
    among: Int[Tensor, " G"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    scores: Read = _word_scores  # to (S, V), or (V,) for one model
    every: int = 10  # epochs between records
    ties: Literal["random", "first"] = "random"  # which of several words with the largest score
    seed: int = 0  # of random ties
    name: str = "attended"
    _epochs: list[int] = field(default_factory=list[int])
    _purity: Records = field(default_factory=Records)
    _occurrence: Records = field(default_factory=Records)

    def __post_init__(self) -> None:
        tokens_SNT, lengths_SN = self.bags.tokens, self.bags.lengths
        place_T = torch.arange(tokens_SNT.shape[-1], device=tokens_SNT.device)
        self._real_SNT = place_T < lengths_SN[..., None]
        groups = [torch.ones_like(lengths_SN, dtype=torch.bool)]
        for word in self.among.tolist():
            groups.append(((tokens_SNT == word) & self._real_SNT).any(-1))
            if not bool(groups[-1].any(-1).all()):
                raise ValueError(f"Word {word} is in no sentence; leave it out of `among`.")
        self._member_SNG = torch.stack(groups, dim=-1).double()

    @torch.no_grad()
    def __call__(self, epoch: int, model: Any) -> None:
        if epoch % self.every:
            return
        word_SN = self.attended(self.scores(model), epoch=epoch)
        self._epochs.append(epoch)
        self._purity.append(self._mean(self.purity, word_SN))
        self._occurrence.append(self._mean(self.occurrence, word_SN))

    def attended(self, scores: Float[Tensor, "*S V"], *, epoch: int = 0) -> Int[Tensor, "S N"]:
        """The word with the largest score in each sentence.

        Args:
            scores: of each word.
            epoch: random ties fall the same way for the same epoch.
        """
        scores_SV = scores.to(self.bags.tokens.device)
        scores_SV = scores_SV[None] if scores_SV.dim() == 1 else scores_SV
        seeds = len(scores_SV)
        tokens_SNT = self.bags.tokens.expand(seeds, -1, -1)
        score_SNT = scores_SV.gather(1, tokens_SNT.flatten(1)).view(tokens_SNT.shape)
        score_SNT.masked_fill_(~self._real_SNT, -torch.inf)
        if self.ties == "random":
            generator = torch.Generator(scores_SV.device).manual_seed(self.seed + epoch)
            lot_SNT = torch.rand(score_SNT.shape, generator=generator, device=scores_SV.device)
            best_SNT = score_SNT == score_SNT.amax(-1, keepdim=True)
            score_SNT = lot_SNT.masked_fill_(~best_SNT, -1)
        place_SN1 = score_SNT.argmax(-1, keepdim=True)
        return tokens_SNT.gather(-1, place_SN1)[..., 0]

    def tensors(self) -> dict[str, Tensor]:
        """`epoch` (E,), `purity` and `occurrence` (E, S, 1 + G), and `among`."""
        return {
            "epoch": torch.tensor(self._epochs),
            "purity": self._purity.stacked(),
            "occurrence": self._occurrence.stacked(),
            "among": self.among,
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on after what `tensors` gave earlier."""
        self._epochs = tensors["epoch"].tolist()
        self._purity = Records(tensors["purity"])
        self._occurrence = Records(tensors["occurrence"])

    def _mean(self, measure: Tensor, word_SN: Tensor) -> Tensor:
        """(S, 1 + G): the mean of a measure of words over the sentences of each group."""
        measure_SV = measure.to(word_SN.device).double().expand(len(word_SN), -1)
        value_SN1 = measure_SV.gather(1, word_SN)[..., None]
        return (value_SN1 * self._member_SNG).sum(1) / self._member_SNG.sum(1)


def stack_records(records: list[Tensor]) -> Tensor:
    """Records of one shape as one tensor on the CPU, with one wait for the device."""
    if not records:
        return torch.zeros(0)
    # what was restored lies on the CPU, what came since on the device
    return torch.stack([record.to(records[-1].device) for record in records]).cpu()
