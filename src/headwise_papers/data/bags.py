"""Labelled sentences as tensors, for one seed or for many that are trained at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["Bags"]


@dataclass(frozen=True)
class Bags:
    """Sentences of word numbers with a label each, S seeds on the leading axis.

    >>> bags = Bags.of([[5, 6, 7], [5]], [0, 1])
    >>> bags.tokens
    tensor([[[5, 6, 7],
             [5, 0, 0]]])
    >>> bags.lengths
    tensor([[3, 1]])
    """

    tokens: Int[Tensor, "S N T"]  # padded with anything; `lengths` says what is real
    lengths: Int[Tensor, "S N"]
    labels: Int[Tensor, "S N"]

    def __post_init__(self) -> None:
        seeds, sentences, width = self.tokens.shape
        for name, given in (("lengths", self.lengths), ("labels", self.labels)):
            if given.shape != (seeds, sentences):
                raise ValueError(
                    f"{name} must have shape {(seeds, sentences)}, one value a sentence, "
                    f"got {tuple(given.shape)}."
                )
        if bool((self.lengths < 1).any() or (self.lengths > width).any()):
            raise ValueError(
                f"A sentence has 1 to {width} words here, got lengths from "
                f"{self.lengths.min().item()} to {self.lengths.max().item()}; "
                "drop empty sentences."
            )

    @staticmethod
    def of(sentences: Sequence[Sequence[int]], labels: Sequence[int]) -> "Bags":
        """Build one seed's sentences from lists of word numbers, padded with 0."""
        if not sentences:
            raise ValueError("At least one sentence is wanted, got none.")
        rows = [torch.tensor(words, dtype=torch.long) for words in sentences]
        return Bags(
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)[None],
            torch.tensor([[len(words) for words in sentences]]),
            torch.tensor([labels]),
        )

    @staticmethod
    def stack(bags: Sequence["Bags"]) -> "Bags":
        """Several sets of the same number of sentences of the same width, one after the other."""
        return Bags(
            torch.cat([part.tokens for part in bags]),
            torch.cat([part.lengths for part in bags]),
            torch.cat([part.labels for part in bags]),
        )

    @property
    def seeds(self) -> int:
        """How many seeds there are sentences for."""
        return len(self.tokens)

    def seed(self, index: int) -> "Bags":
        """Return the sentences of one seed, still with a leading axis."""
        own = slice(index, index + 1)
        return Bags(self.tokens[own], self.lengths[own], self.labels[own])

    def repeated(self, seeds: int) -> "Bags":
        """Repeat the sentences for several seeds, without copying."""
        if self.seeds != 1:
            raise ValueError(f"Sentences of one seed can be repeated, got those of {self.seeds}.")
        return Bags(*(x.expand(seeds, *x.shape[1:]) for x in vars(self).values()))

    def to(self, device: torch.device | str) -> "Bags":
        """Move the sentences to another device."""
        return Bags(*(x.to(device) for x in vars(self).values()))
