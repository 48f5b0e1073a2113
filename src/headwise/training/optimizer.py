"""The optimiser of `fit`, and its learning-rate schedules.

A schedule is a function from the step, counted from 1, to a factor of at most 1. All rise in a
straight line to 1 at step `warmup`, and differ after that. They are functions of the step alone, so
that a resumed training has the same rates bit by bit.
"""

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from headwise.training.settings import FitConfig

Schedule = Callable[[int], float]


def constant(*, warmup: int = 0) -> Schedule:
    """Make a schedule that stays at 1."""
    return _after_warmup(warmup, lambda step: 1.0)


def inverse_square_root(*, warmup: int) -> Schedule:
    """Make the schedule of Vaswani et al. (2017), scaled to a peak of 1: sqrt(warmup / step).

    Their c * width^-0.5 * min(step^-0.5, step * warmup^-1.5) is this one with a learning rate of
    c / sqrt(width * warmup).

    >>> factor = inverse_square_root(warmup=100)
    >>> factor(50), factor(100), factor(400)
    (0.5, 1.0, 0.5)
    """
    return _after_warmup(warmup, lambda step: math.sqrt(max(warmup, 1) / step))


def cosine(*, warmup: int = 0, steps: int) -> Schedule:
    """Make a schedule that falls to 0 at the last step along half a cosine."""
    share = _share(warmup, steps)
    return _after_warmup(warmup, lambda step: (1 + math.cos(math.pi * share(step))) / 2)


def linear(*, warmup: int = 0, steps: int) -> Schedule:
    """Make a schedule that falls to 0 at the last step along a straight line."""
    share = _share(warmup, steps)
    return _after_warmup(warmup, lambda step: 1 - share(step))


def _after_warmup(warmup: int, then: Schedule) -> Schedule:
    if warmup < 0:
        raise ValueError(f"warmup must be 0 steps or more, got {warmup}.")
    return lambda step: step / warmup if step < warmup else then(step)


def _share(warmup: int, steps: int) -> Schedule:
    """Make a function from the step to the share of the way from warm-up to the end, 0 to 1."""
    if steps <= warmup:
        raise ValueError(f"steps must be more than warmup, got {steps} and {warmup}.")
    return lambda step: min(1.0, (step - warmup) / (steps - warmup))


def adamw(
    model: nn.Module, config: "FitConfig", rates: Mapping[str, float], device: torch.device
) -> torch.optim.AdamW:
    """Make the AdamW of a model.

    Args:
        model: its parameters that require a gradient are trained.
        config: rates and betas; with `graphs` a CUDA graph can read the optimiser's state.
        rates: other learning rates, by pattern of parameter names.
        device: on which the model is trained.
    """
    groups = _groups(model, config, rates)
    if config.graphs:  # each group has its own tensor, which a graph reads
        groups = [{**group, "lr": torch.zeros((), device=device)} for group in groups]
    optimizer = torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
        capturable=bool(config.graphs),
    )
    # no warning of steps outside a graph, as the first of each shape are
    optimizer._warned_capturable_if_run_uncaptured = True  # pyright: ignore
    return optimizer


def _groups(
    model: nn.Module, config: "FitConfig", rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return the groups of trained parameters: those without a pattern, then one per pattern."""
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups: list[dict[str, Any]] = []
    for pattern, rate in rates.items():
        names = [name for name in learning if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(f"rates names {pattern!r}, but no parameter that learns is called so.")
        chosen = [learning.pop(name) for name in names]
        groups.append({"params": chosen, "peak": rate, "weight_decay": 0.0})
    rest = {"params": list(learning.values()), "peak": config.learning_rate}
    return [rest, *groups] if learning else groups
