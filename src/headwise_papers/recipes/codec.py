"""Between text and what a translator reads and writes: words, or pieces of words."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headwise.recording import Run
from headwise_papers.data.subword import CodecPair, SubwordCodec
from headwise_papers.data.vocabulary import Vocabulary

__all__ = ["Codec", "InPieces", "InWords", "load_codecs", "read_vocabulary", "save_codecs"]

WORD_FILES = "source_vocabulary.json", "target_vocabulary.json"
PIECE_FILES = "pieces.model", "source_pieces.model"  # of both languages, or of each its own


@runtime_checkable
class Codec(Protocol):
    """Text to ids and back. No mark is added; ids below 4 are the marks of `data.vocabulary`."""

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the first end mark."""
        ...

    def tokens(self, text: str) -> list[str]:
        """How to show the ids of a text, a string for each."""
        ...

    def names(self, ids: Iterable[int]) -> list[str]:
        """How to show ids that have no text, because a model made them."""
        ...


@dataclass(frozen=True)
class InWords:
    """Text in words, parted by white space.

    >>> codec = InWords(Vocabulary.from_sentences([["the", "dog"]]))
    >>> codec.encode("the cat"), codec.tokens("the cat"), codec.decode([5, 4])
    ([5, 3], ['the', 'cat'], 'the dog')
    """

    vocabulary: Vocabulary

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.encode(text.split())

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.vocabulary.decode(ids))

    def tokens(self, text: str) -> list[str]:
        return text.split()

    def names(self, ids: Iterable[int]) -> list[str]:
        return self.vocabulary.decode(ids)


@dataclass(frozen=True)
class InPieces:
    """Text in pieces of words; "▁" stands for the space before a piece."""

    pieces: SubwordCodec

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return self.pieces.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self.pieces.decode(ids)

    def tokens(self, text: str) -> list[str]:
        return self.names(self.encode(text))

    def names(self, ids: Iterable[int]) -> list[str]:
        return [self.pieces.piece(number) for number in ids]


def save_codecs(run: Run, source: Codec, target: Codec) -> None:
    """Write the codecs of both languages, which must be of one kind, into a run."""
    if isinstance(source, InWords) and isinstance(target, InWords):
        for name, codec in zip(WORD_FILES, (source, target), strict=True):
            run.write_text(name, codec.vocabulary.to_json())
    elif isinstance(source, InPieces) and isinstance(target, InPieces):
        CodecPair(source.pieces, target.pieces).save(run.folder)
    else:
        raise ValueError(
            "Words and pieces are the codecs that a run can hold, the same on both sides, got "
            f"{type(source).__name__} and {type(target).__name__}."
        )


def load_codecs(run: Run) -> tuple[Codec, Codec]:
    """The codecs of source and target that `save_codecs` wrote."""
    if any(run.has(name) for name in PIECE_FILES):
        both = CodecPair.load(run.folder)
        return InPieces(both.source), InPieces(both.target)
    if not all(run.has(name) for name in WORD_FILES):
        raise ValueError(
            f"{run.folder} holds no translator: neither pieces nor words are there; give the "
            "folder of a run of `headwise train translation` or `headwise demo`."
        )
    source, target = (InWords(read_vocabulary(run, name)) for name in WORD_FILES)
    return source, target


def read_vocabulary(run: Run, name: str) -> Vocabulary:
    """Return the vocabulary in a file of a run; one that was changed is refused by its name."""
    text = run.read_text(name)
    try:
        return Vocabulary.from_json(text)
    except ValueError as problem:
        raise ValueError(f"{run.path(name)} cannot be used: {problem}") from None
