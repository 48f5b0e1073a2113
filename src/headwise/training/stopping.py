"""When to stop: which evaluation was the best, and for how long there was no better one."""

from collections.abc import Sequence
from typing import Literal

Better = Literal["lower", "higher"]


def best_of(figures: Sequence[float], *, better: Better) -> int:
    """The place of the best figure; of equal ones the first.

    >>> best_of([0.5, 0.2, 0.2], better="lower")
    1
    """
    if not figures:
        raise ValueError("At least one figure is needed to find the best, got none.")
    return figures.index(min(figures) if better == "lower" else max(figures))


def out_of_patience(figures: Sequence[float], *, better: Better, patience: int) -> bool:
    """Whether none of the last `patience` figures is better than all before them.

    Args:
        figures: one an evaluation, the oldest first.
        better: whether a lower or a higher figure is better; an equal one is not.
        patience: 0 never runs out.

    >>> out_of_patience([0.5, 0.2, 0.3, 0.2], better="lower", patience=2)
    True
    """
    if patience == 0 or not figures:
        return False
    return len(figures) - 1 - best_of(figures, better=better) >= patience
