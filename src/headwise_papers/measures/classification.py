"""How good predicted classes are, and whether one model's are better than another's.

A measure is a function of counts that add up over examples: of the table of gold and predicted
classes, for the measures of this file. So a bootstrap over examples only adds rows of counts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "PairedTest",
    "Part",
    "accuracy",
    "confusion",
    "f1",
    "macro_f1",
    "matthews",
    "paired_test",
    "student_p",
]

Measure = Callable[[Tensor], Tensor]  # from summed counts "*X K" to a score each
AT_ONCE = 2**20  # weights of examples that the bootstrap holds at a time


def confusion(
    gold: Sequence[int], predicted: Sequence[int], *, classes: int
) -> Int[Tensor, "N C C"]:
    """Return one table per example, 1 at (gold, predicted); their sum is the confusion matrix.

    >>> confusion([0, 1, 1], [0, 1, 0], classes=2).sum(0).tolist()
    [[1, 0], [1, 1]]
    """
    if len(gold) != len(predicted) or not gold:
        raise ValueError(
            f"One prediction for each of one example or more was wanted, got {len(predicted)} for "
            f"{len(gold)}."
        )
    cells_N = torch.tensor(gold) * classes + torch.tensor(predicted)
    return torch.nn.functional.one_hot(cells_N, classes * classes).view(-1, classes, classes)


def accuracy(confusion: Int[Tensor, "*X C C"] | Float[Tensor, "*X C C"]) -> Float[Tensor, "*X"]:
    """Return the share of right predictions."""
    counts = confusion.double()
    return _ratio(_diagonal(counts).sum(-1), counts.sum((-2, -1)))


def f1(
    confusion: Int[Tensor, "*X C C"] | Float[Tensor, "*X C C"], *, positive: int = -1
) -> Float[Tensor, "*X"]:
    """Return the F1 of one class, 2 tp / (2 tp + fp + fn); 0 for 0/0.

    Args:
        confusion: rows are gold, columns predicted.
        positive: which class; the last one unless given.
    """
    counts = confusion.double()
    named = counts.sum(-2)[..., positive] + counts.sum(-1)[..., positive]
    return _ratio(2 * counts[..., positive, positive], named)


def macro_f1(confusion: Int[Tensor, "*X C C"] | Float[Tensor, "*X C C"]) -> Float[Tensor, "*X"]:
    """Return the mean of the F1 of all classes."""
    classes = range(confusion.shape[-1])
    return torch.stack([f1(confusion, positive=place) for place in classes]).mean(0)


def matthews(confusion: Int[Tensor, "*X C C"] | Float[Tensor, "*X C C"]) -> Float[Tensor, "*X"]:
    """Correlate gold and predicted classes (Matthews; for more classes Gorodkin's R_K).

        (c s - t · p) / sqrt((s² - p · p) (s² - t · t))

    of s examples, c right ones, t and p the counts of gold and of predicted classes; 0 for 0/0.

    >>> round(float(matthews(torch.tensor([[4, 1], [2, 3]]))), 4)
    0.4082
    """
    counts = confusion.double()
    total, right = counts.sum((-2, -1)), _diagonal(counts).sum(-1)
    gold, found = counts.sum(-1), counts.sum(-2)
    above = right * total - (gold * found).sum(-1)
    squares = (total**2 - (found**2).sum(-1)) * (total**2 - (gold**2).sum(-1))
    return _ratio(above, squares.clamp(min=0).sqrt())


def _diagonal(counts_XCC: Tensor) -> Tensor:
    return counts_XCC.diagonal(dim1=-2, dim2=-1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below == 0, torch.zeros_like(above), above / below)


class Part(NamedTuple):
    """The counts of one training's predictions: of a fold, or of a seed."""

    examples: list[int]  # which they are; the same number is the same example everywhere
    counts: Tensor  # (N, …), a row an example


@dataclass(frozen=True)
class PairedTest:
    """Difference of the scores of two models with its tests; p values are two-sided."""

    difference: float  # mean over parts of the first one's score less the second one's
    parts: int  # pairs of trainings
    t: float | None  # of Student's test over parts; None with one part, or without spread
    p: float | None  # of it; without spread 1 if no part differs, else None: t has no bound
    bootstrap_low: float  # 95 % interval of `difference` over other examples
    bootstrap_high: float
    bootstrap_p: float


def paired_test(
    a: Sequence[Part],
    b: Sequence[Part],
    measure: Measure,
    *,
    overlap: float = 0.0,
    samples: int = 2000,
    seed: int = 0,
) -> PairedTest:
    """Compare two models that were trained and judged on the same parts (folds or seeds).

    Student's paired test over parts asks whether other trainings would give the same; the paper
    does this one. The bootstrap over examples asks whether other examples would: examples are drawn
    with replacement, the same for both, each with its predictions in all parts it is in, and the
    difference is again the mean over parts.

    Args:
        a: counts of the first model, a part a fold or seed.
        b: of the second, in the same order and of the same examples.
        measure: from counts, summed over examples, to a score.
        overlap: examples tested on divided by those trained on. Folds share training examples, and
            Student's test then finds differences too easily; this corrects it as Nadeau and Bengio
            (2003) do.
        samples: how often examples are drawn.
        seed: of the drawing.
    """
    _check_pairs(a, b)
    scores = [[float(measure(part.counts.sum(0))) for part in parts] for parts in (a, b)]
    differences = [one - other for one, other in zip(*scores, strict=True)]
    t, p = _student(differences, overlap)
    drawn = _bootstrap(a, b, measure, samples=samples, seed=seed)
    low, high = drawn.quantile(drawn.new_tensor([0.025, 0.975])).tolist()
    below, above = int((drawn <= 0).sum()), int((drawn >= 0).sum())
    return PairedTest(
        difference=fmean(differences),
        parts=len(differences),
        t=t,
        p=p,
        bootstrap_low=low,
        bootstrap_high=high,
        # the data as they are count as one more drawing, so that no p is 0
        bootstrap_p=min(1.0, 2 * (min(below, above) + 1) / (samples + 1)),
    )


def student_p(t: float, degrees: int) -> float:
    """Return the two-sided p value of Student's t.

    It is I_x(degrees / 2, 1 / 2) at x = degrees / (degrees + t²).

    >>> round(student_p(2.262, 9), 3)
    0.05
    """
    if degrees < 1:
        raise ValueError(f"Student's t has 1 degree of freedom or more, got {degrees}.")
    a, b, x = degrees / 2, 0.5, degrees / (degrees + t * t)
    if x < (a + 1) / (a + b + 2):
        return _incomplete_beta(a, b, x)
    return 1 - _incomplete_beta(b, a, 1 - x)


def _check_pairs(a: Sequence[Part], b: Sequence[Part]) -> None:
    if not a or len(a) != len(b):
        raise ValueError(
            f"Two models with as many parts each, one or more, were wanted, got {len(a)} and "
            f"{len(b)}."
        )
    for place, (one, other) in enumerate(zip(a, b, strict=True)):
        if one.examples != other.examples:
            raise ValueError(
                f"Part {place} of the two models was judged on different examples; train both on "
                "the same task with the same folds."
            )


def _student(differences: Sequence[float], overlap: float) -> tuple[float | None, float | None]:
    if len(differences) < 2:
        return None, None
    mean, spread = fmean(differences), stdev(differences)
    if spread == 0:
        # equal differences in two parts or three are no proof, and rounded scores give them often
        return None, 1.0 if mean == 0 else None
    t = mean / (spread * math.sqrt(1 / len(differences) + overlap))
    return t, student_p(t, len(differences) - 1)


def _bootstrap(
    a: Sequence[Part], b: Sequence[Part], measure: Measure, *, samples: int, seed: int
) -> Tensor:
    """Return mean differences over parts of bootstrap samples of the examples."""
    numbers = sorted({number for part in a for number in part.examples})
    place = {number: at for at, number in enumerate(numbers)}
    places = [torch.tensor([place[number] for number in part.examples]) for part in a]
    counts = [(one.counts.double(), other.counts.double()) for one, other in zip(a, b, strict=True)]
    random = torch.Generator().manual_seed(seed)
    found: list[Tensor] = []
    rows = max(1, AT_ONCE // len(numbers))
    for start in range(0, samples, rows):
        shape = min(rows, samples - start), len(numbers)
        drawn_XN = torch.randint(len(numbers), shape, generator=random)
        weight_XN = torch.zeros(shape, dtype=torch.float64)
        weight_XN.scatter_add_(1, drawn_XN, torch.ones(shape, dtype=torch.float64))
        differences = [
            _score(weight_XN[:, at], one, measure) - _score(weight_XN[:, at], other, measure)
            for at, (one, other) in zip(places, counts, strict=True)
        ]
        found.append(torch.stack(differences).mean(0))
    return torch.cat(found)


def _score(weight_XN: Tensor, counts: Tensor, measure: Measure) -> Tensor:
    return measure(torch.tensordot(weight_XN, counts, 1))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Compute the regularised incomplete beta function by its continued fraction (Lentz)."""
    if x <= 0:
        return 0.0
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            c, d = 1 + step / c, 1 / (1 + step * d)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value
