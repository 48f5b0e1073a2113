"""Which sentences show a head at work: those in which it is surest of what it looks at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from headwise.ops.attended import Attended
from headwise.recording.reading import Reading, reading_of
from headwise.sites import Head, Site

__all__ = ["Examples", "choose_examples"]

Scores = dict[Head, dict[int, float]]  # of each head, {sentence: how well it shows the head}


@dataclass
class Examples:
    """A recorder of the mean largest weight of each head, sentence by sentence."""

    name: str = "examples"
    reading: Reading | None = None
    _scores: Scores = field(default_factory=dict[Head, dict[int, float]])

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        reading = reading_of("Examples", self.reading)
        rows = reading.rows(site, attended)
        count_BH = rows.seen.sum(dim=2)
        mean_BH = ((rows.peak * rows.seen).sum(dim=2) / count_BH.clamp(min=1)).tolist()
        for number, means in zip(reading.sentences, mean_BH, strict=True):
            for head, mean in zip(site.heads, means, strict=True):
                self._scores.setdefault(head, {})[number] = mean

    def drain(self) -> Scores:
        """{head: {sentence: mean largest weight}} since the last drain."""
        scores, self._scores = self._scores, {}
        return scores


def choose_examples(
    scores: Mapping[Head, Mapping[int, float]], *, sentences: int, each: int = 2
) -> dict[int, list[Head]]:
    """A few sentences that show all heads between them: {sentence: heads it is an example of}.

    Sentences are taken one by one, each time the one that makes the heads' best scores highest in
    all. Then every head gets the best of those.

    Args:
        scores: from `Examples.drain`.
        sentences: how many may be taken.
        each: examples of a head.

    >>> dog, cat = Head("encoder.0.self", 0), Head("encoder.0.self", 1)
    >>> scores = {dog: {0: 0.9, 1: 0.2, 2: 0.1}, cat: {0: 0.1, 1: 0.2, 2: 0.8}}
    >>> choose_examples(scores, sentences=2, each=1) == {0: [dog], 2: [cat]}
    True
    """
    numbers = sorted({number for by_number in scores.values() for number in by_number})
    best = dict.fromkeys(scores, 0.0)
    taken: list[int] = []

    def gain(number: int) -> float:
        return sum(max(by.get(number, 0.0) - best[head], 0.0) for head, by in scores.items())

    while len(taken) < min(sentences, len(numbers)):
        number = max((n for n in numbers if n not in taken), key=gain)
        taken.append(number)
        best = {head: max(best[head], by.get(number, 0.0)) for head, by in scores.items()}
    shown: dict[int, list[Head]] = {number: [] for number in sorted(taken)}
    for head, by_number in scores.items():
        for number in sorted(taken, key=lambda n: -by_number.get(n, 0.0))[:each]:
            shown[number].append(head)
    return shown
