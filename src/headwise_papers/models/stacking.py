"""Parameters of S seeds as tensors with a leading axis, for stacks of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise_papers.models.bag import BagClassifier, BagConfig

__all__ = [
    "Evaluation",
    "best_device",
    "common_config",
    "load_into",
    "stacked_parameters",
    "unstacked",
]


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of each seed."""

    loss: Float[Tensor, " S"]  # mean cross-entropy
    accuracy: Float[Tensor, " S"]


def best_device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def common_config(models: Sequence[BagClassifier]) -> BagConfig:
    """Return the config that all models share."""
    configs = {model.config for model in models}
    if len(configs) != 1:
        raise ValueError(f"Models of one config were wanted, got {len(configs)} configs.")
    return configs.pop()


def stacked_parameters(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Copy the parameters by name, seeds on the leading axis."""
    states = [model.state_dict() for model in models]
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def unstacked(config: BagConfig, parameters: Mapping[str, Tensor], seed: int) -> BagClassifier:
    """Build a model with copies of one seed's parameters."""
    some = next(iter(parameters.values()))
    alone = BagClassifier(config, generator=torch.Generator(), dtype=some.dtype)
    alone.load_state_dict({name: stacked[seed] for name, stacked in parameters.items()})
    return alone.to(some.device)


def load_into(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copy given parameters into one's own, in place; refuse those of another shape."""
    for name, mine in own.items():
        if name not in given or given[name].shape != mine.shape:
            came = tuple(given[name].shape) if name in given else "none"
            raise ValueError(
                f"{name} of shape {tuple(mine.shape)} was wanted, got {came}; "
                "load what a stack of the same config and seeds saved."
            )
    for name, mine in own.items():
        mine.copy_(given[name])
