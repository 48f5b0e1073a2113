"""Results, claims and experiments, and the one rule that judges a claim by a result.

A verdict follows from the recorded values and from what the claim said before the run: its rule,
and its margin, threshold or sign.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack, get_args

from headwise.config import Dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from headwise.recording import Run

__all__ = ["Claim", "Experiment", "Job", "Result", "Verdict", "minus", "share", "verdict"]

Kind = Literal["mean", "difference", "share"]
Rule = Literal["direction", "number", "share"]
Verdict = Literal["reproduced", "not", "undecided", "not measured"]

CLAIMS = 166  # claims of the five papers, numbered from 1 in papers/claims.json
CONFIDENCE = 0.95
MIN_SEEDS = 3  # for a direction
NO_SPREAD = 1e-9  # of the largest value: spread that rounding alone can leave
KINDS: dict[Rule, tuple[Kind, ...]] = {
    "direction": ("difference",),
    "number": ("mean", "difference"),
    "share": ("share",),
}


@dataclass(frozen=True)
class Result:
    """Values measured over seeds, with their mean and 95 % interval.

    The interval is Student's t of the values, for a share Wilson's. One value has no width.

    Args:
        values: one per seed; one per example where seeds differ by noise alone.
        kind: "mean", "difference" (paired by seed) or "share" (trials, each 0 or 1).

    >>> result = Result([0.9, 1.0, 1.1])
    >>> round(result.low, 2), result.mean, round(result.high, 2)
    (0.75, 1.0, 1.25)
    """

    values: Sequence[float]
    kind: Kind = "mean"

    def __post_init__(self) -> None:
        values = tuple(map(float, self.values))
        object.__setattr__(self, "values", values)
        if self.kind not in get_args(Kind):
            raise ValueError(f"A result is of kind {_listed(Kind)}, got {self.kind!r}.")
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"A result needs one finite value or more, got {list(values)}.")
        if self.kind == "share" and not set(values) <= {0.0, 1.0}:
            raise ValueError(f"The trials of a share are 0 or 1, got {list(values)}.")

    @cached_property
    def mean(self) -> float:
        """Mean of the values."""
        return fmean(self.values)

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self._interval[1]

    @cached_property
    def _interval(self) -> tuple[float, float]:
        count = len(self.values)
        if count == 1:
            return self.mean, self.mean
        if self.kind == "share":
            return _wilson(round(sum(self.values)), count)
        half = _student(count) * stdev(self.values) / math.sqrt(count)
        return self.mean - half, self.mean + half

    def to_json(self) -> dict[str, Any]:
        """Return kind, values, mean, low and high as JSON can hold them."""
        return {
            "kind": self.kind,
            "values": list(self.values),
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Result":
        """Rebuild a result from its kind and values; mean, low and high are computed again."""
        return Result(data["values"], data["kind"])


def minus(a: Result, b: Result) -> Result:
    """Subtract two results seed by seed, for example a method's values less its baseline's.

    >>> minus(Result([3.0, 5.0]), Result([1.0, 2.0])).values
    (2.0, 3.0)
    """
    if len(a.values) != len(b.values):
        raise ValueError(
            f"A difference is paired by seed, got {len(a.values)} and {len(b.values)} values."
        )
    return Result([x - y for x, y in zip(a.values, b.values, strict=True)], "difference")


def share(trials: Iterable[bool]) -> Result:
    """Return the share of independent trials that succeeded."""
    return Result([float(bool(trial)) for trial in trials], "share")


class About(TypedDict, total=False):
    """Fields that every claim may have, see `Claim`."""

    number: int | None
    where: str
    text: str
    stands_for: str


@dataclass(frozen=True)
class Claim:
    """A statement about one result, with the rule that judges it, fixed before the run.

    Use `Claim.direction`, `Claim.value`, `Claim.comparable` or `Claim.share`.

    Args:
        result: name of the result that decides.
        rule: "direction", "number" or "share".
        paper: the paper's number; with other rules than "number" it is shown, not judged.
        margin: of "number", how far from the paper's number the interval may reach.
        threshold: of "share", the least share that the claim asserts.
        sign: of "direction", 1 where the paper says above 0, -1 where below.
        exact: of "number", whether one measurement decides, because chance has no part in it.
        number: of the claim in papers/claims.json; None for a question of our own.
        where: table, figure or section of the paper.
        text: the claim in plain words.
        stands_for: the data that stand in for the paper's, and for which.
    """

    result: str
    rule: Rule
    paper: float | None = None
    margin: float = 0.0
    threshold: float = 0.0
    sign: int = 1
    exact: bool = False
    number: int | None = None
    where: str = ""
    text: str = ""
    stands_for: str = ""

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise self._wrong(f"a rule is {_listed(Rule)}, got {self.rule!r}")
        if self.sign not in (1, -1):
            raise self._wrong(f"sign is 1 or -1, got {self.sign}")
        if self.number is not None and not 1 <= self.number <= CLAIMS:
            raise self._wrong(f"number is from 1 to {CLAIMS}, or None, got {self.number}")
        if self.paper is not None and not math.isfinite(self.paper):
            raise self._wrong(f"the paper's number is finite, got {self.paper}")
        if not 0 <= self.margin < math.inf:
            raise self._wrong(f"margin is finite and not below 0, got {self.margin}")
        if self.rule == "number" and self.paper is None:
            raise self._wrong("the rule needs the paper's number")
        if self.rule == "share" and not 0 < self.threshold < 1:
            # Wilson's interval never ends at 1 or below 0: such claims cannot hold or cannot fail
            raise self._wrong(f"threshold is above 0 and below 1, got {self.threshold}")

    def _wrong(self, problem: str) -> ValueError:
        return ValueError(f"Claim about {self.result!r}: {problem}.")

    @staticmethod
    def direction(
        result: str, *, sign: int = 1, paper: float | None = None, **about: Unpack[About]
    ) -> "Claim":
        """Claim that a difference is above 0, or with `sign=-1` below."""
        return Claim(result, "direction", paper, sign=sign, **about)

    @staticmethod
    def value(
        result: str, paper: float, *, margin: float, exact: bool = False, **about: Unpack[About]
    ) -> "Claim":
        """Claim that a result is the paper's number, within a margin."""
        return Claim(result, "number", paper, margin, exact=exact, **about)

    @staticmethod
    def comparable(result: str, *, margin: float, **about: Unpack[About]) -> "Claim":
        """Claim that there is no difference: the number is 0, within a margin."""
        return Claim(result, "number", 0.0, margin, **about)

    @staticmethod
    def share(
        result: str, *, threshold: float, paper: float | None = None, **about: Unpack[About]
    ) -> "Claim":
        """Claim that at least this share of trials succeeds."""
        return Claim(result, "share", paper, threshold=threshold, **about)


def verdict(claim: Claim, result: Result | None) -> Verdict:
    """Judge a claim by its result, or by None where nothing was measured.

    - direction: the interval lies on the paper's side of 0 (reproduced) or on the other (not). It
      takes three values that are not all equal, as an interval without width ignores chance.
    - number: the whole interval lies within the margin of the paper's number (reproduced), or
      wholly outside (not). It takes two values, or one if the claim is exact.
    - share: the lower end is at least the threshold (reproduced), or the upper end is below it
      (not). It takes two trials.

    Everything else is undecided. A result whose kind does not fit the rule raises.

    >>> verdict(Claim.direction("a - b"), Result([0.5, 0.6, 0.7], "difference"))
    'reproduced'
    """
    if result is None:
        return "not measured"
    if result.kind not in KINDS[claim.rule]:
        raise ValueError(
            f"A claim by the rule {claim.rule!r} needs a result of kind "
            f"{' or '.join(KINDS[claim.rule])}, but {claim.result!r} is of kind {result.kind}."
        )
    if not _can_decide(claim, result):
        return "undecided"
    if claim.rule == "direction":
        ends = sorted((claim.sign * result.low, claim.sign * result.high))
        return _judged(holds=ends[0] > 0, fails=ends[1] < 0)
    if claim.rule == "share":
        holds, fails = result.low >= claim.threshold, result.high < claim.threshold
        return _judged(holds=holds, fails=fails)
    assert claim.paper is not None
    least, most = claim.paper - claim.margin, claim.paper + claim.margin
    return _judged(
        holds=least <= result.low and result.high <= most,
        fails=result.high < least or result.low > most,
    )


def _judged(*, holds: bool, fails: bool) -> Verdict:
    if holds:
        return "reproduced"
    return "not" if fails else "undecided"


def _can_decide(claim: Claim, result: Result) -> bool:
    if claim.rule == "direction":
        spread = max(result.values) - min(result.values)
        has_width = spread > NO_SPREAD * max(map(abs, result.values))
        return len(result.values) >= MIN_SEEDS and has_width
    return claim.exact or len(result.values) > 1


class Job(NamedTuple):
    """A model to train: `train(config, folder)` returns the finished run and resumes by itself."""

    train: "Callable[[Any, Path], Run]"
    config: Dataclass


@dataclass(frozen=True)
class Experiment:
    """Everything `headwise reproduce` needs; an experiment file ends with one named `experiment`.

    Args:
        config: a frozen dataclass with the settings of the full run.
        smoke: the same with tiny settings, seconds on one core.
        models: lists the models that `run` finds by `find_or_train`, so that the runner can train
            them in parallel; None where there are none.
        run: measures, and returns results by name. The second argument is the experiment's own run
            folder, where curves may be logged for `draw`.
        draw: returns figures by name, from results and that folder; None where there are none.
        claims: what the results decide.
    """

    config: Dataclass
    smoke: Dataclass
    models: Callable[[Any], Iterable[Job]] | None
    run: "Callable[[Any, Run], dict[str, Result]]"
    draw: "Callable[[dict[str, Result], Run], dict[str, Figure]] | None"
    claims: tuple[Claim, ...]


def _listed(kinds: Any) -> str:
    return ", ".join(map(repr, get_args(kinds)))


@cache
def _student(count: int) -> float:
    """Return the two-sided 95 % quantile of Student's t for so many values."""
    from scipy.special import stdtrit  # lazy: judging needs scipy, training does not

    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))


def _wilson(successes: int, trials: int) -> tuple[float, float]:
    from scipy.stats import binomtest  # lazy, and apart: it takes seconds to import

    interval = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)
