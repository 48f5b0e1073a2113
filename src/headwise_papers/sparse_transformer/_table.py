"""Figures from scores: of each method, and by how much methods differ, seed by seed."""

from collections.abc import Mapping, Sequence

from headwise_papers.core.base import Estimate, Expected
from headwise_papers.sparse_transformer._method_pairs import surely

__all__ = ["as_in_paper", "better", "differences", "expected_claim", "expected_gain", "less"]

Values = Mapping[str, Sequence[float]]  # method -> a value a seed
Gains = Mapping[tuple[str, str], float]  # (first, second) -> how much more the paper has

COMPARABLE = 0.2  # BLEU: the paper's differences up to this count as none
NONE = 0.5  # BLEU: where our interval must lie to say that there is none
SAME = "as in the paper"


def less(part: str, first: str, second: str) -> str:
    """The name of a difference."""
    return f"{part}: {first} less {second}"


def better(part: str, first: str, second: str) -> str:
    """The name of the claim that a difference is no chance."""
    return f"{part}: {first} better than {second}"


def differences(
    part: str, values: Values, pairs: Sequence[tuple[str, str]], *, paper: Gains | None = None
) -> dict[str, list[float]]:
    """For each pair of methods the paired differences, and what they say.

    Whether the first is better, see `surely`, and where the paper has such a difference, whether
    ours is like it, see `as_in_paper`. Pairs of which a method was not measured are left out.

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
        paper: the paper's differences of some of the pairs.
    """
    figures: dict[str, list[float]] = {}
    gains = paper or {}
    for first, second in pairs:
        if first in values and second in values:
            found = [a - b for a, b in zip(values[first], values[second], strict=True)]
            name = less(part, first, second)
            figures[name] = found
            figures[better(part, first, second)] = [surely(found)]
            if (first, second) in gains:
                figures[f"{name}, {SAME}"] = [as_in_paper(found, gains[first, second])]
    return figures


def as_in_paper(gains: Sequence[float], paper: float) -> float:
    """1 if gains are surely like the paper's, 0.5 if their mean is, and 0 if not even it.

    Like a gain of more than 0.2 BLEU are those that are surely on the same side of 0, with an
    interval within 0.2 or a quarter of it, and a mean within 0.5 or half of it. The paper's smaller
    gains count as none: the interval must lie between -0.5 and 0.5. One gain alone is never sure.

    >>> [as_in_paper(gains, 0.3) for gains in ([0.2, 0.3, 0.4], [0.0, 0.3, 0.4], [-0.1])]
    [1.0, 0.5, 0.0]
    >>> as_in_paper([0.1, 0.0, -0.1], 0.0), as_in_paper([2.0, -1.0, 0.0], 0.0)
    (1.0, 0.5)
    """
    found, several = Estimate.of(gains, difference=True), len(gains) > 1
    if abs(paper) <= COMPARABLE:
        if several and found.low >= -NONE and found.high <= NONE:
            return 1.0
        return 0.5 if abs(found.mean) <= NONE else 0.0
    sure = surely([gain if paper > 0 else -gain for gain in gains])
    near = abs(found.mean - paper) <= max(0.5, abs(paper) / 2)
    if not near or not sure:
        return 0.0
    return sure if found.distance(paper) <= max(0.2, abs(paper) / 4) else 0.5


def expected_gain(part: str, first: str, second: str, gain: float, where: str) -> list[Expected]:
    """A difference of BLEU in the paper: the figure without a verdict, and the claim with one."""
    name = less(part, first, second)
    return [
        Expected(name, None, f"{gain:+.1f} in {where}"),
        expected_claim(f"{name}, {SAME}", where),
    ]


def expected_claim(metric: str, where: str) -> Expected:
    """A claim that one method is better than another; partly if only the mean says so."""
    return Expected(metric, 1.0, where, partly=0.5)
