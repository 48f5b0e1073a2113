"""Adding the penalty of gates to a loss, in any training loop."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from headwise.pruning.gates import Gates, Normalise
from headwise.pruning.target import Target

Batch = TypeVar("Batch")
Value = Tensor | tuple[Tensor, Tensor | int]  # a loss, or a sum and how many it is over


def penalised(
    loss: Callable[[nn.Module, Batch], Value],
    gates: Gates,
    penalty: float | Target,
    *,
    normalise: Normalise = "paper",
    every: int = 1,
) -> Callable[[nn.Module, Batch], Any]:
    """A loss with the gates' penalty, for `headwise.training.fit` or a loop of your own.

    Args:
        loss: from model and batch to a scalar, or to a sum and how many it is over; the penalty is
            then multiplied by that number, so that it is added to the mean.
        gates: on the model.
        penalty: the coefficient, or a `Target`, whose `step` is then called here.
        normalise: how the coefficient counts; see `Gates.penalty`.
        every: batches an update, `accumulate` of FitConfig; a target steps once in so many calls.
    """
    calls = 0

    def with_penalty(model: nn.Module, batch: Batch) -> Value:
        nonlocal calls
        if isinstance(penalty, Target) and calls % every == 0:
            penalty.step()
        calls += 1
        value = loss(model, batch)
        added = penalty_loss(gates, penalty, normalise=normalise)
        if isinstance(value, Tensor):
            return value + added
        total, number = value
        return total + added * number, number

    return with_penalty


def penalty_loss(gates: Gates, penalty: float | Target, *, normalise: Normalise) -> Tensor:
    """What a coefficient or a target adds to the loss now."""
    if isinstance(penalty, Target):
        return penalty.loss()
    return penalty * gates.penalty(normalise)


__all__ = ["penalised", "penalty_loss"]
