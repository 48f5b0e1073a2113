"""What rules without a model reach on the mentions that heads are asked for, batch by batch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwise.analysis.antecedents import antecedent_baselines
from headwise.recording.reading import Words
from headwise.text.mentions import Mention, Passage

__all__ = ["Rules", "findable"]


@dataclass
class Rules:
    """Sums of what `antecedent_baselines` finds; they can be put away and taken up again."""

    name: str = "rules"
    _hits: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    _mentions: Counter[str] = field(default_factory=Counter[str])

    def add(self, passages: Sequence[Passage]) -> None:
        """Ask the rules about some passages."""
        for passage in passages:
            kinds = Counter(f"coreference_{mention.kind}" for mention in passage.mentions)
            kinds["coreference"] = len(passage.mentions)
            for label, by_rule in antecedent_baselines([passage]).items():
                self._mentions[label] += kinds[label]
                sums = self._hits.setdefault(label, {})
                for rule, share in by_rule.items():
                    sums[rule] = sums.get(rule, 0.0) + share * kinds[label]

    def shares(self) -> dict[str, dict[str, float]]:
        """{label: {rule: share of mentions it finds an antecedent of}}."""
        return {
            label: {rule: hits / self._mentions[label] for rule, hits in by_rule.items()}
            for label, by_rule in sorted(self._hits.items())
        }

    def state(self) -> dict[str, Tensor]:
        """All sums, for `load`."""
        return {
            f"{label}/{rule}": torch.tensor([hits, self._mentions[label]], dtype=torch.float64)
            for label, by_rule in self._hits.items()
            for rule, hits in by_rule.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave."""
        self._hits.clear()
        self._mentions.clear()
        for key, tensor in state.items():
            label, _, rule = key.partition("/")
            hits, mentions = tensor.tolist()
            self._hits.setdefault(label, {})[rule] = hits
            self._mentions[label] = int(mentions)


def findable(passages: Sequence[Passage], words: Words, *, looks_back: bool) -> list[Passage]:
    """The passages with those mentions and antecedents alone that a model can see.

    Args:
        passages: of a batch.
        words: of the stack that reads it; words that were cut off, or made special, are not there.
        looks_back: no word sees those after it.
    """
    rows = [set(row) for row in words.of.tolist()]
    return [
        replace(passage, mentions=tuple(_seen(passage.mentions, row, looks_back=looks_back)))
        for passage, row in zip(passages, rows, strict=True)
    ]


def _seen(mentions: Sequence[Mention], row: set[int], *, looks_back: bool) -> list[Mention]:
    cut = [
        replace(
            mention,
            antecedents=tuple(
                word
                for word in mention.antecedents
                if word in row and not (looks_back and word > mention.head)
            ),
        )
        for mention in mentions
        if mention.head in row
    ]
    return [mention for mention in cut if mention.antecedents]
