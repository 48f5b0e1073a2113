"""How numbers are written for readers: few digits, the same number of decimals down a column."""

import math
from collections.abc import Iterable
from typing import TypeGuard

MINUS = "\N{MINUS SIGN}"


def is_number(value: object) -> TypeGuard[float | int]:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, float | int) and not isinstance(value, bool)


def decimals_for(values: Iterable[float | int]) -> int:
    """How many decimals show the largest of some numbers with three significant digits.

    >>> decimals_for([0.25, 0.981]), decimals_for([93.25, 1.0]), decimals_for([3, 14])
    (3, 1, 0)
    """
    listed = list(values)
    largest = max(map(abs, listed), default=0)
    if largest == 0 or all(isinstance(value, int) for value in listed):
        return 0
    return min(max(2 - math.floor(math.log10(largest)), 0), 8)


def written(value: float | int, *, decimals: int) -> str:
    """A number with so many decimals, a real minus sign and commas between thousands.

    >>> written(1234.56, decimals=1), written(-0.0001, decimals=2)
    ('1,234.6', '0.00')
    """
    text = f"{abs(value):,.{decimals}f}"
    is_zero = not text.strip("0.,")
    return text if value >= 0 or is_zero else MINUS + text


def headline(name: str, value: float | int) -> str:
    """A figure as a tile shows it: accuracies in percent, seconds with their unit.

    >>> headline("token_accuracy", 0.981), headline("seconds", 71.04), headline("bleu", 93.21)
    ('98.1 %', '71.0 s', '93.2')
    """
    if name.endswith("accuracy") and 0 <= value <= 1:
        percent = 100 * value
        # nothing short of perfect is shown as 100 %
        decimals = 1 if percent == 100 or percent < 99.95 else 3
        return f"{written(percent, decimals=decimals)} %"
    text = written(value, decimals=decimals_for([value]))
    return f"{text} s" if name.split("_")[-1] == "seconds" else text
