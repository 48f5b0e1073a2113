"""How common words are: counted once over a corpus, asked for by rank."""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headwise.json_files import read_json
from headwise.text.source import write_whole

__all__ = ["WordRanks"]


@dataclass(frozen=True)
class WordRanks:
    """Words by frequency.

    >>> ranks = WordRanks.count([["The", "dog", "saw", "the", "cat"]])
    >>> [ranks.rank(word) for word in ("the", "dog", "cat", "zebra")]
    [0, 1, 1, 4]

    Args:
        counts: how often each word was seen.
        lower: words are counted and asked for in lower case.
    """

    counts: Mapping[str, int]
    lower: bool = True

    @staticmethod
    def count(sentences: Iterable[Sequence[str]], *, lower: bool = True) -> "WordRanks":
        """Count a stream of sentences in words; memory grows with the vocabulary only."""
        counts: Counter[str] = Counter()
        for words in sentences:
            counts.update(map(str.lower, words) if lower else words)
        if not counts:
            raise ValueError("Words were wanted to count, but the sentences hold none.")
        return WordRanks(dict(counts), lower)

    def rank(self, word: str) -> int:
        """How many words are more common: 0 for the commonest, the same for equally common ones.

        A word that was never seen is rarer than all that were.
        """
        seen = self.counts.get(word.lower() if self.lower else word, 0)
        return bisect_left(self._falling, -seen)

    def merged(self, other: "WordRanks") -> "WordRanks":
        """The counts of both, for corpora counted in several processes."""
        if self.lower != other.lower:
            raise ValueError("Counts in lower case do not go with counts as written; count again.")
        return WordRanks(dict(Counter(self.counts) + Counter(other.counts)), self.lower)

    def save(self, path: Path) -> None:
        """Write counts as JSON, the commonest first."""
        ordered = dict(sorted(self.counts.items(), key=lambda item: (-item[1], item[0])))
        content = {"lower": self.lower, "counts": ordered}
        write_whole(path, json.dumps(content, ensure_ascii=False, indent=0).encode())

    @staticmethod
    def load(path: Path) -> "WordRanks":
        """Read what `save` wrote."""
        if not path.is_file():
            raise ValueError(f"There are no word counts {path}; check the path.")
        try:
            content = read_json(path)
            counts = {str(word): int(times) for word, times in content["counts"].items()}
            return WordRanks(counts, bool(content["lower"]))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ValueError(
                f"{path} holds no word counts of WordRanks.save ({problem}); count again."
            ) from None

    @cached_property
    def _falling(self) -> list[int]:
        """The counts of all words, negated, from the commonest on."""
        return sorted(-times for times in self.counts.values())
