"""Which heads are guided, and where to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import cast

from headwise.config import suggestion
from headwise.guidance.patterns import OF_TOKENS, Aim, pattern
from headwise.ops._impl import Number
from headwise.ops.checks import check_whole_number

# in the order in which heads get them
COUNTED: tuple[str, ...] = ("next", "prev", "first", "delim", "period")

MOST_HEADS = 4096  # of a layer, by far
OF_COUNTED = tuple(name for name in COUNTED if name in OF_TOKENS)
NO_TOKENS: Mapping[str, Sequence[int]] = MappingProxyType({})


@dataclass(frozen=True, init=False)
class Plan:
    """Which pattern each head of a site gets, by the head's number; the same at every site.

    Give how many heads get each pattern, and they are taken in the order next, prev, first, delim,
    period from head 0 on; or give the pattern of each head.

    Args:
        aims: `{head: pattern(...)}`.
        next: so many heads look at the next token,
        prev: the previous one,
        first: the first,
        delim: delimiters,
        period: full stops.
        tokens: the numbers of the tokens of "delim" and "period".

    >>> {head: aim.name for head, aim in Plan(next=1, prev=1, first=2).aims.items()}
    {0: 'next', 1: 'prev', 2: 'first', 3: 'first'}
    >>> Plan({3: pattern("offset", offset=-2)}, next=1)
    Traceback (most recent call last):
    ValueError: A plan takes patterns of heads or how many heads get each, not both.
    """

    aims: Mapping[int, Aim]

    def __init__(
        self,
        aims: Mapping[int, Aim] | None = None,
        *,
        next: int = 0,
        prev: int = 0,
        first: int = 0,
        delim: int = 0,
        period: int = 0,
        tokens: Mapping[str, Sequence[int]] = NO_TOKENS,
    ) -> None:
        counts = dict(zip(COUNTED, (next, prev, first, delim, period), strict=True))
        if aims is not None and any(counts.values()):
            raise ValueError("A plan takes patterns of heads or how many heads get each, not both.")
        if aims is not None and tokens:
            raise ValueError(
                "tokens= goes with how many heads get each pattern, not with patterns "
                "of heads, which have tokens of their own."
            )
        chosen = _counted(counts, tokens) if aims is None else _checked(aims)
        if not chosen:
            raise ValueError("The plan guides no head; say e.g. Plan(next=1, prev=1, first=4).")
        object.__setattr__(self, "aims", chosen)

    def __hash__(self) -> int:
        return hash(tuple(self.aims.items()))

    @classmethod
    def fraction(cls, share: Number, *, heads: int) -> "Plan":
        """The paper's choice for a share of the heads: one Next, one Prev, the others First (§5.3).

        Half heads count as one.

        >>> [len(Plan.fraction(1 / 2, heads=heads).aims) for heads in (12, 5, 7)]
        [6, 3, 4]
        """
        if not isinstance(cast("object", share), Real):
            raise ValueError(f"The share of guided heads must be a number like 0.5, got {share!r}.")
        check_whole_number("heads", heads)
        guided = math.floor(share * heads + 0.5) if 0 < share <= 1 else 0
        if guided < 1:
            raise ValueError(
                f"The share of guided heads must be above 0, at most 1 and at least one of {heads} "
                f"heads, got {share}."
            )
        return cls(next=1, prev=min(1, guided - 1), first=max(0, guided - 2))

    @classmethod
    def parse(cls, text: str, *, tokens: Mapping[str, Sequence[int]] = NO_TOKENS) -> "Plan":
        """The plan of a text like "next=1,prev=1,first=4".

        >>> Plan.parse("next=1, first=4") == Plan(next=1, first=4)
        True
        """
        counts: dict[str, int] = {}
        for part in text.split(","):
            name, equals, number = (piece.strip() for piece in part.partition("="))
            if not equals or not number.isdecimal():
                raise ValueError(f"A plan is written like next=1,prev=1,first=4, got {text!r}.")
            if name not in COUNTED:
                raise ValueError(f"There is no pattern {name!r}. {suggestion(name, COUNTED)}")
            if name in counts:
                raise ValueError(f"A plan says once how many heads get {name!r}, got {text!r}.")
            counts[name] = int(number)
        return cls(_counted({name: counts.get(name, 0) for name in COUNTED}, tokens))

    @property
    def heads(self) -> tuple[int, ...]:
        """The guided heads, in order."""
        return tuple(self.aims)


def _checked(aims: Mapping[int, Aim]) -> dict[int, Aim]:
    if not isinstance(cast("object", aims), Mapping):
        raise ValueError(
            f"A plan takes {{head: pattern(...)}}, got {aims!r}; text is read by Plan.parse."
        )
    for head, aim in cast("Mapping[int, object]", aims).items():
        check_whole_number("A head's number", head)
        if head < 0:
            raise ValueError(f"Heads are numbered from 0 on, got {head}.")
        if not isinstance(aim, Aim):
            raise ValueError(f"Head {head} gets what pattern(...) makes, got {aim!r}.")
    return dict(sorted(aims.items()))


def _counted(counts: Mapping[str, int], tokens: Mapping[str, Sequence[int]]) -> dict[int, Aim]:
    aims: list[Aim] = []
    for name in tokens:
        if name not in OF_COUNTED:
            raise ValueError(
                f"There is no pattern of tokens {name!r} to count. {suggestion(name, OF_COUNTED)}"
            )
    for name, number in counts.items():
        check_whole_number(name, number)
        if number < 0:
            raise ValueError(f"{name} must be a number of heads, 0 or more, got {number}.")
        if number > MOST_HEADS:
            raise ValueError(f"{name} is for {number} heads, and no layer has so many.")
        if number:
            held = tokens.get(name, ()) if name in OF_TOKENS else ()
            aims += [pattern(name, tokens=held)] * number
    return dict(enumerate(aims))
