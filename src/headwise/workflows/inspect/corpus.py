"""Corpora: files and sentences that a model is inspected on, and samples drawn from them.

The name of a file says what it is: `.conllu` (also packed, `.xz` or `.gz`) is a treebank, anything
else is text with one sentence or paragraph per line.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappush, heappushpop
from itertools import chain, islice
from pathlib import Path

from headwise.analysis.gold import links_in
from headwise.config import suggestion
from headwise.recording.checksums import digest
from headwise.text.corpus import all_lines, read_lines
from headwise.text.frequencies import WordRanks
from headwise.text.mentions import coreference_set
from headwise.text.treebank import Tree, parse_lines, read_treebank
from headwise.text.words import words_in
from headwise.workflows.inspect.sentence import Linked, Sentence

PEEKED = 1000  # trees in which a relation is searched for before the work
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
PART = 2**16  # characters of a long line whose words are counted together
PARSED = 2**16  # characters of a line that a parser reads
KEPT = 2**22  # characters of a corpus that stays in memory after it was read
NO_TEXT = "There is no text to read; give at least one line that is not blank."
Numbered = tuple[int, Sentence]  # a sentence and its number in the corpus
Given = str | Tree | Sentence


class _Source:
    """Sentences read from a file, and from memory the next time if they are few enough."""

    def __init__(self, read: Callable[[], Iterator[Given]]) -> None:
        self._read = read
        self._kept: list[Given] | None = None

    def __call__(self) -> Iterator[Given]:
        return iter(self._kept) if self._kept is not None else self._reading()

    def _reading(self) -> Iterator[Given]:
        kept: list[Given] = []
        characters = 0
        for one in self._read():
            characters += len(one) if isinstance(one, str) else len(one.text)
            if characters <= KEPT:
                kept.append(one)
            else:
                kept.clear()
            yield one
        if characters <= KEPT:
            self._kept = kept


@dataclass(frozen=True)
class Corpus:
    """Sentences that can be read as often as `again` allows."""

    given: Callable[[], Iterator[Given]]
    again: bool = True  # whether reading a second time gives the same sentences
    fingerprint: str = ""  # of a file: another one is another corpus
    longest: int | None = None  # characters of a sentence that are read; None reads all

    def read(self) -> Iterator[Sentence]:
        """Yield all sentences from the first one on."""
        return (_sentence(one, self.longest) for one in self.given())

    def within(self, characters: int) -> "Corpus":
        """Return the same sentences, each cut to so many characters."""
        return replace(self, longest=characters)

    def identified(self) -> "Corpus":
        """Return the corpus with a fingerprint of all its sentences."""
        if self.fingerprint:
            return self
        if not self.again:
            raise ValueError(
                "Data that can be read only once cannot be told from others, so that no run can "
                "be kept of them; give a list of lines, or the Path of a file."
            )
        found = hashlib.sha256()
        for sentence in self.read():
            found.update(repr((sentence.text, sentence.spans, sentence.tree)).encode())
        return replace(self, fingerprint=found.hexdigest())

    def size(self) -> int:
        """Return how many sentences there are; reads all of them."""
        return sum(1 for _ in self.given())

    def count(self) -> "Counts | None":
        """Count sentences and words; None for a corpus that can be read only once."""
        if not self.again:
            return None
        given, sentences = self.given(), 0
        if (first := next(given, None)) is None:
            raise ValueError(NO_TEXT)

        def words() -> Iterator[Sequence[str]]:
            nonlocal sentences
            for one in chain([first], given):
                sentences += 1
                yield from _words(one)

        ranks = WordRanks.count(words())
        return Counts(sentences, ranks)


@dataclass(frozen=True)
class Counts:
    """Number of sentences of a corpus, and ranks of its words by frequency."""

    sentences: int
    ranks: WordRanks


def corpus_of(data: Iterable[Given] | Path, *, parser: str = "") -> Corpus:
    """Make a corpus of a file, or of lines, trees and sentences.

    Args:
        data: a path or an iterable. A generator can be read only once, so its words are not
            counted first and it has no rare words.
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
    """Raise for a relation that neither the first trees nor Universal Dependencies have.

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
    """Read a set of the entry points `headwise.coreference`: "gap" is all, "gap:test" a part."""
    known, _, part = name.partition(":")
    found = coreference_set(known)
    parts = [part] if part else found.parts
    for each in parts:
        found.read(each)  # raises at once if the set is not there

    def given() -> Iterator[Sentence]:
        for each in parts:
            yield from map(Sentence.of_passage, found.read(each))

    return Corpus(_Source(given))


def aligned_corpus(data: Path, references: Path, alignments: Path) -> Corpus:
    """Read lines, their translations and the links between their words, without blank pairs.

    Words are separated by spaces, as in gold alignments.

    Args:
        data: the lines, plain text; all three files may be packed.
        references: one translation per line.
        alignments: links such as "0-0 1-2" on each line, in the Pharaoh format: source-target,
            counted from 0.
    """
    files = (data, references, alignments)
    for path in files:
        if ".conllu" in path.suffixes:
            raise ValueError(f"Alignments go with lines of plain text, but {path} is a treebank.")
    lines = [all_lines(path) for path in files]
    if len(set(map(len, lines))) > 1:
        counts = ", ".join(f"{p.name} {len(own)}" for p, own in zip(files, lines, strict=True))
        raise ValueError(f"Alignments need files of as many lines, got {counts}.")
    rows = enumerate(zip(*lines, strict=True), start=1)
    sentences = [
        _linked_sentence(row, f"{alignments}, line {number}")
        for number, row in rows
        if row[0].strip() and row[1].strip()
    ]
    whole = "\0".join("\n".join(own) for own in lines)
    return Corpus(lambda: iter(sentences), fingerprint=hashlib.sha256(whole.encode()).hexdigest())


def batched_by_length(
    sentences: Iterable[Sentence], size: int, *, first: int = 0
) -> Iterator[list[list[Numbered]]]:
    """Yield chunks of a corpus, each in batches of similar length, in constant memory.

    Args:
        sentences: numbered from 0 on.
        size: sentences in a batch.
        first: the chunk to begin with; chunks before it are read and skipped.
    """
    if size < 1:
        raise ValueError(f"A batch holds at least one sentence, got {size}.")
    stream = enumerate(sentences)
    for number in range(first):
        assert len(list(islice(stream, CHUNK))) == CHUNK, f"chunk {number} was whole before"
    while chunk := sorted(islice(stream, CHUNK), key=lambda pair: len(pair[1].text)):
        yield [chunk[start : start + size] for start in range(0, len(chunk), size)]


@dataclass
class Sample:
    """A random sample of a corpus, and its first sentences, chosen while it is read.

    Every sentence draws a number that follows from the seed and its place alone; the smallest
    numbers are the sample. So memory is constant, and reading again gives the same sample.

    >>> sample = Sample(2, first=1, seed=0)
    >>> passed = list(sample.watch(Sentence.of_text(f"Dog {n} ran.") for n in range(9)))
    >>> len(passed), [number for number, _ in sample.drawn], len(sample.beginning)
    (9, [7, 5], 1)
    """

    size: int
    first: int = 0
    seed: int = 0
    beginning: list[Numbered] = field(default_factory=list[Numbered])
    _heap: list[tuple[int, int, Sentence]] = field(default_factory=list[tuple[int, int, Sentence]])

    def watch(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Yield the same sentences, and sample them."""
        for number, sentence in enumerate(sentences):
            if len(self.beginning) < self.first:
                self.beginning.append((number, sentence))
            self._offer(number, sentence)
            yield sentence

    @property
    def drawn(self) -> list[Numbered]:
        """The sample so far, in random order, so that its first sentences are a sample too."""
        return [(number, sentence) for _, number, sentence in sorted(self._heap, reverse=True)]

    def _offer(self, number: int, sentence: Sentence) -> None:
        if not self.size:
            return
        entry = (-_draw(self.seed, number), number, sentence)
        if len(self._heap) < self.size:
            heappush(self._heap, entry)
        else:
            heappushpop(self._heap, entry)


def _file(path: Path, parser: str) -> Corpus:
    treebank = Path(path.name.removesuffix(path.suffix) if path.suffix in PACKED else path.name)
    if treebank.suffix == ".conllu" and parser:
        raise ValueError(
            f"{path.name} has trees of its own, so that there is nothing to parse; leave out "
            f"parser={parser}, or give plain text."
        )
    if treebank.suffix == ".conllu":
        trees = read_treebank(path)
        next(trees)  # raises at once if it is no treebank
        return Corpus(_Source(lambda: read_treebank(path)), fingerprint=digest(path))
    next(read_lines(path))
    if parser:
        next(_parsed(islice(read_lines(path), 1), parser))  # raises if the parser is missing
        parsed = _Source(lambda: _parsed(read_lines(path), parser))
        return Corpus(parsed, fingerprint=digest(path))
    return Corpus(_Source(lambda: read_lines(path)), fingerprint=digest(path))


def _parsed(lines: Iterable[str], parser: str) -> Iterator[Tree]:
    read = (Sentence.of_text(line, longest=PARSED).text for line in lines)
    return parse_lines(read, parser=parser)


def _sentence(given: Given, longest: int | None = None) -> Sentence:
    if isinstance(given, str):
        return Sentence.of_text(given, longest=longest)
    whole = Sentence.of_tree(given) if isinstance(given, Tree) else given
    return whole if longest is None else whole.within(longest)


def _words(given: Given) -> Iterator[Sequence[str]]:
    """Yield all words; those of a long line in several parts."""
    if isinstance(given, str):
        yield from map(words_in, _parts(given))
    else:
        yield given.words


def _parts(text: str) -> Iterator[str]:
    """Cut a text into parts that end where a space does."""
    start = 0
    while start < len(text):
        space = SPACE.search(text, start + PART)
        end = space.end() if space else len(text)
        yield text[start:end]
        start = end


def _relations(given: Given) -> set[str] | None:
    tree = given.tree if isinstance(given, Sentence) else given
    return set(tree.relations) if isinstance(tree, Tree) else None


def _linked_sentence(row: Sequence[str], where: str) -> Sentence:
    source, target, links = row
    try:
        linked = tuple(links_in(links))
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from None
    counts = len(target.split()), len(source.split())
    for link in linked:
        if link[0] >= counts[0] or link[1] >= counts[1]:
            raise ValueError(
                f"{where}: word {link[1]} of {counts[1]} is linked with word {link[0]} of "
                f"{counts[0]}; words are counted from 0, source first."
            )
    return replace(Sentence.of_words(source.split(), source), linked=Linked(target, linked))


def _draw(seed: int, number: int) -> int:
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
