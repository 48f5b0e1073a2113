"""Mentions: expressions in a passage, and their antecedents.

Sets of passages come from other packages, by the entry points `headwise.coreference`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.config import suggestion
from headwise.kinds import find, names
from headwise.text.words import is_punctuation, word_spans, words_in

MentionKind = Literal["pronoun", "proper", "nominal"]
PRONOUNS = frozenset(
    words_in(
        "i me my mine myself you your yours yourself yourselves he him his himself she her hers "
        "herself it its itself we us our ours ourselves they them their theirs themselves themself "
        "one oneself who whom whose which that this these those thou thee thy thine ye"
    )
)
# words after these only describe the mention: "the captain of the ship"
_POSTMODIFIERS = frozenset(
    words_in("of in on at to for from with by who whom whose which that , ; : ( -- — and or")
)
GROUP = "headwise.coreference"
Span = tuple[int, int]  # first word and one past the last; or characters


@dataclass(frozen=True)
class Mention:
    """Expression whose entity was mentioned before.

    Args:
        span: first word, and one past the last.
        head: the word that is the query.
        kind: "pronoun", "proper" or "nominal".
        antecedents: words of the right answers, in order.
        distractors: words of mentions of other entities, in order.
    """

    span: Span
    head: int
    kind: MentionKind
    antecedents: tuple[int, ...]
    distractors: tuple[int, ...]


@dataclass(frozen=True)
class Passage:
    """Text that a model reads in one sequence, with the mentions to resolve."""

    words: tuple[str, ...]
    text: str
    mentions: tuple[Mention, ...]

    @property
    def spans(self) -> list[Span]:
        """Character span of each word in the text."""
        return word_spans(self.words, self.text)


def head_word(words: Sequence[str], span: Span) -> int:
    """Return the head word of a mention: the last one before its postmodifiers.

    >>> head_word("the old captain of the ship 's crew".split(), (0, 6))
    2
    """
    first, end = span
    for place in range(first + 1, end):
        if words[place].lower() in _POSTMODIFIERS:
            end = place
            break
    while end - 1 > first and _may_follow_head(words[end - 1]):
        end -= 1
    return end - 1


def _may_follow_head(word: str) -> bool:
    return is_punctuation(word) or word in ("'s", "\u2019s")


def mention_kind(words: Sequence[str], span: Span) -> MentionKind:
    """Classify a mention: a pronoun of a list; proper if its head is capitalised; else nominal.

    >>> [mention_kind(["She", "met", "Ann", "Lee"], span) for span in ((0, 1), (2, 4))]
    ['pronoun', 'proper']
    """
    if span[1] - span[0] == 1 and words[span[0]].lower() in PRONOUNS:
        return "pronoun"
    head = words[head_word(words, span)]
    return "proper" if head[:1].isupper() else "nominal"


def make_mention(
    words: Sequence[str], span: Span, *, right: Iterable[Span], wrong: Iterable[Span]
) -> Mention:
    """Make a mention from spans in the words of its passage.

    Args:
        words: of the passage.
        span: of the mention; its own words are neither right nor wrong.
        right: spans of its antecedents.
        wrong: spans of other entities.
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


@dataclass(frozen=True)
class CoreferenceSet:
    """Passages that a package brings, for `headwise inspect --coreference NAME`.

    Args:
        parts: their names; an undivided set has one part named "".
        read: from the name of a part to its passages; raises at once if there is no such part.
    """

    parts: tuple[str, ...]
    read: Callable[[str], Iterator[Passage]]


def coreference_set(name: str) -> CoreferenceSet:
    """Load the coreference set with this name."""
    if name not in (known := names(GROUP)):
        raise ValueError(f"There is no coreference set {name!r}. {suggestion(name, known)}")
    return find(GROUP, name)
