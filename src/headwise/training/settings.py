"""FitConfig: the settings of a training."""

import math
from dataclasses import dataclass
from typing import Literal

from headwise.training.schedule import Schedule, constant, cosine, inverse_square_root, linear


@dataclass(frozen=True)
class FitConfig:
    """How to train. A step is one update of the parameters."""

    steps: int = 1000  # at most
    learning_rate: float = 1e-3  # at the peak of the schedule
    schedule: Literal["constant", "inverse_square_root", "cosine", "linear"] = "cosine"
    warmup: int = 100  # steps over which the learning rate rises
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    accumulate: int = 1  # batches in a step, of each process
    beta1: float = 0.9  # of AdamW, as the next three
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"  # of the forward pass; weights stay
    log_every: int = 10  # steps
    # steps; one is always written at the end. 0 writes none: once stopped, training begins anew
    checkpoint_every: int = 500
    seed: int = 0  # of dropout and whatever else is random inside the model
    compile: bool = False  # train through torch.compile; resuming then repeats up to rounding
    graphs: bool = False  # replay steps as CUDA graphs; see `fit` for what that asks of the loss
    warm: int = 1  # steps with batches of a shape before one is recorded; compiled at least 3
    keep: int = 1  # last checkpoints whose weights stay, for `average_checkpoints`
    keep_best: bool = True  # the weights that evaluated best stay too
    evaluate_every: int = 500  # steps, where there is something to evaluate with
    patience: int = 0  # evaluations without a better one after which to stop; 0 never stops
    better: Literal["lower", "higher"] = "lower"  # of the figure that decides
    tensorboard: bool = False  # write what is logged as TensorBoard's scalars too

    def __post_init__(self) -> None:
        counts = ("steps", "accumulate", "log_every", "keep", "evaluate_every", "warm")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.checkpoint_every < 0 or (self.keep > 1 and not self.checkpoint_every):
            raise ValueError(
                "checkpoint_every must be 0 steps or more, and 1 where several are kept, got "
                f"{self.checkpoint_every} with keep={self.keep}."
            )
        if self.patience < 0:
            raise ValueError(f"patience must be 0 evaluations or more, got {self.patience}.")
        for name in ("learning_rate", "clip", "epsilon", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}.")
        for name, beta in {"beta1": self.beta1, "beta2": self.beta2}.items():
            if not 0 <= beta < 1:
                raise ValueError(f"{name} must be 0 or more and below 1, got {beta}.")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be a number from 0 to 2**63 - 1, got {self.seed}.")

    def factor(self) -> Schedule:
        """The schedule, a function from step to factor."""
        match self.schedule:
            case "constant":
                return constant(warmup=self.warmup)
            case "inverse_square_root":
                return inverse_square_root(warmup=self.warmup)
            case "cosine":
                return cosine(warmup=self.warmup, steps=self.steps)
            case "linear":
                return linear(warmup=self.warmup, steps=self.steps)
