"""Annotation: what heads might point at in a batch, and what rules without a model reach there."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwise.analysis.antecedents import antecedent_baselines
from headwise.analysis.gold import (
    RELATIONS,
    alignment_gold,
    coreference_gold,
    duplicate_gold,
    first_gold,
    induction_gold,
    neighbour_gold,
    punctuation_gold,
    rare_gold,
    syntax_gold,
)
from headwise.recording.reading import Gold, Words
from headwise.text.frequencies import WordRanks
from headwise.text.mentions import Mention, Passage
from headwise.workflows.inspect.config import ALL
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import NO_WORD, Prepared


@dataclass
class Rules:
    """Sums of what `antecedent_baselines` finds, with a state that can be saved."""

    name: str = "rules"
    _hits: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    _mentions: Counter[str] = field(default_factory=Counter[str])

    def add(self, passages: Sequence[Passage]) -> None:
        """Apply the rules to some passages."""
        for passage in passages:
            kinds = Counter(f"coreference_{mention.kind}" for mention in passage.mentions)
            kinds["coreference"] = len(passage.mentions)
            for label, by_rule in antecedent_baselines([passage]).items():
                self._mentions[label] += kinds[label]
                sums = self._hits.setdefault(label, {})
                for rule, share in by_rule.items():
                    sums[rule] = sums.get(rule, 0.0) + share * kinds[label]

    def shares(self) -> dict[str, dict[str, float]]:
        """Return {label: {rule: share of mentions it finds an antecedent of}}."""
        return {
            label: {rule: hits / self._mentions[label] for rule, hits in by_rule.items()}
            for label, by_rule in sorted(self._hits.items())
        }

    def state(self) -> dict[str, Tensor]:
        """Return all sums, for `load`."""
        return {
            f"{label}/{rule}": torch.tensor([hits, self._mentions[label]], dtype=torch.float64)
            for label, by_rule in self._hits.items()
            for rule, hits in by_rule.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a `state()`."""
        self._hits.clear()
        self._mentions.clear()
        for key, tensor in state.items():
            label, _, rule = key.partition("/")
            hits, mentions = tensor.tolist()
            self._hits.setdefault(label, {})[rule] = hits
            self._mentions[label] = int(mentions)


@dataclass(frozen=True)
class Annotation:
    """Gold of a batch: `whole` is about its words, `coreference` about its mentions.

    Args:
        relations: of syntax, where sentences have trees; ("all",) for all of them.
        ranks: how common words are; None leaves rare words out.
        knows_words: False where every token counts as a word, so that trees do not fit.
        rules: filled with what rules reach on the same mentions.
    """

    relations: Sequence[str] = RELATIONS
    ranks: WordRanks | None = None
    knows_words: bool = True
    rules: Rules = field(default_factory=Rules)

    def whole(self, prepared: Prepared, sentences: Sequence[Sentence]) -> list[Gold]:
        """Return neighbours, first words, punctuation, rare words, repetitions and syntax."""
        return list(self._whole(prepared, sentences))

    def coreference(self, prepared: Prepared, sentences: Sequence[Sentence]) -> list[Gold]:
        """Return antecedents of mentions in the stack that reads; `rules` get the same."""
        passages = [sentence.passage for sentence in sentences]
        known = [passage for passage in passages if passage is not None]
        if len(known) != len(passages) or not self.knows_words:
            return []
        stack = _reads(prepared)
        seen = findable(known, prepared.words[stack], causal=stack == "decoder")
        self.rules.add(seen)
        return coreference_gold(seen, f"{stack}.self")

    def alignments(self, prepared: Prepared, sentences: Sequence[Sentence]) -> list[Gold]:
        """Return source words of the target words that are predicted, where both were read."""
        there = {
            stack: [set(row) for row in words.of.tolist()]
            for stack, words in prepared.words.items()
        }
        links = [
            [(t, s) for t, s in sentence.linked.links if t in targets and s in sources]
            for sentence, targets, sources in zip(
                sentences, there["decoder"], there["encoder"], strict=True
            )
            if sentence.linked is not None
        ]
        return alignment_gold(links)

    def _whole(self, prepared: Prepared, sentences: Sequence[Sentence]) -> Iterator[Gold]:
        read = {stack: _read_words(prepared, stack) for stack in prepared.texts}
        for stack, texts in read.items():
            kind = f"{stack}.self"
            yield from neighbour_gold(texts, kind)
            yield from first_gold(texts, kind)
            yield from punctuation_gold(texts, kind)
            if stack == "decoder":
                yield from duplicate_gold(texts, kind)
                yield from induction_gold(texts, kind)
        stack = _reads(prepared)
        if self.ranks is not None:
            yield from rare_gold(read[stack], self.ranks.rank, f"{stack}.self")
        trees = [sentence.tree for sentence in sentences if sentence.tree is not None]
        if len(trees) == len(sentences) and self.knows_words:
            wanted = None if tuple(self.relations) == (ALL,) else self.relations
            yield from syntax_gold(trees, f"{stack}.self", relations=wanted)


def _read_words(prepared: Prepared, stack: str) -> list[Sequence[str]]:
    """Return the words of each sentence up to the last one that a stack reads.

    There are no more words than tokens; twice as many leave space for words that a tokenizer drops.
    """
    of_BT = prepared.words[stack].on_host
    last = of_BT.amax(dim=1).tolist() if of_BT.numel() else [NO_WORD] * len(of_BT)
    most = 2 * of_BT.shape[1]
    pairs = zip(prepared.texts[stack], last, strict=True)
    return [words[: min(end + 1, most)] for words, end in pairs]


def _reads(prepared: Prepared) -> str:
    """Return the stack that reads the text; a decoder behind an encoder generates."""
    return "encoder" if "encoder" in prepared.words else "decoder"


def findable(passages: Sequence[Passage], words: Words, *, causal: bool) -> list[Passage]:
    """Return the passages with only the mentions and antecedents that a model can attend to.

    Args:
        passages: of a batch.
        words: of the stack that reads it, without words that were cut off or made special.
        causal: whether no word attends to those after it.
    """
    rows = [set(row) for row in words.of.tolist()]
    return [
        replace(passage, mentions=tuple(_seen(passage.mentions, row, causal=causal)))
        for passage, row in zip(passages, rows, strict=True)
    ]


def _seen(mentions: Sequence[Mention], row: set[int], *, causal: bool) -> list[Mention]:
    cut = [
        replace(
            mention,
            antecedents=tuple(
                word
                for word in mention.antecedents
                if word in row and not (causal and word > mention.head)
            ),
        )
        for mention in mentions
        if mention.head in row
    ]
    return [mention for mention in cut if mention.antecedents]
