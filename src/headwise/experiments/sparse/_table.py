"""Figures from scores: of each method, and by how much methods differ, seed by seed."""

from collections.abc import Mapping, Sequence

from headwise.experiments.base import Expected
from headwise.experiments.sparse._method_pairs import surely

__all__ = ["better", "differences", "expected_claim", "expected_difference", "less"]

Values = Mapping[str, Sequence[float]]  # method -> a value a seed


def less(part: str, first: str, second: str) -> str:
    """The name of a difference."""
    return f"{part}: {first} less {second}"


def better(part: str, first: str, second: str) -> str:
    """The name of the claim that a difference is no chance."""
    return f"{part}: {first} better than {second}"


def differences(
    part: str, values: Values, pairs: Sequence[tuple[str, str]]
) -> dict[str, list[float]]:
    """For each pair of methods the paired differences, and whether the first is better.

    That is 1, 0.5 or 0, see `surely`. Pairs of which a method was not measured are left out.

    >>> values = {"topk:8": [36.4, 36.5, 36.7], "softmax": [36.0, 36.2, 36.2]}
    >>> found = differences("de", values, [("topk:8", "softmax")])
    >>> [round(value, 1) for value in found["de: topk:8 less softmax"]]
    [0.4, 0.3, 0.5]
    >>> found["de: topk:8 better than softmax"]
    [1.0]

    Args:
        part: what the methods were tried on.
        values: of each method, by seed.
        pairs: which methods to compare.
    """
    figures: dict[str, list[float]] = {}
    for first, second in pairs:
        if first in values and second in values:
            found = [a - b for a, b in zip(values[first], values[second], strict=True)]
            figures[less(part, first, second)] = found
            figures[better(part, first, second)] = [surely(found)]
    return figures


def expected_difference(metric: str, paper: float, where: str) -> Expected:
    """A difference of BLEU in the paper: reproduced within 0.2, or a quarter of a large one.

    Partly within 0.5, or half of it.
    """
    margin, partly = max(0.2, round(abs(paper) / 4, 1)), max(0.5, round(abs(paper) / 2, 1))
    return Expected(metric, round(paper, 1), where, margin=margin, partly=partly)


def expected_claim(metric: str, where: str) -> Expected:
    """A claim that one method is better than another; partly if only the mean says so."""
    return Expected(metric, 1.0, where, partly=0.5)
