"""Claims that are judged by differences between seeds: they hold, do not, or are undecided."""

from collections.abc import Sequence

from headwise_papers.core.base import Estimate, Expected

__all__ = ["ENOUGH", "seeds_claim", "sure", "sure_claim", "surely_within"]

ENOUGH = 3  # seeds; fewer decide nothing
NO_SPREAD = 1e-9  # of the largest difference: what rounding leaves of none


def sure(gains: Sequence[float]) -> float:
    """1 if the 95 % interval of gains is above 0, 0 if it is below, and 0.5 if neither is sure.

    That is so if the interval has 0 in it, if there are fewer than three seeds, and if all gains
    are the same: an interval without width says nothing of chance.

    >>> sure([0.5, 0.6, 0.7]), sure([-0.5, -0.6, -0.7])
    (1.0, 0.0)
    >>> sure([-0.5, 0.4, -0.7]), sure([0.5, 0.6]), sure([0.5, 0.5, 0.5])
    (0.5, 0.5, 0.5)
    """
    gain = _interval(gains)
    if gain is None or gain.low <= 0 <= gain.high:
        return 0.5
    return float(gain.low > 0)


def surely_within(differences: Sequence[float], limit: float) -> float:
    """1 if the 95 % interval of differences lies within so much of 0, 0 if outside, else 0.5.

    >>> surely_within([0.01, 0.0, -0.01], 0.05), surely_within([0.19, 0.2, 0.21], 0.05)
    (1.0, 0.0)
    >>> surely_within([0.0, 0.1, 0.2], 0.05), surely_within([0.01], 0.05)
    (0.5, 0.5)
    """
    found = _interval(differences)
    if found is None:
        return 0.5
    if -limit <= found.low and found.high <= limit:
        return 1.0
    return 0.0 if found.low > limit or found.high < -limit else 0.5


def _interval(differences: Sequence[float]) -> Estimate | None:
    """Student's; None where there are too few differences, or all are the same."""
    if len(differences) < ENOUGH:
        return None
    largest = max(map(abs, differences))
    if max(differences) - min(differences) <= NO_SPREAD * largest:
        return None
    return Estimate.of(differences, difference=True)


def sure_claim(metric: str, where: str) -> Expected:
    """A claim whose figure is that of `sure` or `surely_within`."""
    return Expected(metric, 1.0, where, three_way=True)


def seeds_claim(metric: str, where: str) -> Expected:
    """A claim whose figure says of each seed whether it holds.

    With fewer than three seeds it is "partly" at best.
    """
    return Expected(metric, 1.0, where, partly=0.5, enough=ENOUGH)
