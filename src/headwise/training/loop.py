"""The loop of `fit`: what changes from step to step, and what it is made of."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

from headwise.recording.run import NotFinite, Run
from headwise.training.checkpoint import CHECKPOINT, Progress
from headwise.training.feeding import feed
from headwise.training.keeping import Beside, Keeper, nothing_beside
from headwise.training.loss import Summed
from headwise.training.optimizer import adamw
from headwise.training.progress import Report
from headwise.training.replaying import COMPILED_WARM, Replayed
from headwise.training.settings import FitConfig
from headwise.training.stopping import best_of, out_of_patience
from headwise.training.writing import Writer

if TYPE_CHECKING:
    from accelerate import Accelerator

Batch = TypeVar("Batch")
Loss = Callable[[nn.Module, Batch], Tensor | Summed | tuple[Tensor, Tensor | int]]
Evaluate = Callable[[nn.Module], Mapping[str, float]]

_OURS = ("step", "loss", "gradient_norm", "learning_rate", "tokens_per_second")


class Loop:
    """Training in progress. Nothing in a step waits for a GPU; logs and what is rarer do."""

    def __init__(
        self,
        model: nn.Module,
        config: FitConfig,
        run: Run,
        accelerator: "Accelerator",
        *,
        rates: Mapping[str, float] = {},
        beside: Beside = nothing_beside,
    ) -> None:
        self.model, self.config, self.run, self.accelerator = model, config, run, accelerator
        self.reports: list[Report] = []  # who is told what was logged, beside the run
        self.factor = config.factor()
        self.prepared = cast(nn.Module, accelerator.prepare(model.train()))
        # what the loss calls; the model itself keeps its names, and is evaluated as it is
        self.called = torch.compile(self.prepared) if config.compile else self.prepared
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = adamw(model, config, rates, accelerator.device)
        self.write = Writer(accelerator.device)
        self.step = 0  # updates done
        self.window: list[Tensor] = []  # (loss, gradient norm) of each step since the last log
        self.evaluations: list[tuple[int, float]] = []  # step, and the figure that decides
        # processes see different batches, and drop different things
        torch.manual_seed(config.seed + accelerator.process_index)
        self.kept = Keeper(
            run, model, self.optimizer, accelerator, self.write, config.average, beside
        )
        if progress := self.kept.resume():
            self.step = progress.step
            self.window = list(progress.window.to(accelerator.device))
            figures = progress.evaluations.tolist()
            self.evaluations = [(int(step), figure) for step, figure in figures]
        self.tokens, self.since = 0, time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        figures = [figure for _, figure in self.evaluations]
        better, patience = self.config.better, self.config.patience
        stopped = out_of_patience(figures, better=better, patience=patience)
        return stopped or self.step >= self.config.steps

    def train(
        self,
        loss: Loss[Batch],
        batches: Callable[[int], Batch],
        tokens: Callable[[Batch], int] | None,
        evaluate: Evaluate | None,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        """Go on until done; evaluate, log and write checkpoints when it is time."""
        coming = feed(batches, self._numbers(), device=self.accelerator.device)
        descend: Callable[[list[Batch]], Tensor] = partial(self._descend, loss)
        if self.config.graphs:
            least = COMPILED_WARM if self.config.compile else 1
            descend = Replayed(descend, warm=max(self.config.warm, least))
        try:
            while not self.done:
                if on_step is not None:
                    on_step(self.step)
                self._update(descend, coming, tokens)
                last = self.step == self.config.steps
                if evaluate and (last or self.step % self.config.evaluate_every == 0):
                    self._evaluate(evaluate)
                if self.done or self.step % self.config.log_every == 0:
                    self._log()
                often = self.config.checkpoint_every
                if often and (self.done or self.step % often == 0):
                    self._checkpoint()
        finally:
            self.write.wait()
        self.accelerator.wait_for_everyone()

    def _numbers(self) -> range:
        """Which batches this process takes; with several each takes its own."""
        processes, accumulate = self.accelerator.num_processes, self.config.accumulate
        first, end = (step * accumulate * processes for step in (self.step, self.config.steps))
        return range(first + self.accelerator.process_index, end, processes)

    def _update(
        self,
        descend: Callable[[list[Batch]], Tensor],
        coming: Iterator[Batch],
        tokens: Callable[[Batch], int] | None,
    ) -> None:
        """One step with the next `accumulate` batches."""
        for group in self.optimizer.param_groups:
            rate = group["peak"] * self.factor(self.step + 1)
            if isinstance(group["lr"], Tensor):  # a graph reads it where it is
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        batches = [next(coming) for _ in range(self.config.accumulate)]
        self.tokens += sum(map(tokens, batches)) if tokens else 0
        self.window.append(descend(batches))
        self.step += 1

    def _descend(self, loss: Loss[Batch], batches: list[Batch]) -> Tensor:
        """The gradients of some batches, then the parameters; the loss and the gradient's norm."""
        values: list[Summed] = []
        for part, batch in enumerate(batches, start=1):
            last = part == len(batches)
            with nullcontext() if last else self.accelerator.no_sync(self.prepared):
                values.append(self._backward(loss, batch))
        value = self._divide(values)
        clip = self.config.clip or math.inf  # infinity measures and does not clip
        norm = torch.nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([value, norm]).detach()

    def _backward(self, loss: Loss[Batch], batch: Batch) -> Summed:
        """Add the gradient of a batch's sum; a loss that is no sum counts as one."""
        from accelerate.utils.operations import send_to_device

        device = self.accelerator.device
        mixed = self.config.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
            there = cast(Batch, send_to_device(batch, device, non_blocking=True))
            value = loss(cast(nn.Module, self.called), there)
        total, number = (value, 1) if isinstance(value, Tensor) else value
        total.backward()
        return Summed(total.detach().float(), number)

    def _divide(self, values: list[Summed]) -> Tensor:
        """Turn the gradients of sums into those of their mean over all processes; that mean."""
        total, count = torch.stack([value.total for value in values]).sum(), _count(values)
        processes = self.accelerator.num_processes
        if isinstance(count, int):  # a kernel writes it; a copy would make a GPU wait
            if count == processes == 1:
                return total
            count = torch.full_like(total, count)
        if processes > 1:
            total, count = cast(Tensor, self.accelerator.reduce(torch.stack([total, count])))
        # times the processes, because what they hold by now is the mean of their gradients
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(gradients, processes / count)  # pyright: ignore
        return total / count

    def _evaluate(self, evaluate: Evaluate) -> None:
        """Measure the model; log the figures, and keep the weights if they are the best so far."""
        from accelerate.utils import broadcast_object_list

        device = self.accelerator.device
        with self._aside(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.model.eval()
            with torch.no_grad():
                figures = {name: float(figure) for name, figure in evaluate(self.model).items()}
            self.model.train()
            # every process must come to the same decision, so that of the first one counts
            (figures,) = broadcast_object_list([figures])
            self.evaluations.append((self.step, _deciding(figures)))
            self._tell(figures)
            values = [value for _, value in self.evaluations]
            best = best_of(values, better=self.config.better) == len(values) - 1
            if best and self.config.keep_best:
                self.kept.best(figures, step=self.step)

    def _log(self) -> None:
        """Say how the steps since the last log went, and start counting afresh."""
        loss, norm = self._measured().mean(dim=0).tolist()
        now = time.perf_counter()
        metrics = {
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
        }
        if self.tokens:
            tokens = torch.tensor(self.tokens, device=self.accelerator.device)
            tokens = cast(Tensor, self.accelerator.reduce(tokens))  # of all processes
            metrics["tokens_per_second"] = int(tokens) / (now - self.since)
        self.window, self.tokens, self.since = [], 0, now
        self._tell(metrics)

    def _tell(self, metrics: Mapping[str, float]) -> None:
        if self.accelerator.is_main_process:
            self.run.log(self.step, **metrics)
            for report in self.reports:
                report(self.step, metrics)

    def _checkpoint(self) -> None:
        """Write a checkpoint, but never one of a training that went wrong."""
        with self._aside():
            evaluations = torch.tensor(self.evaluations, dtype=torch.float64).reshape(-1, 2)
            self.kept.checkpoint(Progress(self.step, self._measured(), evaluations))

    @contextmanager
    def _aside(self) -> Generator[None]:
        """Do something that does not count as training when speed is measured."""
        self._measured()  # waits for the steps that a GPU has still to do
        before = time.perf_counter()
        yield
        self.since += time.perf_counter() - before

    def _measured(self) -> Tensor:
        """(steps, 2): loss and gradient norm since the last log; raises if one is not finite.

        Looked at here and not at every step, because looking makes a GPU wait.
        """
        window = torch.stack(self.window).cpu() if self.window else torch.zeros(0, 2)
        first = self.step - len(window) + 1
        for step, (loss, norm) in enumerate(window.tolist(), start=first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                kept = self.run.has(CHECKPOINT)
                raise NotFinite(
                    f"Training went wrong at step {step}: the loss is {loss} and the norm of its "
                    f"gradient {norm}; lower learning_rate or raise warmup"
                    + (", the last checkpoint before it is kept." if kept else ".")
                )
        return window


def _count(values: list[Summed]) -> Tensor | int:
    """How many a step's sum is over; a number if all counts are, and else on their device."""
    count: Tensor | int = 0
    for value in values:
        there = value.number
        count = count + (there.to(value.total) if isinstance(there, Tensor) else there)
    return count


def _deciding(figures: Mapping[str, float]) -> float:
    """The first figure of an evaluation."""
    if not figures:
        raise ValueError("evaluate gave no figure; the first of them decides, so one is needed.")
    for name in figures:
        if name in _OURS:
            raise ValueError(
                f"evaluate gave a figure called {name!r}, which training logs itself; "
                f"call it 'valid_{name}', for example."
            )
    return next(iter(figures.values()))
