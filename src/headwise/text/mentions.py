"""Mentions: expressions in a passage, and the words that they refer back to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.text.words import is_punctuation, word_spans, words_in

__all__ = [
    "PRONOUNS",
    "Mention",
    "MentionKind",
    "Passage",
    "Span",
    "head_word",
    "make_mention",
    "mention_kind",
]

MentionKind = Literal["pronoun", "proper", "nominal"]
PRONOUNS = frozenset(
    words_in(
        "i me my mine myself you your yours yourself yourselves he him his himself she her hers "
        "herself it its itself we us our ours ourselves they them their theirs themselves themself "
        "one oneself who whom whose which that this these those thou thee thy thine ye"
    )
)
# what follows these inside a mention only describes it: "the captain of the ship"
_POSTMODIFIERS = frozenset(
    words_in("of in on at to for from with by who whom whose which that , ; : ( -- — and or")
)
Span = tuple[int, int]  # the first word and one past the last, or characters likewise


@dataclass(frozen=True)
class Mention:
    """An expression whose entity was mentioned before.

    Args:
        span: its first word, and one past its last.
        head: the word that stands for it as a query.
        kind: "pronoun", "proper" or "nominal".
        antecedents: words of which any is right, in order.
        distractors: words of mentions of other entities, in order; none of them is right.
    """

    span: Span
    head: int
    kind: MentionKind
    antecedents: tuple[int, ...]
    distractors: tuple[int, ...]


@dataclass(frozen=True)
class Passage:
    """Some words of text that a model reads at once, and the mentions in it that are asked for."""

    words: tuple[str, ...]
    text: str
    mentions: tuple[Mention, ...]

    @property
    def spans(self) -> list[Span]:
        """Where each word begins and ends in the text."""
        return word_spans(self.words, self.text)


def head_word(words: Sequence[str], span: Span) -> int:
    """The word that stands for a mention: the last one before what only describes it.

    >>> head_word("the old captain of the ship 's crew".split(), (0, 6))
    2
    """
    first, end = span
    for place in range(first + 1, end):
        if words[place].lower() in _POSTMODIFIERS:
            end = place
            break
    while end - 1 > first and (is_punctuation(words[end - 1]) or words[end - 1] in ("'s", "\u2019s")):
        end -= 1
    return end - 1


def mention_kind(words: Sequence[str], span: Span) -> MentionKind:
    """Pronoun: a single word of a list; proper: its head is capitalised; nominal: all others.

    >>> [mention_kind(["She", "met", "Ann", "Lee"], span) for span in ((0, 1), (2, 4))]
    ['pronoun', 'proper']
    """
    if span[1] - span[0] == 1 and words[span[0]].lower() in PRONOUNS:
        return "pronoun"
    head = words[head_word(words, span)]
    # capital letters alone may be emphasis at the beginning of a chapter; "I" is a pronoun
    return "proper" if head[:1].isupper() else "nominal"


def make_mention(
    words: Sequence[str], span: Span, *, right: Iterable[Span], wrong: Iterable[Span]
) -> Mention:
    """A mention in the words of its passage.

    Args:
        words: of the passage.
        span: of the mention; its own words are neither right nor wrong.
        right: the spans of its antecedents.
        wrong: the spans of other entities.
    """
    inside = set(range(*span))
    antecedents = {word for place in right for word in range(*place)} - inside
    distractors = {word for place in wrong for word in range(*place)} - inside - antecedents
    return Mention(
        span,
        head_word(words, span),
        mention_kind(words, span),
        tuple(sorted(antecedents)),
        tuple(sorted(distractors)),
    )
