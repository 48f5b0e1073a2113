"""Word frequencies of a corpus, as ranks."""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headwise.json_files import read_json
from headwise.recording.files import write_text


@dataclass(frozen=True)
class WordRanks:
    """Words by frequency.

    >>> ranks = WordRanks.count([["The", "dog", "saw", "the", "cat"]])
    >>> [ranks.rank(word) for word in ("the", "dog", "cat", "zebra")]
    [0, 1, 1, 4]

    Args:
        counts: of each word.
        lower: ignore case.
    """

    counts: Mapping[str, int]
    lower: bool = True

    @staticmethod
    def count(sentences: Iterable[Sequence[str]], *, lower: bool = True) -> "WordRanks":
        """Count the words of a stream of sentences; memory grows with the vocabulary only."""
        counts: Counter[str] = Counter()
        for words in sentences:
            counts.update(map(str.lower, words) if lower else words)
        if not counts:
            raise ValueError("Words were wanted to count, but the sentences hold none.")
        return WordRanks(dict(counts), lower)

    def rank(self, word: str) -> int:
        """Return the number of more common words: 0 for the most common word.

        An unseen word is rarer than all others.
        """
        seen = self.counts.get(word.lower() if self.lower else word, 0)
        return bisect_left(self._falling, -seen)

    def save(self, path: Path) -> None:
        """Write counts as JSON, the most common word first."""
        ordered = dict(sorted(self.counts.items(), key=lambda item: (-item[1], item[0])))
        content = {"lower": self.lower, "counts": ordered}
        write_text(path, json.dumps(content, ensure_ascii=False, indent=0))

    @staticmethod
    def load(path: Path) -> "WordRanks":
        """Read counts written by `save`."""
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
        """Negated counts of all words, the most common first."""
        return sorted(-times for times in self.counts.values())
