"""Which heads are guided, and where to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headwise.config import suggestion
from headwise.guidance.patterns import OF_TOKENS, Aim, pattern
from headwise.ops._impl import Number
from headwise.ops.checks import check_whole_number

# in the order in which heads get them
COUNTED: tuple[str, ...] = ("next", "prev", "first", "delim", "period")

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
        chosen = _counted(counts, tokens) if aims is None else dict(sorted(aims.items()))
        if not chosen:
            raise ValueError("The plan guides no head; say e.g. Plan(next=1, prev=1, first=4).")
        for head in chosen:
            check_whole_number("A head's number", head)
            if head < 0:
                raise ValueError(f"Heads are numbered from 0 on, got {head}.")
        object.__setattr__(self, "aims", chosen)

    @classmethod
    def fraction(cls, share: Number, *, heads: int) -> "Plan":
        """The paper's choice for a share of the heads: one Next, one Prev, the others First (§5.3).

        >>> len(Plan.fraction(1 / 2, heads=12).aims)
        6
        """
        guided = round(share * heads)
        if not 0 < share <= 1 or guided < 1:
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
        counts = dict.fromkeys(COUNTED, 0)
        for part in text.split(","):
            name, equals, number = (piece.strip() for piece in part.partition("="))
            if not equals or not number.isdigit():
                raise ValueError(f"A plan is written like next=1,prev=1,first=4, got {text!r}.")
            if name not in counts:
                raise ValueError(f"There is no pattern {name!r}. {suggestion(name, counts)}")
            counts[name] = int(number)
        return cls(_counted(counts, tokens))

    @property
    def heads(self) -> tuple[int, ...]:
        """The guided heads, in order."""
        return tuple(self.aims)


def _counted(counts: Mapping[str, int], tokens: Mapping[str, Sequence[int]]) -> dict[int, Aim]:
    aims: list[Aim] = []
    for name, number in counts.items():
        check_whole_number(name, number)
        if number < 0:
            raise ValueError(f"{name} must be a number of heads, 0 or more, got {number}.")
        if number:
            held = tokens.get(name, ()) if name in OF_TOKENS else ()
            aims += [pattern(name, tokens=held)] * number
    return dict(enumerate(aims))
