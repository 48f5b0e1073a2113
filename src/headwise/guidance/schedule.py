"""Conventions and schedules of guidance: how the loss is reduced, how its weight decays."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Literal, cast, get_args

from headwise.ops._impl import Number
from headwise.ops.checks import check_whole_number
from headwise.ops.guidance import Edges, Reduction

Schedule = Literal["linear", "constant_then_linear", "constant"]
ConventionName = Literal["mean", "paper", "reference_code"]
MAX_ALPHA = 1e38  # that float32 can hold
CONSTANT_FOR = 20_000  # updates of the published code before alpha begins to fall


@dataclass(frozen=True)
class Convention:
    """Convention of the guidance loss; see `CONVENTIONS`."""

    reduction: Reduction  # mean over pairs of a query and a key, or sum over each text
    by_pattern: bool  # the heads of a site with one pattern count together as one head
    normalised: bool  # a row's target sums to 1; else it is 1 at every aimed key
    edges: Edges  # the target of rows that see no aimed key
    schedule: Schedule  # unless another is asked for


CONVENTIONS: Mapping[ConventionName, Convention] = MappingProxyType(
    {
        # the patterns of the paper, and the loss that its alphas belong to
        "mean": Convention("mean", True, True, "uniform", "linear"),
        # Eq. 2 to 4: squared Frobenius norms, summed over heads and layers
        "paper": Convention("sum", False, True, "uniform", "linear"),
        "reference_code": Convention("mean", True, False, "nothing", "constant_then_linear"),
    }
)


@dataclass(frozen=True)
class Strength:
    """Weight of the loss, alpha_t, as a function of the updates done.

    >>> Strength(10.0, "linear", steps=100)(25)
    7.5
    """

    alpha: Number
    schedule: Schedule
    steps: int | None = None  # updates of the whole training; alpha is 0 after them
    constant_for: int = CONSTANT_FOR

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.schedule not in get_args(Schedule):
            known = ", ".join(map(repr, get_args(Schedule)))
            raise ValueError(f"schedule must be one of {known}, got {self.schedule!r}.")
        check_whole_number("constant_for", self.constant_for)
        if self.steps is not None:
            check_whole_number("steps", self.steps)
            if self.steps < 1:
                raise ValueError(f"steps must be at least 1 update, got {self.steps}.")
        if self.constant_for < 0:
            raise ValueError(f"constant_for must be 0 updates or more, got {self.constant_for}.")
        too_short = self.steps is not None and self.steps <= self.constant_for
        if too_short and self.schedule == "constant_then_linear":
            raise ValueError(
                f"alpha is to begin to fall after {self.constant_for} updates, but there are "
                f"{self.steps}, so that it never would; make constant_for smaller than that."
            )

    @property
    def falls(self) -> bool:
        """Whether alpha depends on the updates done."""
        return self.schedule != "constant"

    def __call__(self, step: int) -> float:
        if step < 0:
            raise ValueError(f"The number of updates done must be at least 0, got {step}.")
        if not self.falls:
            return float(self.alpha)
        if self.steps is None:
            raise ValueError(
                f"With the schedule {self.schedule!r} alpha falls to 0 at the last update: give "
                "guide the number of updates as steps=, or schedule='constant'."
            )
        start = 0 if self.schedule == "linear" else self.constant_for
        if step < start:
            return float(self.alpha)
        return self.alpha * (max(0, self.steps - step) / (self.steps - start))


def check_alpha(alpha: Number) -> None:
    """Raise if alpha is not a finite number of at least 0."""
    number = isinstance(cast("object", alpha), Real)
    if not number or not 0 <= alpha <= MAX_ALPHA:
        raise ValueError(f"alpha must be a finite number of at least 0, got {alpha!r}.")


def convention_of(name: ConventionName) -> Convention:
    """Return the convention with this name."""
    if name not in CONVENTIONS:
        known = ", ".join(map(repr, CONVENTIONS))
        raise ValueError(f"convention must be one of {known}, got {name!r}.")
    return CONVENTIONS[name]
