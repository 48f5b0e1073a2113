"""Some sentences of a corpus, drawn while it is read: the same however the reading is cut up."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappush, heappushpop

from headwise.workflows.inspect.corpus import Numbered
from headwise.workflows.inspect.sentence import Sentence

__all__ = ["Sample"]


@dataclass
class Sample:
    """A random sample, and the first sentences, of a corpus that goes by.

    Every sentence draws a number, which follows from the seed and its place alone; those with the
    smallest are the sample. So memory does not grow, and reading again gives the same.

    >>> sample = Sample(2, first=1, seed=0)
    >>> passed = list(sample.watch(Sentence.of_text(f"Dog {n} ran.") for n in range(9)))
    >>> len(passed), [number for number, _ in sample.drawn], len(sample.began)
    (9, [7, 5], 1)
    """

    size: int
    first: int = 0
    seed: int = 0
    began: list[Numbered] = field(default_factory=list[Numbered])
    _heap: list[tuple[int, int, Sentence]] = field(default_factory=list[tuple[int, int, Sentence]])

    def watch(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """The same sentences, noticed as they pass."""
        for number, sentence in enumerate(sentences):
            if len(self.began) < self.first:
                self.began.append((number, sentence))
            self._offer(number, sentence)
            yield sentence

    @property
    def drawn(self) -> list[Numbered]:
        """The sample so far, in the order of the draw: its first sentences are a sample too."""
        return [(number, sentence) for _, number, sentence in sorted(self._heap, reverse=True)]

    def _offer(self, number: int, sentence: Sentence) -> None:
        if not self.size:
            return
        entry = (-_draw(self.seed, number), number, sentence)
        if len(self._heap) < self.size:
            heappush(self._heap, entry)
        else:
            heappushpop(self._heap, entry)


def _draw(seed: int, number: int) -> int:
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
