"""What `inspect` looks at: a model, and how sentences become its forward passes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headwise.recording.reading import Words
from headwise.workflows.inspect.sentence import Sentence

__all__ = [
    "MAX_TOKENS",
    "NO_WORD",
    "Output",
    "Predicts",
    "Prepared",
    "Subject",
    "check_special",
    "no_token",
    "without",
    "word_numbers",
]

NO_WORD = -1  # the number at special tokens and padding
MAX_TOKENS = 512  # of a sentence, where a model names no limit

# the next word, the word under a mask, a class of the whole text, a class of each word; or nothing
Predicts = Literal["next", "masked", "class", "label", "nothing"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Some sentences, ready for a forward pass."""

    inputs: Mapping[str, Tensor]  # each with an axis of sentences in front
    words: Mapping[str, Words]  # of each stack
    texts: Mapping[str, Sequence[Sequence[str]]]  # stack -> of each sentence, its words
    tokens: Sequence[Mapping[str, Sequence[str]]]  # of each sentence, by stack: how to show them
    truncated: int  # sentences that were cut to fit the model
    unfinished: int = 0  # translations that were cut at their limit

    @property
    def last(self) -> str:
        """The stack that predicts."""
        return "decoder" if "decoder" in self.words else "encoder"


@dataclass(frozen=True, eq=False)
class Output:
    """What a forward pass gave, and what the largest of the values means."""

    values: Tensor  # (B, T, V) scores of words, (B, C) of classes, or (B, T, M) hidden states
    predicts: Predicts  # what the largest value means


@runtime_checkable
class Subject(Protocol):
    """A model and how to read sentences with it."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def room(self) -> int:
        """Most tokens of a sentence that the model reads; longer ones are cut."""
        ...

    @property
    def knows_words(self) -> bool:
        """Whether it is known which word a piece belongs to; if not, every piece is a word."""
        ...

    @property
    def reads_references(self) -> bool:
        """Whether it reads the translations that sentences come with, and not its own."""
        ...

    @property
    def mask_id(self) -> int | None:
        """The token that stands for a hidden word, in a model that predicts hidden words."""
        ...

    @property
    def description(self) -> bytes:
        """All that decides, beside the weights, what it computes: settings, and its words."""
        ...

    def prepare(self, sentences: Sequence[Sentence]) -> Prepared:
        """Turn sentences into inputs. A translator translates them: its decoder needs words."""
        ...

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        """One pass."""
        ...

    def look(self, inputs: Mapping[str, Tensor]) -> None:
        """One pass for those who watch: through all sites, with no prediction if it can be."""
        ...


def check_special(special: Iterable[str], known: Collection[str]) -> None:
    """Refuse tokens that are to count as no words, but that a vocabulary does not have."""
    for token in special:
        if token not in known:
            close = get_close_matches(token, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"Special tokens must be tokens of the model, but {token!r} is none.{hint} They "
                "are written as its vocabulary has them."
            )


def no_token(text: str) -> ValueError:
    """The error about a line in which a tokenizer finds nothing."""
    return ValueError(f"The tokenizer finds no token in {text[:40]!r}; leave such lines out.")


def word_numbers(rows: Sequence[Sequence[int]], *, width: int, device: torch.device) -> Words:
    """The words of positions, a list a sentence; what follows its end is no word."""
    filled = [[*row, *[NO_WORD] * (width - len(row))] for row in rows]
    return Words(torch.tensor(filled, dtype=torch.long, device=device).reshape(len(rows), width))


def without(
    rows: Sequence[Sequence[int]], names: Sequence[Sequence[str]], special: frozenset[str]
) -> list[list[int]]:
    """The words of positions, none where the token is one of the special ones."""
    return [
        [NO_WORD if name in special else number for number, name in zip(*pair, strict=True)]
        for pair in zip(rows, names, strict=True)
    ]
