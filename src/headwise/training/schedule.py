"""Learning-rate schedules: functions from the step, counted from 1, to a factor of at most 1.

All rise in a straight line to 1 at step `warmup`; then each goes its own way.
"""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(*, warmup: int = 0) -> Schedule:
    """Stay at 1."""
    return _after_warmup(warmup, lambda step: 1.0)


def inverse_square_root(*, warmup: int) -> Schedule:
    """sqrt(warmup / step): the schedule of Vaswani et al. (2017), scaled to a peak of 1.

    Their c * width^-0.5 * min(step^-0.5, step * warmup^-1.5) is this one with a learning rate of
    c / sqrt(width * warmup).

    >>> factor = inverse_square_root(warmup=100)
    >>> factor(50), factor(100), factor(400)
    (0.5, 1.0, 0.5)
    """
    return _after_warmup(warmup, lambda step: math.sqrt(max(warmup, 1) / step))


def cosine(*, warmup: int = 0, steps: int) -> Schedule:
    """Fall to 0 at the last step along half a cosine."""
    share = _share(warmup, steps)
    return _after_warmup(warmup, lambda step: (1 + math.cos(math.pi * share(step))) / 2)


def linear(*, warmup: int = 0, steps: int) -> Schedule:
    """Fall to 0 at the last step along a straight line."""
    share = _share(warmup, steps)
    return _after_warmup(warmup, lambda step: 1 - share(step))


def _after_warmup(warmup: int, then: Schedule) -> Schedule:
    if warmup < 0:
        raise ValueError(f"warmup must be 0 steps or more, got {warmup}.")
    return lambda step: step / warmup if step < warmup else then(step)


def _share(warmup: int, steps: int) -> Schedule:
    """How much of the way from warm-up to the end is done, 0 to 1."""
    if steps <= warmup:
        raise ValueError(f"steps must be more than warmup, got {steps} and {warmup}.")
    return lambda step: min(1.0, (step - warmup) / (steps - warmup))
