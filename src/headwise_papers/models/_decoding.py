"""What greedy and beam search share: the model's side of decoding, and when sentences leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise_papers.models.cache import Cache, FixedCache

LOOK_EVERY = 4  # steps on a GPU, as looking for sentences that have ended makes the host wait
LEAVE_SHARE = 1 / 8  # of the sentences have ended when they leave, as leaving copies the others


@runtime_checkable
class Translator(Protocol):
    """What decoding needs of a model; `headwise_papers.models.Transformer` is one.

    With beams, `decode` is given the hypotheses of a sentence as neighbouring rows, `cache.beams`
    of them, and memory and lengths repeated for each.

    A model may also have `fixed_room`, a number of positions. On a GPU, searches for outputs of up
    to so many words hand a `FixedCache` to `decode` and replay one call of it for every word. It
    must be 0 wherever what `decode` does in Python matters, as it does where heads are observed.
    """

    training: bool

    def encode(self, source: Tensor, source_lengths: Tensor) -> Tensor: ...

    def decode(
        self, target: Tensor, memory: Tensor, source_lengths: Tensor, *, cache: Any = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """One output sentence."""

    ids: list[int]  # without the marks of beginning and end
    log_probability: float  # summed over the words and, if it ended, the end mark
    ended: bool  # False when it was cut at max_length


class State:
    """The model's side of decoding: memory, lengths and cache, a row for each open hypothesis.

    Axes: N unfinished sentences, W beams of each, X = N W rows.
    """

    def __init__(
        self, model: Translator, source_B: Tensor, lengths_B: Tensor, *, beams: int = 1
    ) -> None:
        self.model = model
        self.memory_XKM = model.encode(source_B, lengths_B).repeat_interleave(beams, dim=0)
        self.lengths_X = lengths_B.repeat_interleave(beams)
        self.cache: Cache | FixedCache = Cache(beams=beams)
        self.sentences = list(range(len(lengths_B)))  # unfinished ones, as numbered in the batch

    def logits(self, last_X1: Int[Tensor, "X 1"]) -> Float[Tensor, "X V"]:
        """Scores of the next word, given the last one; the cache knows the others."""
        logits_X1V = self.model.decode(last_X1, self.memory_XKM, self.lengths_X, cache=self.cache)
        return logits_X1V[:, -1].float()

    def without(self, leave: Sequence[int]) -> Int[Tensor, " N"]:
        """Forget these sentences; the places of those that stay."""
        gone = set(leave)
        stay = [n for n in range(len(self.sentences)) if n not in gone]
        self.sentences = [self.sentences[n] for n in stay]
        stay_N = torch.tensor(stay, dtype=torch.long, device=self.lengths_X.device)
        beams = self.cache.beams
        row_X = (stay_N[:, None] * beams + torch.arange(beams, device=stay_N.device)).flatten()
        self.memory_XKM, self.lengths_X = self.memory_XKM[row_X], self.lengths_X[row_X]
        self.cache.reorder(row_X)
        return stay_N


def leaving(over_N: Tensor, *, step: int, max_length: int) -> list[int]:
    """Which sentences leave after a step: those that have ended, if many have; all at the end."""
    if step == max_length:
        return list(range(len(over_N)))
    if over_N.device.type != "cpu" and step % LOOK_EVERY:
        return []
    over = over_N.tolist()
    ended = [n for n, is_over in enumerate(over) if is_over]
    return ended if len(ended) >= LEAVE_SHARE * len(over) else []


def hypothesis(words: list[int], total: float, *, eos: int) -> Hypothesis:
    """A sentence as long as it was followed, filled up with end marks if it ended."""
    ended = eos in words
    return Hypothesis(words[: words.index(eos)] if ended else words, total, ended)
