"""What heads might point at in a batch: all that its sentences and words allow to ask."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headwise.analysis.gold import (
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
from headwise.recording.reading import Gold
from headwise.text.frequencies import WordRanks
from headwise.workflows.inspect.rules import Rules, findable
from headwise.workflows.inspect.sentence import Sentence
from headwise.workflows.inspect.subject import NO_WORD, Prepared

__all__ = ["ALL", "RELATIONS", "Annotation"]

RELATIONS = ("nsubj", "obj", "amod", "advmod")  # of Voita et al. (2019), section 5.2
ALL = "all"  # stands for every relation of a treebank


@dataclass(frozen=True)
class Annotation:
    """What is asked of a batch; `whole` asks about its words, `coreference` about its mentions.

    Args:
        relations: of syntax, where sentences have trees; ("all",) for all of them.
        ranks: how common words are; None asks for no rare words.
        knows_words: False where pieces stand for words, so that trees do not fit.
        rules: filled with what rules reach on the mentions that were asked for.
    """

    relations: Sequence[str] = RELATIONS
    ranks: WordRanks | None = None
    knows_words: bool = True
    rules: Rules = field(default_factory=Rules)

    def whole(self, prepared: Prepared, sentences: Sequence[Sentence]) -> list[Gold]:
        """Neighbours, first words, marks, rare words, repetitions and syntax."""
        return list(self._asked(prepared, sentences))

    def coreference(self, prepared: Prepared, sentences: Sequence[Sentence]) -> list[Gold]:
        """Antecedents of mentions, in the stack that reads; `rules` are asked the same."""
        passages = [sentence.passage for sentence in sentences]
        known = [passage for passage in passages if passage is not None]
        if len(known) != len(passages) or not self.knows_words:
            return []
        stack = _reads(prepared)
        seen = findable(known, prepared.words[stack], looks_back=stack == "decoder")
        self.rules.add(seen)
        return coreference_gold(seen, f"{stack}.self")

    def alignments(self, prepared: Prepared, sentences: Sequence[Sentence]) -> list[Gold]:
        """Source words of the target words that are predicted, as far as both were read."""
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

    def _asked(self, prepared: Prepared, sentences: Sequence[Sentence]) -> Iterator[Gold]:
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
    """The words of each sentence as far as a stack reads it: none after them can be asked for.

    Each has a token, so that there are no more words than tokens; twice as many leave space for
    some that a tokenizer drops.
    """
    of_BT = prepared.words[stack].on_host
    last = of_BT.amax(dim=1).tolist() if of_BT.numel() else [NO_WORD] * len(of_BT)
    most = 2 * of_BT.shape[1]
    pairs = zip(prepared.texts[stack], last, strict=True)
    return [words[: min(end + 1, most)] for words, end in pairs]


def _reads(prepared: Prepared) -> str:
    """The stack that reads the text; a decoder behind an encoder writes."""
    return "encoder" if "encoder" in prepared.words else "decoder"
