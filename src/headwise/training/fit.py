"""fit: the one training loop. What is trained, on what and for what is handed in."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from headwise.recording.run import Run
from headwise.training.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from headwise.training.progress import Report
from headwise.training.schedule import Schedule, constant, cosine, inverse_square_root, linear

if TYPE_CHECKING:
    from accelerate import Accelerator

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class FitConfig:
    """How to train. A step is one update of the parameters."""

    steps: int = 1000
    learning_rate: float = 1e-3  # at the peak of the schedule
    schedule: Literal["constant", "inverse_square_root", "cosine", "linear"] = "cosine"
    warmup: int = 100  # steps over which the learning rate rises
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    accumulate: int = 1  # batches in a step
    beta1: float = 0.9  # of AdamW, as the next three
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"  # of the forward pass; weights stay
    log_every: int = 10  # steps
    checkpoint_every: int = 500  # steps; one is always written at the end
    seed: int = 0  # of dropout and whatever else is random inside the model

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

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


def fit(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Tensor],
    batches: Callable[[int], Batch],
    *,
    run: Run,
    config: FitConfig,
    tokens: Callable[[Batch], int] | None = None,
    progress: Report | None = None,
) -> None:
    """Train a model in place, with AdamW; start where the run's checkpoint, if any, left off.

    A run that was killed and started again goes through the same numbers as one that was not.
    The model is left in training mode, on the device it was trained on. Logged every `log_every`
    steps: `loss` and `gradient_norm` (means since the last log), `learning_rate` and, if `tokens`
    is given, `tokens_per_second`.

    Args:
        model: its parameters that require a gradient are trained.
        loss: from the model and a batch to the scalar to make small.
        batches: the batch of a number 0, 1, 2, ...; the same number must give the same batch. A
            tensor, or tuples, lists or dictionaries of tensors; they are moved to the device.
        run: where metrics and checkpoints go.
        config: how to train.
        tokens: how many tokens of a batch count for the speed.
        progress: called after every log; see `progress_bar`.
    """
    from accelerate import Accelerator  # lazy: takes seconds, and only training needs it

    accelerator = Accelerator(mixed_precision="no")  # our own autocast leaves model.forward alone
    cuda = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        loop = _Loop(model, config, run, accelerator)
        while loop.step < config.steps:
            loop.update(loss, batches, tokens)
            done = loop.step == config.steps
            if done or loop.step % config.log_every == 0:
                loop.log(progress)
            if done or loop.step % config.checkpoint_every == 0:
                loop.checkpoint()


class _Loop:
    """Training in progress: what changes from step to step, and what it is made of."""

    def __init__(
        self, model: nn.Module, config: FitConfig, run: Run, accelerator: "Accelerator"
    ) -> None:
        self.model, self.config, self.run, self.accelerator = model, config, run, accelerator
        self.factor = config.factor()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.prepared, self.stepper = accelerator.prepare(model.train(), self.optimizer)
        self.step = 0  # updates done
        self.window: list[Tensor] = []  # (loss, gradient norm) of each step since the last log
        torch.manual_seed(config.seed)
        if run.has(CHECKPOINT):
            self.step, window = load_checkpoint(run, model, self.optimizer)
            self.window = list(window.to(accelerator.device))
        self.tokens, self.since = 0, time.perf_counter()

    def update(
        self,
        loss: Callable[[nn.Module, Batch], Tensor],
        batches: Callable[[int], Batch],
        tokens: Callable[[Batch], int] | None,
    ) -> None:
        """One step: the gradients of `accumulate` batches, then the parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * self.factor(self.step + 1)
        losses: list[Tensor] = []
        for part in range(self.config.accumulate):
            batch = batches(self._number(part))
            self.tokens += tokens(batch) if tokens else 0
            last = part == self.config.accumulate - 1
            with nullcontext() if last else self.accelerator.no_sync(self.prepared):
                losses.append(self._backward(loss, batch) / self.config.accumulate)
        clip = self.config.clip or math.inf  # infinity measures and does not clip
        norm = self.accelerator.clip_grad_norm_(self.parameters, clip)
        assert norm is not None
        self.stepper.step()
        self.stepper.zero_grad()
        self.step += 1
        self.window.append(torch.stack([torch.stack(losses).sum(), norm]).detach())

    def log(self, progress: Report | None) -> None:
        """Say how the steps since the last log went, and start counting afresh."""
        loss, norm = self._measured().mean(dim=0).tolist()
        now = time.perf_counter()
        metrics = {
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        if self.tokens:
            metrics["tokens_per_second"] = self.tokens / (now - self.since)
        self.window, self.tokens, self.since = [], 0, now
        if self.accelerator.is_main_process:
            self.run.log(self.step, **metrics)
            if progress is not None:
                progress(self.step, metrics)

    def checkpoint(self) -> None:
        """Write a checkpoint, but never one of a training that went wrong."""
        window = self._measured()
        if self.accelerator.is_main_process:
            save_checkpoint(self.run, self.model, self.optimizer, step=self.step, window=window)

    def _number(self, part: int) -> int:
        """Which batch comes now; with several processes each takes its own."""
        accelerator = self.accelerator
        number = self.step * self.config.accumulate + part
        return number * accelerator.num_processes + accelerator.process_index

    def _backward(self, loss: Callable[[nn.Module, Batch], Tensor], batch: Batch) -> Tensor:
        from accelerate.utils import send_to_device

        device = self.accelerator.device
        mixed = self.config.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
            value = loss(self.prepared, cast(Batch, send_to_device(batch, device)))
        self.accelerator.backward(value / self.config.accumulate)
        return value.detach().float()

    def _measured(self) -> Tensor:
        """(steps, 2): loss and gradient norm since the last log; raises if one is not finite.

        Looked at here and not at every step, because looking makes a GPU wait.
        """
        window = torch.stack(self.window).cpu() if self.window else torch.zeros(0, 2)
        first = self.step - len(window) + 1
        for step, (loss, norm) in enumerate(window.tolist(), start=first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                kept = self.run.has(CHECKPOINT)
                raise ValueError(
                    f"Training went wrong at step {step}: the loss is {loss} and the norm of its "
                    f"gradient {norm}; lower learning_rate or raise warmup"
                    + (", the last checkpoint before it is kept." if kept else ".")
                )
        return window
