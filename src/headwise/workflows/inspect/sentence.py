"""Sentences as inspections read them: a text and the places of its words."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from headwise.text.mentions import Passage
from headwise.text.treebank import Tree
from headwise.text.words import first_words, word_spans, words_in

Span = tuple[int, int]  # from one character to another, the last one left out


@dataclass(frozen=True)
class Linked:
    """A translation with words separated by spaces, and its links to the source words."""

    text: str
    links: tuple[tuple[int, int], ...]  # (target word, source word)

    def within(self, characters: int) -> "Linked":
        """Cut the translation to so many characters; all links stay."""
        return replace(self, text=first_words(self.text, characters))

    @property
    def sentence(self) -> "Sentence":
        """The translation as a sentence of its own."""
        return Sentence.of_words(self.text.split(), self.text)


@dataclass(frozen=True)
class Sentence:
    """A text and its words, in order and separated by nothing but spaces.

    Words of plain text are those of `headwise.text.words.words_in`.

    >>> sentence = Sentence.of_text("She didn't go.")
    >>> sentence.words
    ('She', 'did', "n't", 'go', '.')
    >>> sentence.words_of([(0, 3), (3, 8), (8, 10), (10, 13), (13, 14)])
    [0, 1, 2, 3, 4]
    """

    text: str
    spans: tuple[Span, ...]
    tree: Tree | None = field(default=None, compare=False)
    passage: Passage | None = field(default=None, compare=False)
    linked: Linked | None = field(default=None, compare=False)  # a translator reads it
    cut: bool = field(default=False, compare=False)  # whether there was more text

    @staticmethod
    def of_text(text: str, *, longest: int | None = None) -> "Sentence":
        """Make a sentence of a line, or of its words within `longest` characters."""
        read = text if longest is None else first_words(text, longest)
        return replace(Sentence.of_words(words_in(read), read), cut=len(read) < len(text))

    @staticmethod
    def of_words(words: Sequence[str], text: str | None = None) -> "Sentence":
        """Make a sentence of words in their text, or joined by spaces without a text."""
        written = " ".join(words) if text is None else text
        return Sentence(written, tuple(word_spans(words, written)))

    @staticmethod
    def of_tree(tree: Tree) -> "Sentence":
        """Make a sentence of a tree."""
        return replace(Sentence.of_words(tree.words, tree.text), tree=tree)

    @staticmethod
    def of_passage(passage: Passage) -> "Sentence":
        """Make a sentence of a text with mentions and their antecedents."""
        return replace(Sentence.of_words(passage.words, passage.text), passage=passage)

    def spaced(self) -> "Sentence":
        """Put a space between any two words, if the words come from annotation."""
        if self.tree is None and self.passage is None:
            return self
        return replace(Sentence.of_words(self.words), tree=self.tree, passage=self.passage)

    def within(self, characters: int) -> "Sentence":
        """Cut to the words within so many characters; tree and mentions keep all words."""
        if self.linked is not None:
            whole = replace(self, linked=None).within(characters)
            return replace(whole, linked=self.linked.within(characters))
        if len(self.text) <= characters:
            return self
        text = first_words(self.text, characters)
        there = bisect_left(self._starts, len(text))
        spans = tuple((start, min(end, len(text))) for start, end in self.spans[:there])
        return replace(self, text=text, spans=spans, cut=True)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words as text."""
        return tuple(self.text[start:end] for start, end in self.spans)

    def words_of(self, tokens: Iterable[Span]) -> list[int]:
        """Return the word that each token belongs to: that of its first character.

        Spaces before it do not count. A token of nothing but spaces belongs to the word after it.
        Tokens are in order, so word numbers never fall.
        """
        return list(accumulate((self._word_of(start, end) for start, end in tokens), max))

    def _word_of(self, start: int, end: int) -> int:
        while start < end and self.text[start].isspace():
            start += 1
        if start >= end:
            return min(bisect_left(self._starts, end), len(self.spans) - 1)
        return max(bisect_right(self._starts, start) - 1, 0)

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _ in self.spans]
