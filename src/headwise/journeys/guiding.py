"""Guidance as settings of a training: from text like "next=1,prev=1" to a part of its loss."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

from headwise.guidance import Guidance, Plan, guide
from headwise.guidance.schedule import ConventionName, Schedule, Strength
from headwise.training import Summed

__all__ = ["check_guidance", "guided", "with_guidance"]


def check_guidance(plan: str, *, heads: int, alpha: float, steps: int, schedule: Schedule) -> None:
    """Refuse what guiding would refuse, before there is a folder.

    Args:
        plan: as `Plan.parse` reads it.
        heads: of each layer.
        alpha: weight of guidance at the start.
        steps: updates of the training.
        schedule: how the weight falls.
    """
    Strength(alpha, schedule, steps)
    if (wanted := len(Plan.parse(plan).heads)) > heads:
        raise ValueError(f"guide={plan!r} wants {wanted} heads, but a layer has {heads}.")


@contextmanager
def guided(
    model: nn.Module,
    plan: str,
    *,
    alpha: float,
    steps: int,
    schedule: Schedule,
    where: str,
    convention: ConventionName,
) -> Generator[Guidance | None]:
    """Guide a model inside a `with` block, as `headwise.guide` does; gives None without a plan.

    Args:
        model: anything with sites.
        plan: as `Plan.parse` reads it; "" is none.
        alpha: weight of guidance at the start.
        steps: updates of the training.
        schedule: how the weight falls.
        where: pattern of the sites whose heads are guided.
        convention: how the loss is counted.
    """
    if not plan:
        yield None
        return
    with guide(
        model,
        Plan.parse(plan),
        alpha=alpha,
        steps=steps,
        schedule=schedule,
        where=where,
        convention=convention,
    ) as guidance:
        yield guidance


def with_guidance(value: Summed, guidance: Guidance | None) -> Summed:
    """A batch's loss and that of guidance, which is added to its mean: batches weigh by words."""
    if guidance is None:
        return value
    return Summed(value.total + value.number * guidance.loss(), value.number)
