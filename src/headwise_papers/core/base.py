"""What an experiment is: a config, tiny settings, how to reproduce it, and what to expect."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from headwise.recording.run import Run

Verdict = Literal["as before", "changed"]
PaperVerdict = Literal["reproduced", "partly", "undecided", "not"]
OUR_QUESTION = "our question"  # where a claim stands that is not a paper's

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
           2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
           2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
NORMAL = 1.96  # and for more


class Trials(list[float]):
    """Values of a figure of which each is a trial that failed or succeeded, 0 or 1.

    Their mean is a share of trials, which has Wilson's interval.
    """


@dataclass(frozen=True)
class Estimate:
    """A figure measured several times, once a seed, with its 95 % interval.

    >>> estimate = Estimate.of([0.9, 1.0, 1.1])
    >>> round(estimate.low, 2), estimate.mean, round(estimate.high, 2)
    (0.75, 1.0, 1.25)
    """

    mean: float
    low: float  # equal to the mean when there is one value
    high: float
    values: tuple[float, ...]
    trials: bool | None = None  # see `of`

    @staticmethod
    def of(
        values: Sequence[float | int], *, difference: bool = False, trials: bool | None = None
    ) -> "Estimate":
        """Mean and 95 % interval of some values: Student's, of trials Wilson's for a binomial.

        Args:
            values: one or more.
            difference: whether they are differences, which may all be 0 and are no trials.
            trials: whether each is a trial, 0 or 1. None, of experiments that do not say it: they
                are if all are 0 or 1.
        """
        if not values or not all(math.isfinite(value) for value in values):
            raise ValueError(f"A figure needs one finite value or more, got {list(values)}.")
        mean, count = fmean(values), len(values)
        binary = all(value in (0, 1) for value in values)
        assert binary or not trials, f"Trials are 0 or 1, got {list(values)}."
        if count == 1:
            return Estimate(mean, mean, mean, (mean,), trials)
        if trials or (trials is None and binary and not difference):
            return Estimate(mean, *_wilson(mean, count), tuple(map(float, values)), trials)
        quantile = STUDENT[count - 2] if count - 2 < len(STUDENT) else NORMAL
        half = quantile * stdev(values) / math.sqrt(count)
        return Estimate(mean, mean - half, mean + half, tuple(map(float, values)), trials)

    @staticmethod
    def of_figure(
        name: str, values: Sequence[float | int], *, trials: bool | None = None
    ) -> "Estimate":
        """The same of a figure of an experiment: "this less that" is a difference.

        "this less that, above 0" is none, but what a difference shows.
        """
        _, less, rest = name.rpartition(" less ")
        difference = bool(less) and "," not in rest
        return Estimate.of(values, difference=difference, trials=trials)

    def distance(self, value: float) -> float:
        """How far a value lies outside the interval; 0 inside."""
        return max(self.low - value, value - self.high, 0.0)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of so many trials; never empty, also at 0 and 1."""
    weight = NORMAL**2 / count
    centre = (share + weight / 2) / (1 + weight)
    half = NORMAL * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)


@dataclass(frozen=True)
class Expected:
    """What the paper says of a figure.

    What we ourselves expect is not typed: it is the result recorded in results/, see `since`.

    Args:
        metric: the figure's name.
        paper: the paper's figure; for a claim 1.0, where the metric is the share of seeds (or
            words) for which the claim holds.
        where: the table, figure or sentence it stands in.
        margin: how far from the paper's figure our interval may end and still reproduce it.
        partly: how far for a partial reproduction.
        signed: whether the sign is what is claimed, as of differences: a mean on the other side of
            0 reproduces nothing, and an interval wholly there contradicts the paper, however near.
        three_way: whether the figure is 1 where the claim holds, 0 where the contrary does and
            between where neither is sure, see `headwise_papers.core.claims.sure`; what lies between
            is "undecided".
        enough: so many values it takes to reproduce it; with fewer it is "partly" at best.
    """

    metric: str
    paper: float | None = None
    where: str = ""
    margin: float = 0.0
    partly: float = 0.0
    signed: bool = False
    three_way: bool = False
    enough: int = 1

    @property
    def is_our_question(self) -> bool:
        """Whether it is us who ask, and no paper has an answer."""
        return self.where == OUR_QUESTION

    def paper_verdict(self, got: Estimate) -> PaperVerdict | None:
        """Whether the paper's figure came out; None if it has none.

        A number is judged by the distance of our interval from it, and is reproduced only if our
        mean is within `partly` of it too, as a wide interval must not help. A claim (or anything
        else that the paper has at 100 %) is judged by our mean.
        """
        if self.paper is None:
            return None
        if self.three_way:
            return _three_way(got.mean)
        is_claim = self.paper == 1.0 and all(0 <= value <= 1 for value in got.values)
        # seeds that disagree make a wide interval; a claim must not profit from that
        distance = 1.0 - got.mean if is_claim else got.distance(self.paper)
        near = is_claim or not self.partly or abs(got.mean - self.paper) <= self.partly
        if self.signed and got.mean * self.paper < 0:
            if len(got.values) > 1 and max(got.low * self.paper, got.high * self.paper) < 0:
                return "not"
            near = False
        if distance <= self.margin and near and len(got.values) >= self.enough:
            return "reproduced"
        return "partly" if distance <= max(self.partly, self.margin) else "not"


def _three_way(sure: float) -> PaperVerdict:
    if 0 < sure < 1:
        return "undecided"
    return "reproduced" if sure else "not"


def since(recorded: Estimate | None, got: Estimate) -> Verdict | None:
    """Whether a figure is what it was: intervals that meet, or means within 2 % of each other."""
    if recorded is None:
        return None
    apart = max(recorded.low - got.high, got.low - recorded.high)
    near = abs(got.mean - recorded.mean) <= 0.02 * abs(recorded.mean)
    return "as before" if apart <= 0 or near else "changed"


@dataclass(frozen=True)
class Experiment:
    """Everything `headwise reproduce` needs.

    `reproduce(config, run)` does the work, draws pictures into `run` as `pictures/NAME.png`, and
    returns for each figure its values, one a seed.
    """

    summary: str
    config: Any  # a frozen dataclass with the paper's values
    smoke: Any  # the same, tiny: seconds on one core
    reproduce: Callable[[Any, Run], Mapping[str, Sequence[float]]]
    expected: tuple[Expected, ...]
    # whether those figures alone are trials that are `Trials`; else all whose values are 0 or 1 are
    marks_trials: bool = False

    def estimate(self, metric: str, values: Sequence[float | int]) -> Estimate:
        """The mean and interval of one of its figures."""
        trials = isinstance(values, Trials) if self.marks_trials else None
        return Estimate.of_figure(metric, values, trials=trials)
