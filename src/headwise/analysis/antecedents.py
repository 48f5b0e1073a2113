"""Antecedent selection: how often a head, or a rule that needs no model, finds what is meant."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.data.mentions import PRONOUNS, Mention, Passage
from headwise.data.words import is_mark, words_in

__all__ = ["antecedent_accuracy", "antecedent_baselines"]

_DETERMINERS = frozenset(words_in("the a an his her its their my your our"))


def antecedent_accuracy(
    strongest: Int[Tensor, "*heads M"], mentions: Sequence[Mention]
) -> dict[str, Float[Tensor, "*heads"]]:
    """Share of mentions whose strongest word is one of their antecedents', for each head.

    Args:
        strongest: the word that the head word of each mention attends to most; -1: none.
        mentions: as many, in the same order.

    Returns:
        "coreference" over all mentions, "coreference_pronoun", "…_proper", "…_nominal" where there
        are such.
    """
    if strongest.shape[-1] != len(mentions) or not mentions:
        raise ValueError(
            f"A strongest word for each of {len(mentions)} mentions was wanted, got "
            f"{strongest.shape[-1]}; give at least one, in the order of the mentions."
        )
    hit = _right(mentions, most=int(strongest.max()), device=strongest.device)[
        torch.arange(len(mentions), device=strongest.device), strongest.clamp(min=-1)
    ].float()
    kinds = [mention.kind for mention in mentions]
    chosen = {"coreference": [True] * len(kinds)} | {
        f"coreference_{kind}": [other == kind for other in kinds] for kind in sorted(set(kinds))
    }
    return {label: hit[..., torch.tensor(mask)].mean(dim=-1) for label, mask in chosen.items()}


def antecedent_baselines(passages: Sequence[Passage]) -> dict[str, dict[str, float]]:
    """What rules reach, by label as in `antecedent_accuracy`: {label: {rule: accuracy}}.

    - random: some word before the mention, each as likely; its expected accuracy.
    - previous: the word before; first: the first word of the passage.
    - nearest_noun: the nearest word before that looks like a noun, capitalised inside a sentence
      or after a determiner.
    - nearest_mention: the nearest word before of any other mention, which takes gold mentions.
    - same_word: the same, of a mention that has the word at the head of this one, if there is any.
    """
    hits: dict[str, dict[str, list[float]]] = {}
    for passage in passages:
        for mention in passage.mentions:
            reached = _reached(passage, mention)
            for label in ("coreference", f"coreference_{mention.kind}"):
                by_rule = hits.setdefault(label, {})
                for rule, value in reached.items():
                    by_rule.setdefault(rule, []).append(value)
    return {
        label: {rule: sum(values) / len(values) for rule, values in by_rule.items()}
        for label, by_rule in hits.items()
    }


def _right(mentions: Sequence[Mention], *, most: int, device: torch.device) -> Tensor:
    """(M, words + 1), True at antecedents; the last column, of no word, is False."""
    words = 1 + max(most, *(word for mention in mentions for word in mention.antecedents))
    right_MW = torch.zeros(len(mentions), words + 1, dtype=torch.bool)
    rows = [(row, word) for row, mention in enumerate(mentions) for word in mention.antecedents]
    row_N, word_N = torch.tensor(rows).unbind(dim=1)
    right_MW[row_N, word_N] = True
    return right_MW.to(device)


def _reached(passage: Passage, mention: Mention) -> Mapping[str, float]:
    words, start = passage.words, mention.span[0]
    right = set(mention.antecedents)
    others = right | set(mention.distractors)

    def nearest(holds: Callable[[int], bool]) -> int:
        """The nearest word before the mention that holds; -1: there is none."""
        return next((place for place in range(start - 1, -1, -1) if holds(place)), -1)

    mentioned = nearest(lambda place: place in others)
    head = words[mention.head].lower()
    same = nearest(lambda place: place in others and words[place].lower() == head)
    choices = {
        "previous": start - 1,
        "first": 0,
        "nearest_noun": nearest(lambda place: _noun_like(words, place)),
        "nearest_mention": mentioned,
        "same_word": same if same >= 0 else mentioned,
    }
    earlier = sum(word < start for word in right)
    chance = {"random": earlier / start if start else 0.0}
    return chance | {rule: float(place in right) for rule, place in choices.items()}


def _noun_like(words: Sequence[str], place: int) -> bool:
    word, before = words[place], words[place - 1] if place else "."
    if before.lower() in _DETERMINERS:
        return not is_mark(word) and word.lower() not in PRONOUNS
    begins = before in (".", "!", "?", '"', "''", "``", "“")
    return word[:1].isupper() and not begins and word != "I"
