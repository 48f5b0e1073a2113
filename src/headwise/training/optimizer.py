"""The optimiser of `fit`."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from headwise.training.settings import FitConfig

__all__ = ["adamw"]


def adamw(
    model: nn.Module, config: FitConfig, rates: Mapping[str, float], device: torch.device
) -> torch.optim.AdamW:
    """AdamW of all that learns in a model.

    Args:
        model: whose parameters are trained.
        config: rates and betas; with `graphs` its state is such that a graph can read it.
        rates: learning rates of their own, by pattern of names.
        device: on which it is trained.
    """
    groups = _groups(model, config, rates)
    if config.graphs:  # each group has a tensor of its own, which a graph reads
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
    # it would warn of steps that are not recorded, as the first of each shape are not
    optimizer._warned_capturable_if_run_uncaptured = True  # pyright: ignore
    return optimizer


def _groups(
    model: nn.Module, config: FitConfig, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The parameters that learn, those of each pattern of names apart; the rest come first."""
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
