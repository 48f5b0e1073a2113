"""Subjects of an inspection: a model, and how sentences become its forward passes."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headwise.recording.reading import Words
from headwise.workflows.inspect.sentence import Sentence

NO_WORD = -1  # the number at special tokens and padding
MAX_TOKENS = 512  # of a sentence, where a model names no limit

# the next token, a masked token, a class of the text, a class of each token; or nothing
Predicts = Literal["next", "masked", "class", "label", "nothing"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch of sentences, ready for a forward pass."""

    inputs: Mapping[str, Tensor]  # each with an axis of sentences in front
    words: Mapping[str, Words]  # of each stack
    texts: Mapping[str, Sequence[Sequence[str]]]  # stack -> the words of each sentence
    tokens: Sequence[Mapping[str, Sequence[str]]]  # of each sentence: stack -> tokens as text
    truncated: int  # sentences that were cut to fit the model
    unfinished: int = 0  # translations that reached the maximum length

    @property
    def last(self) -> str:
        """The stack that predicts."""
        return "decoder" if "decoder" in self.words else "encoder"


@dataclass(frozen=True, eq=False)
class Output:
    """The output of a forward pass, and what its largest values predict."""

    values: Tensor  # (B, T, V) scores of words, (B, C) of classes, or (B, T, M) hidden states
    predicts: Predicts


@runtime_checkable
class Subject(Protocol):
    """A model, and how it reads sentences."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def max_tokens(self) -> int:
        """Maximum length of a sentence; longer sentences are truncated."""
        ...

    @property
    def knows_words(self) -> bool:
        """Whether it is known which word a token belongs to; if not, every token is a word."""
        ...

    @property
    def reads_references(self) -> bool:
        """Whether it reads the translations that sentences come with, and not its own."""
        ...

    @property
    def mask_id(self) -> int | None:
        """The mask token of a masked language model."""
        ...

    @property
    def description(self) -> bytes:
        """Settings and vocabulary: all that decides the output, except the weights."""
        ...

    def prepare(self, sentences: Sequence[Sentence]) -> Prepared:
        """Turn sentences into inputs. A translator also generates what its decoder reads."""
        ...

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        """Run the whole model."""
        ...

    def attend(self, inputs: Mapping[str, Tensor]) -> None:
        """Run all sites, for observers; the layers that predict may be left out."""
        ...


def check_special(special: Iterable[str], known: Collection[str]) -> None:
    """Raise if a token that is not to count as a word is not in the vocabulary."""
    for token in special:
        if token not in known:
            close = get_close_matches(token, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"Special tokens must be tokens of the model, but {token!r} is none.{hint} They "
                "are written as its vocabulary has them."
            )


def no_token(text: str) -> ValueError:
    """Return the error about a line in which a tokenizer finds nothing."""
    return ValueError(f"The tokenizer finds no token in {text[:40]!r}; leave such lines out.")


def word_numbers(rows: Sequence[Sequence[int]], *, width: int, device: torch.device) -> Words:
    """Make `Words` from one list of word numbers per sentence, padded to a width."""
    filled = [[*row, *[NO_WORD] * (width - len(row))] for row in rows]
    return Words(torch.tensor(filled, dtype=torch.long, device=device).reshape(len(rows), width))


def without(
    rows: Sequence[Sequence[int]], names: Sequence[Sequence[str]], special: frozenset[str]
) -> list[list[int]]:
    """Replace the word numbers of special tokens by `NO_WORD`."""
    return [
        [NO_WORD if name in special else number for number, name in zip(*pair, strict=True)]
        for pair in zip(rows, names, strict=True)
    ]


def check_finite(model: nn.Module) -> None:
    """Raise if a parameter is nan or infinite: nothing could be measured of such a model."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(
                f"The parameter {name} of {type(model).__name__} holds values that are nan or "
                "infinite; its training may have diverged. Give a model from before that."
            )


def model_digest(subject: Subject) -> str:
    """Return a fingerprint of all weights, of the settings and of the tokenizer."""
    digest = hashlib.sha256(subject.description)
    for name, tensor in subject.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
