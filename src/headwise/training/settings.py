"""Settings of a training, its optimiser and its learning-rate schedules.

A schedule is a function from the step, counted from 1, to a factor of at most 1. All rise in a
straight line to 1 at step `warmup`, and differ after that. They are functions of the step alone, so
that a resumed training has the same rates bit by bit.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from headwise.config import Dataclass

Schedule = Callable[[int], float]
Better = Literal["lower", "higher"]
COMPILED_WARM = 3  # compiled steps before one is recorded: the second may be compiled anew


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


def check_at_least(least: int, config: Dataclass, *names: str) -> None:
    """Raise if one of some settings is smaller than allowed."""
    for name in names:
        if not getattr(config, name) >= least:  # nan is not either
            raise ValueError(f"{name} must be at least {least}, got {getattr(config, name)}.")


@dataclass(frozen=True)
class FitConfig:
    """Settings of `fit`. A step is one update of the parameters."""

    steps: int = 3000  # at most
    learning_rate: float = 1e-3  # at the peak of the schedule
    warmup: int = 300  # steps over which the learning rate rises
    schedule: Literal["constant", "inverse_square_root", "cosine", "linear"] = "cosine"
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    accumulate: int = 1  # batches per step, in each process
    beta1: float = 0.9  # of AdamW, as the next three
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    # of the forward pass, weights stay float32; "auto": bfloat16 on a GPU, float32 elsewhere
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    # train through torch.compile, then resuming repeats up to rounding; None: on a GPU
    compile: bool | None = False
    # replay steps as CUDA graphs; see `fit` for what that asks of the loss. None: where a recipe
    # knows that its loss allows it, and there is one GPU
    graphs: bool | None = None
    warm: int = 1  # steps with batches of a shape before one is recorded; compiled at least 3
    log_every: int = 10  # steps
    evaluate_every: int = 250  # steps, where there is something to evaluate with
    # steps; one is always written at the end. 0 writes none: once stopped, training begins anew
    checkpoint_every: int = 250
    average: int = 5  # last checkpoints whose weights are kept, for `average_checkpoints`
    keep_best: bool = True  # keep the weights with the best evaluation too
    patience: int = 0  # evaluations without a better one after which to stop; 0 never stops
    better: Better = "lower"  # of the metric that decides
    tensorboard: bool = False  # write what is logged as TensorBoard scalars too
    seed: int = 0  # of dropout; recipes use it for the first weights and the order of batches too

    def __post_init__(self) -> None:
        least_one = ("steps", "accumulate", "log_every", "average", "evaluate_every", "warm")
        check_at_least(1, self, *least_one)
        check_at_least(0, self, "checkpoint_every", "patience")
        for name in ("learning_rate", "clip", "epsilon", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}.")
        for name, beta in {"beta1": self.beta1, "beta2": self.beta2}.items():
            if not 0 <= beta < 1:
                raise ValueError(f"{name} must be 0 or more and below 1, got {beta}.")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be a number from 0 to 2**63 - 1, got {self.seed}.")
        self.factor()

    def factor(self) -> Schedule:
        """Return the schedule, a function from step to factor."""
        match self.schedule:
            case "constant":
                return constant(warmup=self.warmup)
            case "inverse_square_root":
                return inverse_square_root(warmup=self.warmup)
            case "cosine":
                return cosine(warmup=self.warmup, steps=self.steps)
            case "linear":
                return linear(warmup=self.warmup, steps=self.steps)

    def on_device(
        self, *, cuda: bool, replayable: bool = False, one_shape: bool = False, processes: int = 1
    ) -> "FitConfig":
        """Return the same settings with "auto" and None decided for a device.

        Args:
            cuda: whether training runs on a GPU.
            replayable: whether CUDA graphs can be made of the loss.
            one_shape: whether all batches have one shape. Only then are compiled steps replayed
                too: a new shape may have to be compiled, which cannot be recorded.
            processes: how many train together; graphs need one.
        """
        automatic = "bfloat16" if cuda else "float32"
        compile = cuda if self.compile is None else self.compile
        graphs = replayable and self.graphs is not False and cuda and (one_shape or not compile)
        return replace(
            self,
            precision=automatic if self.precision == "auto" else self.precision,
            compile=compile,
            graphs=graphs and processes == 1,
            warm=max(self.warm, COMPILED_WARM) if compile else self.warm,
        )
