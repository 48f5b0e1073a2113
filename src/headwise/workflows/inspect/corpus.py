"""What is inspected on: lines, treebanks, or sentences made by a program, read from the start on.

A file is told apart by its name: `.conllu` (also packed, `.xz` or `.gz`) is a treebank, anything
else is text, a sentence or paragraph a line.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from headwise.config import suggestion
from headwise.text.coreference import COREFERENCE, coreference_parts, read_coreference
from headwise.text.corpus import read_lines
from headwise.text.frequencies import WordRanks
from headwise.text.treebank import Tree, parse_lines, read_treebank
from headwise.text.words import words_in
from headwise.workflows.inspect.sentence import Sentence

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
SPACE = re.compile(r"\s")
CHUNK = 256  # sentences sorted by length together, so that batches hold little padding
PACKED = (".xz", ".gz")
PIECE = 2**16  # characters of a long line whose words are counted together
PARSED = 2**16  # characters of a line that a parser reads
NO_TEXT = "There is no text to look at; give at least one line that is not blank."
Numbered = tuple[int, Sentence]  # a sentence and its number in the corpus
Given = str | Tree | Sentence


@dataclass(frozen=True)
class Corpus:
    """Sentences that can be read as often as `again` allows."""

    given: Callable[[], Iterator[Given]]
    again: bool = True  # whether reading a second time gives the same sentences
    fingerprint: str = ""  # of a file: another one is another corpus
    longest: int | None = None  # characters of a sentence that are read; None reads all

    def read(self) -> Iterator[Sentence]:
        """All sentences from the first one on."""
        return (_sentence(one, self.longest) for one in self.given())

    def within(self, characters: int) -> "Corpus":
        """The same sentences, each up to so many characters, so that no line takes much memory."""
        return replace(self, longest=characters)

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
        if next(self.given(), None) is None:
            raise ValueError(NO_TEXT)
        sentences = 0

        def words() -> Iterator[Sequence[str]]:
            nonlocal sentences
            for one in self.given():
                sentences += 1
                yield from _words(one)

        ranks = WordRanks.count(words())
        return Counts(sentences, ranks)


@dataclass(frozen=True)
class Counts:
    """What counting a corpus finds."""

    sentences: int
    ranks: WordRanks


def corpus_of(data: Iterable[Given] | Path, *, parser: str = "") -> Corpus:
    """A file, or lines, trees and sentences from a program.

    Args:
        data: a path; or anything to go through. What can be gone through only once, such as a
            generator, is not counted first, so that it has no rare words.
        parser: of lines of a text file, see `headwise.text.treebank.parse_lines`.
    """
    if isinstance(data, Path):
        return _file(data, parser)
    if isinstance(data, str):
        raise ValueError(
            f"Lines of text or a Path were wanted, got the text {data[:40]!r}; give [line] for one "
            "line, or pathlib.Path(name) for a file."
        )
    return Corpus(lambda: iter(data), again=iter(data) is not data)


def check_relations(corpus: Corpus, relations: Sequence[str]) -> None:
    """Refuse a relation that neither a treebank's first trees have nor Universal Dependencies.

    Args:
        corpus: of which the first sentences are read, if it can be read again.
        relations: that were asked for.
    """
    if not corpus.again or UNIVERSAL.issuperset(relations):
        return
    first = [_relations(one) for one in islice(corpus.given(), PEEKED + 1)]
    trees = [found for found in first if found is not None]
    if not trees:
        return
    known = UNIVERSAL.union(*trees)
    for relation in relations:
        kind, _, subtype = relation.partition(":")
        may_follow = subtype and kind in UNIVERSAL and len(first) > PEEKED
        if relation not in known and not may_follow:
            raise ValueError(
                f"The treebank has no relation {relation!r}. {suggestion(relation, sorted(known))}"
            )


def coreference_corpus(name: str) -> Corpus:
    """A coreference set of `headwise.text.coreference`: "gap" is all of it, "gap:test" a part."""
    known, _, part = name.partition(":")
    if known not in COREFERENCE:
        raise ValueError(f"There is no coreference set {known!r}. {suggestion(known, COREFERENCE)}")
    parts = [part] if part else coreference_parts(known)
    for each in parts:
        read_coreference(known, each)  # a set that is not there is said at once

    def given() -> Iterator[Sentence]:
        for each in parts:
            yield from map(Sentence.of_passage, read_coreference(known, each))

    return Corpus(given)


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
        return Corpus(lambda: read_treebank(path), fingerprint=_digest(path))
    next(read_lines(path))
    if parser:
        next(_parsed(islice(read_lines(path), 1), parser))  # what is missing is said
        return Corpus(lambda: _parsed(read_lines(path), parser), fingerprint=_digest(path))
    return Corpus(lambda: read_lines(path), fingerprint=_digest(path))


def _parsed(lines: Iterable[str], parser: str) -> Iterator[Tree]:
    read = (Sentence.of_text(line, longest=PARSED).text for line in lines)
    return parse_lines(read, parser=parser)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sentence(given: Given, longest: int | None = None) -> Sentence:
    if isinstance(given, str):
        return Sentence.of_text(given, longest=longest)
    whole = Sentence.of_tree(given) if isinstance(given, Tree) else given
    return whole if longest is None else whole.within(longest)


def _words(given: Given) -> Iterator[Sequence[str]]:
    """All words; those of a long line in several parts."""
    if isinstance(given, str):
        yield from map(words_in, _parts(given))
    else:
        yield given.words


def _parts(text: str) -> Iterator[str]:
    """A text in parts that end where a space does."""
    start = 0
    while start < len(text):
        space = SPACE.search(text, start + PIECE)
        end = space.end() if space else len(text)
        yield text[start:end]
        start = end


def _relations(given: Given) -> set[str] | None:
    tree = given.tree if isinstance(given, Sentence) else given
    return set(tree.relations) if isinstance(tree, Tree) else None
