"""Timing two contestants against each other: in turns, so that a busy machine slows both."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

LEAST_ROUNDS, MOST_ROUNDS = 6, 31  # 6 is the least that gives a 95 % interval of a median
LEAST_SECONDS = 0.01  # a call that takes less is repeated, as clocks are coarse
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times faster the second was: a median with its 95 % interval.

    >>> Ratio.of([1.2, 1.1, 1.3, 1.2, 1.25, 1.15])
    Ratio(median=1.2, low=1.1, high=1.3)
    """

    median: float
    low: float
    high: float

    @staticmethod
    def of(ratios: Sequence[float]) -> "Ratio":
        """From one ratio a round; the interval is between two of them, whatever they are like."""
        ordered, count = sorted(ratios), len(ratios)
        outside, place = 0.0, 0  # how likely the median is beyond the values at place
        for index in range(count // 2):
            outside += math.comb(count, index) / 2**count
            if 1 - 2 * outside < CONFIDENCE:
                break
            place = index
        return Ratio(median(ordered), ordered[place], ordered[count - 1 - place])

    @property
    def is_one(self) -> bool:
        """Whether no difference was shown."""
        return self.low <= 1 <= self.high


@dataclass(frozen=True)
class Compared:
    """Seconds of a call, medians over rounds, and how they compare."""

    before: float
    after: float
    ratio: Ratio


def take_turns(
    before: Callable[[], object],
    after: Callable[[], object],
    *,
    seconds: float,
    device: torch.device,
) -> Compared:
    """Time two functions, one after the other in each round, and who begins alternates.

    Args:
        before: the first.
        after: the second.
        seconds: about how long to go on; there are 6 rounds at least and 31 at most.
        device: waited for where it works on its own.
    """
    calls = (before, after)
    first = [max(_timed(call, 1, device) for _ in range(2)) for call in calls]  # warms up, too
    repeats = max(1, math.ceil(LEAST_SECONDS / max(min(first), 1e-9)))
    rounds = round(seconds / (sum(first) * repeats))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS)):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            times[which].append(_timed(calls[which], repeats, device))
    ratios = [old / new for old, new in zip(*times, strict=True)]
    return Compared(median(times[0]), median(times[1]), Ratio.of(ratios))


def _timed(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
