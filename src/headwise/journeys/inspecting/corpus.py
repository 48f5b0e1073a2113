"""What is inspected on: lines, treebanks, or sentences made by a program, read from the start on.

A file is told apart by its name: `.conllu` (also packed, `.xz` or `.gz`) is a treebank, anything
else is text, a sentence or paragraph a line.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headwise.config import suggestion
from headwise.data.coreference import read_coreference
from headwise.data.coreference_files import COREFERENCE, coreference_parts
from headwise.data.corpus import read_lines
from headwise.data.frequencies import WordRanks
from headwise.data.treebank import Tree, read_treebank
from headwise.journeys.inspecting.sentence import Sentence

__all__ = [
    "NO_TEXT",
    "Corpus",
    "Counts",
    "Numbered",
    "batched_by_length",
    "coreference_corpus",
    "corpus_of",
]

CHUNK = 256  # sentences sorted by length together, so that batches hold little padding
PACKED = (".xz", ".gz")
NO_TEXT = "There is no text to look at; give at least one line that is not blank."
Numbered = tuple[int, Sentence]  # a sentence and its number in the corpus


@dataclass(frozen=True)
class Corpus:
    """Sentences that can be read as often as `again` allows."""

    read: Callable[[], Iterator[Sentence]]
    again: bool = True  # whether reading a second time gives the same sentences
    fingerprint: str = ""  # of a file: another one is another corpus

    def count(self) -> "Counts | None":
        """How many sentences there are and how common words; None if it is read only once."""
        if not self.again:
            return None
        if next(self.read(), None) is None:
            raise ValueError(NO_TEXT)
        sentences = 0

        def words() -> Iterator[Sequence[str]]:
            nonlocal sentences
            for sentence in self.read():
                sentences += 1
                yield sentence.words

        ranks = WordRanks.count(words())
        return Counts(sentences, ranks)


@dataclass(frozen=True)
class Counts:
    """What counting a corpus finds."""

    sentences: int
    ranks: WordRanks


def corpus_of(data: Iterable[str | Tree | Sentence] | Path) -> Corpus:
    """A file, or lines, trees and sentences from a program.

    Args:
        data: a path; or anything to go through. What can be gone through only once, such as a
            generator, is not counted first, so that it has no rare words.
    """
    if isinstance(data, Path):
        return _file(data)
    if isinstance(data, str):
        raise ValueError(
            f"Lines of text or a Path were wanted, got the text {data[:40]!r}; give [line] for one "
            "line, or pathlib.Path(name) for a file."
        )
    return Corpus(lambda: map(_sentence, data), again=iter(data) is not data)


def coreference_corpus(name: str) -> Corpus:
    """A coreference set of `headwise.data.coreference`: "gap" is all of it, "gap:test" a part."""
    known, _, part = name.partition(":")
    if known not in COREFERENCE:
        raise ValueError(f"There is no coreference set {known!r}. {suggestion(known, COREFERENCE)}")
    parts = [part] if part else coreference_parts(known)
    for each in parts:
        read_coreference(known, each)  # a set that is not there is said at once

    def read() -> Iterator[Sentence]:
        for each in parts:
            yield from map(Sentence.of_passage, read_coreference(known, each))

    return Corpus(read)


def batched_by_length(
    sentences: Iterable[Sentence], size: int, *, first: int = 0
) -> Iterator[list[list[Numbered]]]:
    """Chunks of a corpus, each in batches of similar length; memory does not grow with it.

    Args:
        sentences: numbered from 0 on.
        size: sentences of a batch.
        first: the chunk to begin with; those before it are read and left out.
    """
    if size < 1:
        raise ValueError(f"A batch holds at least one sentence, got {size}.")
    stream = enumerate(sentences)
    for number in range(first):
        assert len(list(islice(stream, CHUNK))) == CHUNK, f"chunk {number} was whole before"
    while chunk := sorted(islice(stream, CHUNK), key=lambda pair: len(pair[1].text)):
        yield [chunk[start : start + size] for start in range(0, len(chunk), size)]


def _file(path: Path) -> Corpus:
    treebank = Path(path.name.removesuffix(path.suffix) if path.suffix in PACKED else path.name)
    if treebank.suffix == ".conllu":
        trees = read_treebank(path)
        next(trees)  # what is no treebank is said at once
        return Corpus(lambda: map(Sentence.of_tree, read_treebank(path)), fingerprint=_digest(path))
    next(read_lines(path))
    return Corpus(lambda: map(Sentence.of_text, read_lines(path)), fingerprint=_digest(path))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sentence(given: str | Tree | Sentence) -> Sentence:
    if isinstance(given, Tree):
        return Sentence.of_tree(given)
    return Sentence.of_text(given) if isinstance(given, str) else given
