"""An exact test of pairs that differ."""

import math

__all__ = ["LEVEL", "sign_test"]

LEVEL = 0.05  # below which a p counts as no chance


def sign_test(first: int, second: int) -> float:
    """The two-sided p of so many successes and failures if both are as likely.

    >>> sign_test(6, 0), sign_test(1, 1)
    (0.03125, 1.0)
    """
    number = first + second
    tail = sum(math.comb(number, k) for k in range(max(first, second), number + 1))
    return min(1.0, 2 * tail / 2**number)
