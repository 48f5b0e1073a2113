"""Word-level vocabularies: the id of a word is its place in a list after four special tokens."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from headwise.json_files import parse_json

__all__ = ["BOS", "EOS", "PAD", "SPECIALS", "UNK", "Vocabulary"]

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


@dataclass(frozen=True)
class Vocabulary:
    """List of words; the id of a word is its place. The four special tokens come first.

    Text is never encoded as a special token: the word `<eos>` in a sentence is unknown.

    >>> vocabulary = Vocabulary.from_sentences([["the", "dog"], ["the", "cat"]])
    >>> vocabulary.words
    ('<pad>', '<bos>', '<eos>', '<unk>', 'the', 'cat', 'dog')
    >>> vocabulary.encode(["the", "dog", "barked"])
    [4, 6, 3]
    >>> vocabulary.decode([BOS, 4, 6, EOS, PAD])
    ['the', 'dog']
    """

    words: tuple[str, ...]  # special tokens first, then the words, no word twice

    def __post_init__(self) -> None:
        if self.words[: len(SPECIALS)] != SPECIALS:
            raise ValueError(
                f"A vocabulary starts with {', '.join(SPECIALS)}, but this one with "
                f"{list(self.words[: len(SPECIALS)])}; build it with Vocabulary.from_sentences."
            )
        twice = [word for word, count in Counter(self.words).items() if count > 1]
        if twice:
            raise ValueError(f"A vocabulary holds each word once, but {twice[0]!r} came again.")

    @classmethod
    def from_sentences(
        cls, sentences: Iterable[Iterable[str]], *, minimum_count: int = 1
    ) -> "Vocabulary":
        """Return the vocabulary of some sentences, the commonest word first, equals alphabetically.

        Args:
            sentences: each a sequence of words.
            minimum_count: words seen less often are left out and will be encoded as unknown.
        """
        if minimum_count < 1:
            raise ValueError(f"minimum_count must be 1 or more, got {minimum_count}.")
        counts = Counter(word for sentence in sentences for word in sentence)
        kept = [
            word
            for word, count in counts.items()
            if count >= minimum_count and word not in SPECIALS
        ]
        kept.sort(key=lambda word: (-counts[word], word))
        return cls(SPECIALS + tuple(kept))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _number(self) -> dict[str, int]:
        first = len(SPECIALS)
        return {word: first + place for place, word in enumerate(self.words[first:])}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the id of each word, UNK for unknown ones, without special tokens."""
        return [self._number.get(word, UNK) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words up to the first EOS, without PAD and BOS; unknown ones are `<unk>`."""
        decoded: list[str] = []
        for number in ids:
            if number == EOS:
                break
            if not 0 <= number < len(self.words):
                raise ValueError(f"Ids run from 0 to {len(self.words) - 1} here, got {number}.")
            if number not in (PAD, BOS):
                decoded.append(self.words[number])
        return decoded

    def to_json(self) -> str:
        """Return the words, special tokens included, as a JSON list."""
        return json.dumps(self.words, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """Read what `to_json` wrote; raise a ValueError for anything else."""
        return cls(tuple(parse_json(text, [str], name="A vocabulary, a JSON list of words,")))
