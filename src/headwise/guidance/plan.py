"""Plans of guidance: which head gets which pattern (Deshpande & Narasimhan, 2020, section 3.2).

Conventions say how the loss is reduced, and `Strength` how its weight decays.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Literal, cast, get_args

from headwise.config import suggestion
from headwise.ops._impl import Number
from headwise.ops.checks import check_whole_number
from headwise.ops.guidance import Edges, Reduction

NAMES = ("next", "prev", "first", "delim", "period", "tokens", "offset")
OFFSETS = {"next": 1, "prev": -1}
OF_TOKENS = ("delim", "period", "tokens")
# in the order in which heads get them
COUNTED: tuple[str, ...] = ("next", "prev", "first", "delim", "period")
MAX_HEADS = 4096  # more than any layer has
OF_COUNTED = tuple(name for name in COUNTED if name in OF_TOKENS)
NO_TOKENS: Mapping[str, Sequence[int]] = MappingProxyType({})


@dataclass(frozen=True)
class Aim:
    """Pattern of one head, made by `pattern`. Without offset and tokens it is the first key.

    Only keys that a query may see count. So the last token of a text has no next one, at the end of
    the row, before padding, or before the next text of the row. The first key is that of the text
    that the query belongs to.
    """

    name: str
    offset: int | None = None  # the key at the query's position + offset
    tokens: tuple[int, ...] = ()  # the keys with one of these tokens, equally

    @property
    def label(self) -> str:
        """Name with its offset or tokens, where several patterns share the name.

        >>> pattern("next").label, pattern("offset", offset=-2).label
        ('next', 'offset -2')
        """
        if self.name == "offset":
            return f"{self.name} {self.offset}"
        return f"{self.name} {self.tokens}" if self.name == "tokens" else self.name


def pattern(name: str, *, tokens: Iterable[int] = (), offset: int | None = None) -> Aim:
    """Make a pattern: "next", "prev", "first", "delim", "period", "tokens" or "offset".

    Args:
        name: of the pattern. "delim", "period" and "tokens" all mean the keys with certain tokens.
        tokens: ids of these tokens, e.g. `(tokenizer.cls_token_id, tokenizer.sep_token_id)`.
        offset: for "offset", position of the key minus position of the query.

    >>> pattern("prev").offset, pattern("period", tokens=[4]).tokens
    (-1, (4,))
    """
    if name not in NAMES:
        raise ValueError(f"There is no pattern {name!r}. {suggestion(name, NAMES)}")
    held = _numbers(tokens)
    _check_tokens(name, held)
    if (offset is not None) != (name == "offset"):
        wanted = "needs" if name == "offset" else "takes no"
        raise ValueError(f"The pattern {name!r} {wanted} offset=, got {offset!r}.")
    if offset is not None:
        check_whole_number("offset", offset)
    return Aim(name, OFFSETS.get(name, offset), tuple(sorted(set(held))))


def _numbers(tokens: object) -> tuple[int, ...]:
    if not isinstance(tokens, Iterable) or isinstance(tokens, str):
        raise ValueError(f"tokens= takes the numbers of tokens, e.g. (4,), got {tokens!r}.")
    return tuple(cast("Iterable[int]", tokens))


def _check_tokens(name: str, tokens: tuple[int, ...]) -> None:
    if bool(tokens) != (name in OF_TOKENS):
        wanted = "needs the numbers of its tokens as" if name in OF_TOKENS else "takes no"
        raise ValueError(f"The pattern {name!r} {wanted} tokens=, got {tokens}.")
    for token in tokens:
        check_token("A token", token)


def check_token(name: str, token: int) -> None:
    """Raise if this is not a token id."""
    check_whole_number(name, token)
    if token < 0:
        raise ValueError(f"{name} must be a token's number, 0 or more, got {token}.")


@dataclass(frozen=True, init=False)
class Plan:
    """Plan of guidance: the pattern of each guided head, the same at every site.

    Give the number of heads for each pattern, or the pattern of each head. Numbers of heads are
    assigned from head 0 on, in the order next, prev, first, delim, period.

    Args:
        aims: `{head: pattern(...)}`.
        next: number of heads for the next token.
        prev: number of heads for the previous token.
        first: number of heads for the first token.
        delim: number of heads for delimiters.
        period: number of heads for full stops.
        tokens: token ids of "delim" and "period".

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
        """Return the paper's plan for a share of the heads: one next, one prev, the others first.

        Half a head counts as one (section 5.3).

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
        """Return the plan written as text like "next=1,prev=1,first=4".

        >>> Plan.parse("next=1, first=4") == Plan(next=1, first=4)
        True
        """
        counts: dict[str, int] = {}
        for part in text.split(","):
            name, equals, number = (token.strip() for token in part.partition("="))
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
        """Indices of the guided heads, in order."""
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
        if number > MAX_HEADS:
            raise ValueError(f"{name} is for {number} heads, and no layer has so many.")
        if number:
            held = tokens.get(name, ()) if name in OF_TOKENS else ()
            aims += [pattern(name, tokens=held)] * number
    return dict(enumerate(aims))


Schedule = Literal["linear", "constant_then_linear", "constant"]
ConventionName = Literal["mean", "paper", "reference_code"]
MAX_ALPHA = 1e38  # that float32 can hold
CONSTANT_FOR = 20_000  # updates of the published code before alpha begins to fall


@dataclass(frozen=True)
class Convention:
    """Convention of the guidance loss; see `CONVENTIONS`."""

    reduction: Reduction  # mean over pairs of a query and a key, or sum over each text
    by_pattern: bool  # the heads of a site with one pattern count together as one head
    normalised: bool  # a row's target sums to 1; else it is 1 at every aimed key
    edges: Edges  # the target of rows that see no aimed key
    schedule: Schedule  # unless another is asked for


CONVENTIONS: Mapping[ConventionName, Convention] = MappingProxyType(
    {
        # the patterns of the paper, and the loss that its alphas belong to
        "mean": Convention("mean", True, True, "uniform", "linear"),
        # Eq. 2 to 4: squared Frobenius norms, summed over heads and layers
        "paper": Convention("sum", False, True, "uniform", "linear"),
        "reference_code": Convention("mean", True, False, "nothing", "constant_then_linear"),
    }
)


@dataclass(frozen=True)
class Strength:
    """Weight of the loss, alpha_t, as a function of the updates done.

    >>> Strength(10.0, "linear", steps=100)(25)
    7.5
    """

    alpha: Number
    schedule: Schedule
    steps: int | None = None  # updates of the whole training; alpha is 0 after them
    constant_for: int = CONSTANT_FOR

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.schedule not in get_args(Schedule):
            known = ", ".join(map(repr, get_args(Schedule)))
            raise ValueError(f"schedule must be one of {known}, got {self.schedule!r}.")
        check_whole_number("constant_for", self.constant_for)
        if self.steps is not None:
            check_whole_number("steps", self.steps)
            if self.steps < 1:
                raise ValueError(f"steps must be at least 1 update, got {self.steps}.")
        if self.constant_for < 0:
            raise ValueError(f"constant_for must be 0 updates or more, got {self.constant_for}.")
        too_short = self.steps is not None and self.steps <= self.constant_for
        if too_short and self.schedule == "constant_then_linear":
            raise ValueError(
                f"alpha is to begin to fall after {self.constant_for} updates, but there are "
                f"{self.steps}, so that it never would; make constant_for smaller than that."
            )

    @property
    def falls(self) -> bool:
        """Whether alpha depends on the updates done."""
        return self.schedule != "constant"

    def __call__(self, step: int) -> float:
        if step < 0:
            raise ValueError(f"The number of updates done must be at least 0, got {step}.")
        if not self.falls:
            return float(self.alpha)
        if self.steps is None:
            raise ValueError(
                f"With the schedule {self.schedule!r} alpha falls to 0 at the last update: give "
                "guide the number of updates as steps=, or schedule='constant'."
            )
        start = 0 if self.schedule == "linear" else self.constant_for
        if step < start:
            return float(self.alpha)
        return self.alpha * (max(0, self.steps - step) / (self.steps - start))


def check_alpha(alpha: Number) -> None:
    """Raise if alpha is not a finite number of at least 0."""
    number = isinstance(cast("object", alpha), Real)
    if not number or not 0 <= alpha <= MAX_ALPHA:
        raise ValueError(f"alpha must be a finite number of at least 0, got {alpha!r}.")


def convention_of(name: ConventionName) -> Convention:
    """Return the convention with this name."""
    if name not in CONVENTIONS:
        known = ", ".join(map(repr, CONVENTIONS))
        raise ValueError(f"convention must be one of {known}, got {name!r}.")
    return CONVENTIONS[name]
