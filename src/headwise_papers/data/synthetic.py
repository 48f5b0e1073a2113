"""Generated tasks of two papers.

- "On the Dynamics of Training Attention Models" (Lu et al., ICLR 2021): sentences whose topic one
  word gives away (`TopicTask`, Section 5.1) or one pair of words (`PairTask`, the two Markov chains
  of Appendix A). Each seed has its own generator, so its sentences do not depend on other seeds.
- The output relevance paper: `synclf` and `copying`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from headwise_papers.data.bags import Bags

__all__ = [
    "IMPORTANT",
    "CopyTask",
    "Copying",
    "PairSentences",
    "PairTask",
    "SynClf",
    "TopicSentences",
    "TopicTask",
    "copying",
    "synclf",
]


@dataclass(frozen=True)
class TopicSentences:
    """Sentences of `TopicTask.draw`."""

    train: Bags
    test: Bags


@dataclass(frozen=True)
class TopicTask:
    """Sentences of one topic word and `others` words that say nothing, at random places.

    Words 0 to topics * words_per_topic - 1 are topic words, those of a topic together; the rest of
    the vocabulary says nothing.

    >>> task = TopicTask(others=2, train=3, test=1)
    >>> task.vocabulary, task.topic_words
    (5008, 8)
    >>> task.draw([0, 1]).train.tokens.shape
    torch.Size([2, 3, 3])
    """

    topics: int = 4
    words_per_topic: int = 2
    others: int = 20  # the paper's m
    dictionary: int = 5000  # words that say nothing
    train: int = 800  # sentences
    test: int = 200

    @property
    def topic_words(self) -> int:
        """Number of topic words, which have the lowest ids."""
        return self.topics * self.words_per_topic

    @property
    def vocabulary(self) -> int:
        """Number of words."""
        return self.topic_words + self.dictionary

    def draw(self, seeds: Sequence[int]) -> TopicSentences:
        """Return training and test sentences for each seed."""
        drawn = [self._sentences(torch.Generator().manual_seed(seed)) for seed in seeds]
        whole = Bags.stack(drawn)
        return TopicSentences(*_split(whole, self.train))

    def _sentences(self, generator: torch.Generator) -> Bags:
        count = self.train + self.test
        shape = (count, self.others + 1)
        first, last = self.topic_words, self.vocabulary
        tokens_NT = torch.randint(first, last, shape, generator=generator)
        label_N = torch.randint(self.topics, (count,), generator=generator)
        which_N = torch.randint(self.words_per_topic, (count,), generator=generator)
        place_N = torch.randint(shape[1], (count,), generator=generator)
        tokens_NT[torch.arange(count), place_N] = label_N * self.words_per_topic + which_N
        return Bags(tokens_NT[None], torch.full((1, count), shape[1]), label_N[None])


@dataclass(frozen=True)
class PairSentences:
    """Sentences of `PairTask.draw`."""

    train: Bags
    test: Bags
    pairs: Int[Tensor, "S topics pairs 2"]  # the ordered pairs of words that mark each topic


@dataclass(frozen=True)
class PairTask:
    """Sentences of two Markov chains, each with its own pairs of words that always follow.

    A sentence of a topic starts with the first word of one of the topic's pairs. In its chain the
    first word of a pair is followed by the second, every other word by any word. No word is in two
    pairs.

    >>> PairTask(train=3, test=1).draw([0]).train.tokens.shape
    torch.Size([1, 3, 10])
    """

    topics: int = 2
    pairs: int = 2  # of each topic
    dictionary: int = 200
    length: int = 10  # words in a sentence, the paper's m + 1
    train: int = 4000  # sentences
    test: int = 1000

    def __post_init__(self) -> None:
        wanted = 2 * self.topics * self.pairs
        if wanted > self.dictionary or self.length < 2:
            raise ValueError(
                f"{self.topics * self.pairs} pairs need {wanted} words and sentences of 2 or more, "
                f"got a dictionary of {self.dictionary} and length {self.length}."
            )

    def draw(self, seeds: Sequence[int]) -> PairSentences:
        """Return pairs, training and test sentences for each seed."""
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        pairs = [self._pairs(generator) for generator in generators]
        whole = Bags.stack(
            [self._sentences(own, rng) for own, rng in zip(pairs, generators, strict=True)]
        )
        train, test = _split(whole, self.train)
        return PairSentences(train, test, torch.stack(pairs))

    def _pairs(self, generator: torch.Generator) -> Tensor:
        chosen = torch.randperm(self.dictionary, generator=generator)
        return chosen[: 2 * self.topics * self.pairs].view(self.topics, self.pairs, 2)

    def _sentences(self, pairs: Tensor, generator: torch.Generator) -> Bags:
        count = self.train + self.test
        label_N = torch.randint(self.topics, (count,), generator=generator)
        which_N = torch.randint(self.pairs, (count,), generator=generator)
        follower = torch.full((self.topics, self.dictionary), -1)  # -1: any word may follow
        follower.scatter_(1, pairs[..., 0], pairs[..., 1])
        columns = [pairs[label_N, which_N, 0]]
        for _ in range(self.length - 1):
            any_N = torch.randint(self.dictionary, (count,), generator=generator)
            bound_N = follower[label_N, columns[-1]]
            columns.append(torch.where(bound_N >= 0, bound_N, any_N))
        tokens_NT = torch.stack(columns, dim=1)
        return Bags(tokens_NT[None], torch.full((1, count), self.length), label_N[None])


def _split(whole: Bags, first: int) -> tuple[Bags, Bags]:
    parts = [(x[:, :first], x[:, first:]) for x in (whole.tokens, whole.lengths, whole.labels)]
    return Bags(*(part[0] for part in parts)), Bags(*(part[1] for part in parts))


IMPORTANT = 1  # the token that makes a SynClf sequence positive

CopyTask = Literal["permutation", "iid"]


class SynClf(NamedTuple):
    """Sequences with labels."""

    tokens: Int[Tensor, "N T"]  # 1 to types; 0 is left for padding
    labels: Int[Tensor, " N"]  # 1 where the important token occurs


class Copying(NamedTuple):
    """Sequences to copy, with the special tokens of a sequence-to-sequence model."""

    source: Int[Tensor, "N K"]  # the tokens 0 to types - 1, then EOS, `types`
    target_in: Int[Tensor, "N K"]  # BOS, `types + 1`, then the tokens
    target_out: Int[Tensor, "N K"]  # the tokens, then EOS


def synclf(count: int, *, length: int = 40, types: int = 40, generator: torch.Generator) -> SynClf:
    """Draw tokens uniformly; a text with the important one is positive (Section 3.1).

    >>> drawn = synclf(5000, generator=torch.Generator().manual_seed(0))
    >>> drawn.tokens.shape, round(drawn.labels.double().mean().item(), 2)  # 1 - (39 / 40)^40
    (torch.Size([5000, 40]), 0.64)
    """
    if min(count, length) < 1 or types < 2:
        raise ValueError(
            f"count and length must be at least 1 and types at least 2, got {count}, {length} "
            f"and {types}."
        )
    tokens_NT = torch.randint(1, types + 1, (count, length), generator=generator)
    return SynClf(tokens_NT, (tokens_NT == IMPORTANT).any(1).long())


def copying(
    task: CopyTask,
    count: int,
    *,
    types: int = 40,
    length: int | None = None,
    generator: torch.Generator,
) -> Copying:
    """Draw sequences whose output is the input (Section 4.2).

    Args:
        task: "permutation" orders all types anew each time, so that all sequences are the same bag
            of words; "iid" draws every token by itself.
        count: how many.
        types: different tokens; a vocabulary has two more, BOS and EOS.
        length: tokens of a sequence, `types` unless given; fewer are a part of a permutation.
        generator: on the device where the sequences shall be.

    >>> copying("permutation", 1, types=3, generator=torch.Generator().manual_seed(0)).target_in
    tensor([[4, 2, 0, 1]])
    """
    length = types if length is None else length
    if task not in ("permutation", "iid"):
        raise ValueError(f"task must be 'permutation' or 'iid', got {task!r}.")
    if min(count, types, length) < 1 or (task == "permutation" and length > types):
        raise ValueError(
            f"A {task} of {length} out of {types} tokens, {count} times, is not possible."
        )
    device = generator.device
    if task == "iid":
        tokens_NT = torch.randint(types, (count, length), generator=generator, device=device)
    else:
        lot_NV = torch.rand(count, types, generator=generator, device=device)
        tokens_NT = lot_NV.argsort(1)[:, :length]
    end_N1, begin_N1 = (tokens_NT.new_full((count, 1), types + mark) for mark in (0, 1))
    source_NK = torch.cat([tokens_NT, end_N1], dim=1)
    return Copying(source_NK, torch.cat([begin_N1, tokens_NT], dim=1), source_NK)
