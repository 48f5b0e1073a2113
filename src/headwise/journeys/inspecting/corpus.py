"""What is inspected on: lines, treebanks, or sentences made by a program, read from the start on.

A file is told apart by its name: `.conllu` (also packed, `.xz` or `.gz`) is a treebank, anything
else is text, a sentence or paragraph a line.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from headwise.config import suggestion
from headwise.data.coreference import read_coreference
from headwise.data.coreference_files import COREFERENCE, coreference_parts
from headwise.data.corpus import read_lines
from headwise.data.frequencies import WordRanks
from headwise.data.parsing import parse_lines
from headwise.data.treebank import Tree, read_treebank
from headwise.data.words import words_in
from headwise.journeys.inspecting.sentence import Sentence

__all__ = [
    "NO_TEXT",
    "Corpus",
    "Counts",
    "Numbered",
    "batched_by_length",
    "check_relations",
    "coreference_corpus",
    "corpus_of",
]

PEEKED = 1000  # trees in which a relation is looked for before the work
# of version 2, universaldependencies.org/u/dep
UNIVERSAL = frozenset(
    words_in(
        "acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det "
        "discourse dislocated expl fixed flat goeswith iobj list mark nmod nsubj nummod obj obl "
        "orphan parataxis punct reparandum root vocative xcomp"
    )
)
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

    def identified(self) -> "Corpus":
        """The same with a fingerprint of all its sentences, where it has none."""
        if self.fingerprint:
            return self
        if not self.again:
            raise ValueError(
                "Data that can be read only once cannot be told from others, so that no run can "
                "be kept of them; give a list of lines, or the Path of a file."
            )
        digest = hashlib.sha256()
        for sentence in self.read():
            digest.update(repr((sentence.text, sentence.spans, sentence.tree)).encode())
        return replace(self, fingerprint=digest.hexdigest())

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


def corpus_of(data: Iterable[str | Tree | Sentence] | Path, *, parser: str = "") -> Corpus:
    """A file, or lines, trees and sentences from a program.

    Args:
        data: a path; or anything to go through. What can be gone through only once, such as a
            generator, is not counted first, so that it has no rare words.
        parser: of lines of a text file, see `headwise.data.parsing.parse_lines`.
    """
    if isinstance(data, Path):
        return _file(data, parser)
    if isinstance(data, str):
        raise ValueError(
            f"Lines of text or a Path were wanted, got the text {data[:40]!r}; give [line] for one "
            "line, or pathlib.Path(name) for a file."
        )
    return Corpus(lambda: map(_sentence, data), again=iter(data) is not data)


def check_relations(corpus: Corpus, relations: Sequence[str]) -> None:
    """Refuse a relation that neither a treebank's first trees have nor Universal Dependencies.

    Args:
        corpus: of which the first sentences are read, if it can be read again.
        relations: that were asked for.
    """
    if not corpus.again or UNIVERSAL.issuperset(relations):
        return
    first = list(islice(corpus.read(), PEEKED + 1))
    trees = [sentence.tree for sentence in first if sentence.tree is not None]
    if not trees:
        return
    seen = {relation for tree in trees for relation in tree.relations}
    known = seen | UNIVERSAL
    for relation in relations:
        kind, _, subtype = relation.partition(":")
        may_follow = subtype and kind in UNIVERSAL and len(first) > PEEKED
        if relation not in known and not may_follow:
            raise ValueError(
                f"The treebank has no relation {relation!r}. {suggestion(relation, sorted(known))}"
            )


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


def _file(path: Path, parser: str) -> Corpus:
    treebank = Path(path.name.removesuffix(path.suffix) if path.suffix in PACKED else path.name)
    if treebank.suffix == ".conllu" and parser:
        raise ValueError(
            f"{path.name} has trees of its own, so that there is nothing to parse; leave out "
            f"parser={parser}, or give plain text."
        )
    if treebank.suffix == ".conllu":
        trees = read_treebank(path)
        next(trees)  # what is no treebank is said at once
        return Corpus(lambda: map(Sentence.of_tree, read_treebank(path)), fingerprint=_digest(path))
    next(read_lines(path))
    if parser:
        next(parse_lines(islice(read_lines(path), 1), parser=parser))  # what is missing is said
        return Corpus(lambda: _parsed(path, parser), fingerprint=_digest(path))
    return Corpus(lambda: map(Sentence.of_text, read_lines(path)), fingerprint=_digest(path))


def _parsed(path: Path, parser: str) -> Iterator[Sentence]:
    return map(Sentence.of_tree, parse_lines(read_lines(path), parser=parser))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sentence(given: str | Tree | Sentence) -> Sentence:
    if isinstance(given, Tree):
        return Sentence.of_tree(given)
    return Sentence.of_text(given) if isinstance(given, str) else given
