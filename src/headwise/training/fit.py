"""fit: the training loop, its progress bar and its TensorBoard scalars.

Model, loss and batches are given by the caller.
"""

import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

from headwise.ops.graphs import Replayed, on_a_stream
from headwise.recording.run import NotFinite, Run
from headwise.training.checkpoint import (
    CHECKPOINT,
    CheckpointManager,
    ExtraState,
    Progress,
    Writer,
    no_extra_state,
)
from headwise.training.loss import Summed
from headwise.training.settings import Better, FitConfig, adamw

if TYPE_CHECKING:
    from accelerate import Accelerator

Report = Callable[[int, Mapping[str, float]], None]  # (steps done, metrics just logged)

TENSORBOARD = "tensorboard"  # folder of a run
_HIDDEN = ("gradient_norm", "learning_rate", "tokens_per_second")


@contextmanager
def progress_bar(steps: int, *, label: str = "training") -> Generator[Report]:
    """Show a bar with loss, evaluation, speed and the time left; for `fit(progress=...)`.

    Args:
        steps: number of steps of the whole bar.
        label: stands before the bar.
    """
    # lazy: headless training does not need rich
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  {task.fields[shown]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(label, total=steps, shown="")
        latest: dict[str, float] = {}  # an evaluation is shown until the next one

        def report(step: int, metrics: Mapping[str, float]) -> None:
            latest.update(metrics)
            bar.update(task, completed=step, shown=_shown(latest))

        yield report


def _shown(metrics: Mapping[str, float]) -> str:
    parts = [f"{name} {value:.3f}" for name, value in metrics.items() if name not in _HIDDEN]
    if metrics.get("tokens_per_second"):
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    return "  ".join(parts)


@contextmanager
def tensorboard_scalars(run: Run, *, after: int) -> Generator[Report]:
    """Open a report that writes metrics as TensorBoard scalars, for a `with` block.

    Args:
        run: `tensorboard --logdir` on its folder shows them.
        after: step from which training resumes; scalars of later steps are dropped.
    """
    try:
        # lazy: an optional package, and slow to import
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise ValueError(
            "FitConfig.tensorboard needs the package tensorboard, which is not installed; "
            "install it with `pip install headwise[tensorboard]`."
        ) from None
    with SummaryWriter(str(run.path(TENSORBOARD)), purge_step=after + 1) as writer:

        def write(step: int, metrics: Mapping[str, float]) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        yield write


Batch = TypeVar("Batch")
Loss = Callable[[nn.Module, Batch], Tensor | Summed | tuple[Tensor, Tensor | int]]
Evaluate = Callable[[nn.Module], Mapping[str, float]]

OWN = ("step", "loss", "gradient_norm", "learning_rate", "tokens_per_second")  # logged by fit


class Diverged(NotFinite):
    """Error of a training whose loss, gradient or evaluation is no finite number any more."""


def fit(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Tensor | Summed | tuple[Tensor, Tensor | int]],
    batches: Callable[[int], Batch],
    *,
    run: Run,
    config: FitConfig,
    tokens: Callable[[Batch], int] | None = None,
    progress: Report | None = None,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    rates: Mapping[str, float] = {},
    on_step: Callable[[int], None] | None = None,
    extra_state: ExtraState = no_extra_state,
) -> None:
    """Train a model in place with AdamW; resume from the run's checkpoint, if there is one.

    A run that was killed and resumed computes the same numbers as one that was not. The model is
    left in training mode, on the device it was trained on. Logged every `log_every` steps: `loss`
    and `gradient_norm` (means since the last log), `learning_rate` and, if `tokens` is given,
    `tokens_per_second`, which excludes the time of evaluations and checkpoints.

    `evaluate` is called every `evaluate_every` steps and after the last. Its metrics are logged,
    and the first of them decides: with `keep_best` the best weights are kept in the run's
    `best.safetensors`, named as in the model, and after `patience` evaluations without a better one
    training stops.

    With `graphs` a step is recorded as a CUDA graph after `warm` others with batches of its shape,
    and replayed from then on: small models then train as fast as the GPU computes. The loss must
    not read tensors in Python, other Python numbers stay those of the recording, and nobody should
    observe the model.

    Started by `accelerate launch` or `torchrun` in several processes, each takes its own batches,
    `accumulate` of them per step; the first process alone writes to the run. Create the run there
    first: `with accelerate.Accelerator().main_process_first(): run = Run.create(...)`.

    Args:
        model: its parameters that require a gradient are trained.
        loss: from the model, which it may only call, and a batch to the scalar to minimise; or to a
            sum and the number it is over (`Summed`). A step's loss is then the mean over everything
            in its batches, in all processes, instead of the mean of their losses.
        batches: the batch of a number 0, 1, 2, ...; the same number must give the same batch. A
            tensor, or tuples, lists or dictionaries of tensors; they are moved to the device. For a
            GPU it is called on a thread, one batch ahead.
        run: gets metrics and checkpoints.
        config: the settings.
        tokens: number of tokens of a batch, for the speed.
        progress: called after every log; see `progress_bar`.
        evaluate: from the model, in evaluation mode and without gradients, to metrics by name. It
            may draw random numbers without changing the training.
        rates: learning rates at the peak of the schedule, by pattern of parameter names, e.g.
            {"head_gates.*": 0.05}; these parameters are neither decayed nor clipped.
        on_step: called before each update with the number of updates done, e.g.
            `guidance.at_step`.
        extra_state: returns tensors that the caller changes in training, by name. They are kept in
            checkpoints, not among weights, and filled in place when resuming.

    Raises:
        Diverged: the loss, its gradient or the deciding metric is not finite.
    """
    if config.patience and evaluate is None:
        raise ValueError(
            f"patience={config.patience} needs something to wait for; give fit an `evaluate`."
        )
    _check_weights(model)
    accelerator = _accelerator()
    _check_together(accelerator.num_processes)
    cuda = [accelerator.device] if accelerator.device.type == "cuda" else []
    graphs = bool(config.graphs)  # None leaves it to a recipe, which has decided by now
    config = replace(config.on_device(cuda=bool(cuda)), graphs=graphs)
    if config.graphs and (not cuda or accelerator.num_processes > 1):
        raise ValueError("graphs=True needs one process with a GPU; leave it out here.")
    aside = on_a_stream() if config.graphs else nullcontext()
    with torch.random.fork_rng(devices=cuda), aside:
        loop = Loop(model, config, run, accelerator, rates=rates, extra_state=extra_state)
        board = config.tensorboard and accelerator.is_main_process
        with tensorboard_scalars(run, after=loop.step) if board else nullcontext() as scalars:
            loop.reports = [report for report in (scalars, progress) if report is not None]
            loop.train(loss, batches, tokens, evaluate, on_step)


def _accelerator() -> "Accelerator":
    """Make an Accelerator that leaves model.forward alone; `precision` decides by our autocast.

    Accelerate keeps one mixed precision per process, which may already be set by a Trainer or by
    `accelerate launch --mixed_precision`.
    """
    from accelerate import Accelerator  # lazy: takes seconds, and only training needs it
    from accelerate.state import is_initialized

    accelerator = Accelerator(mixed_precision=None if is_initialized() else "no")
    accelerator.native_amp = False  # else it wraps model.forward in its autocast
    return accelerator


def _check_weights(model: nn.Module) -> None:
    """Raise for weights in half precision, which lose small updates."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"{name} is in {str(weight.dtype).removeprefix('torch.')}, which loses small "
                "updates; call model.float() first. precision='bfloat16' still computes in half "
                "precision."
            )


def _check_together(processes: int) -> None:
    """Raise if this is one of several processes that do not know of each other."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != processes:
        raise ValueError(
            f"{started} processes were started, but Accelerate found {processes}; without a GPU, "
            "set ACCELERATE_USE_CPU=true before its first use."
        )


class Loop:
    """State of a training. A step never waits for a GPU; logs, evaluations and checkpoints do."""

    def __init__(
        self,
        model: nn.Module,
        config: FitConfig,
        run: Run,
        accelerator: "Accelerator",
        *,
        rates: Mapping[str, float] = {},
        extra_state: ExtraState = no_extra_state,
    ) -> None:
        self.model, self.config, self.run, self.accelerator = model, config, run, accelerator
        self.reports: list[Report] = []  # called with everything that is logged
        self.factor = config.factor()
        self.prepared = cast(nn.Module, accelerator.prepare(model.train()))
        # the loss calls this one; the model keeps its parameter names, and is evaluated uncompiled
        self.called = torch.compile(self.prepared) if config.compile else self.prepared
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = adamw(model, config, rates, accelerator.device)
        self.write = Writer(accelerator.device)
        self.step = 0  # updates done
        self.window: list[Tensor] = []  # (loss, gradient norm) of each step since the last log
        self.evaluations: list[tuple[int, float]] = []  # step and deciding metric
        # processes have different batches and different dropout
        torch.manual_seed(config.seed + accelerator.process_index)
        self.checkpoints = CheckpointManager(
            run, model, self.optimizer, accelerator, self.write, config.average, extra_state
        )
        if progress := self.checkpoints.resume():
            self.step = progress.step
            self.window = list(progress.window.to(accelerator.device))
            evaluations = progress.evaluations.tolist()
            self.evaluations = [(int(step), value) for step, value in evaluations]
        self.tokens, self.since = 0, time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        values = [value for _, value in self.evaluations]
        better, patience = self.config.better, self.config.patience
        stopped = out_of_patience(values, better=better, patience=patience)
        return stopped or self.step >= self.config.steps

    def train(
        self,
        loss: Loss[Batch],
        batches: Callable[[int], Batch],
        tokens: Callable[[Batch], int] | None,
        evaluate: Evaluate | None,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        """Update until done; evaluate, log and write checkpoints when they are due."""
        coming = feed(batches, self._numbers(), device=self.accelerator.device)
        descend: Callable[[list[Batch]], Tensor] = partial(self._descend, loss)
        if self.config.graphs:
            descend = Replayed(descend, warm=self.config.warm)
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
        """Return the numbers of this process's batches."""
        processes, accumulate = self.accelerator.num_processes, self.config.accumulate
        first, end = (step * accumulate * processes for step in (self.step, self.config.steps))
        return range(first + self.accelerator.process_index, end, processes)

    def _update(
        self,
        descend: Callable[[list[Batch]], Tensor],
        coming: Iterator[Batch],
        tokens: Callable[[Batch], int] | None,
    ) -> None:
        """Do one step with the next `accumulate` batches."""
        for group in self.optimizer.param_groups:
            rate = group["peak"] * self.factor(self.step + 1)
            if isinstance(group["lr"], Tensor):  # a graph reads it in place
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        batches = [next(coming) for _ in range(self.config.accumulate)]
        self.tokens += sum(map(tokens, batches)) if tokens else 0
        self.window.append(descend(batches))
        self.step += 1

    def _descend(self, loss: Loss[Batch], batches: list[Batch]) -> Tensor:
        """Update the parameters with some batches; return the loss and the gradient norm."""
        values: list[Summed] = []
        for part, batch in enumerate(batches, start=1):
            last = part == len(batches)
            with nullcontext() if last else self.accelerator.no_sync(self.prepared):
                values.append(self._backward(loss, batch))
        value = self._divide(values)
        clip = self.config.clip or math.inf  # infinity does not clip
        norm = torch.nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([value, norm]).detach()

    def _backward(self, loss: Loss[Batch], batch: Batch) -> Summed:
        """Add the gradient of a batch's loss; return the loss as a sum, a plain one over 1."""
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
        """Turn gradients of sums into those of their mean over all processes; return the mean."""
        total, count = torch.stack([value.total for value in values]).sum(), _count(values)
        processes = self.accelerator.num_processes
        if isinstance(count, int):  # written by a kernel; a copy would make a GPU wait
            if count == processes == 1:
                return total
            count = torch.full_like(total, count)
        if processes > 1:
            total, count = cast(Tensor, self.accelerator.reduce(torch.stack([total, count])))
        # times the processes, because their gradients are averaged by now
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(gradients, processes / count)  # pyright: ignore
        return total / count

    def _evaluate(self, evaluate: Evaluate) -> None:
        """Evaluate the model, log the metrics, and keep the weights if they are the best so far."""
        from accelerate.utils import broadcast_object_list

        device = self.accelerator.device
        with self._aside(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.model.eval()
            with torch.no_grad():
                metrics = {name: float(value) for name, value in evaluate(self.model).items()}
            self.model.train()
            # every process must decide the same, so the first one decides
            (metrics,) = broadcast_object_list([metrics])
            self.evaluations.append((self.step, _deciding(metrics, step=self.step)))
            self._tell(metrics)
            values = [value for _, value in self.evaluations]
            best = best_of(values, better=self.config.better) == len(values) - 1
            if best and self.config.keep_best:
                self.checkpoints.save_best(metrics, step=self.step)

    def _log(self) -> None:
        """Log the means since the last log, and begin a new window."""
        loss, norm = self._measured().mean(dim=0).tolist()
        now = time.perf_counter()
        metrics = {
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
        }
        if self.tokens:
            tokens = torch.tensor(self.tokens, device=self.accelerator.device)
            tokens = cast(Tensor, self.accelerator.reduce(tokens))  # over all processes
            metrics["tokens_per_second"] = int(tokens) / (now - self.since)
        self.window, self.tokens, self.since = [], 0, now
        self._tell(metrics)

    def _tell(self, metrics: Mapping[str, float]) -> None:
        if self.accelerator.is_main_process:
            self.run.log(self.step, **metrics)
            for report in self.reports:
                report(self.step, metrics)

    def _checkpoint(self) -> None:
        """Write a checkpoint, but never one of a training that has diverged."""
        with self._aside():
            evaluations = torch.tensor(self.evaluations, dtype=torch.float64).reshape(-1, 2)
            self.checkpoints.save(Progress(self.step, self._measured(), evaluations))

    @contextmanager
    def _aside(self) -> Generator[None]:
        """Leave the time of a block out of the measured speed."""
        self._measured()  # waits for the GPU
        before = time.perf_counter()
        yield
        self.since += time.perf_counter() - before

    def _measured(self) -> Tensor:
        """Return loss and gradient norm of each step since the last log, (steps, 2).

        Raises if one is not finite; not checked at every step, because that makes a GPU wait.
        """
        window = torch.stack(self.window).cpu() if self.window else torch.zeros(0, 2)
        first = self.step - len(window) + 1
        for step, (loss, norm) in enumerate(window.tolist(), start=first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                kept = self.run.has(CHECKPOINT)
                raise Diverged(
                    f"Training went wrong at step {step}: the loss is {loss} and the norm of its "
                    f"gradient {norm}; lower learning_rate or raise warmup"
                    + (", the last checkpoint before it is kept." if kept else ".")
                )
        return window


def _count(values: list[Summed]) -> Tensor | int:
    """Return the number a step's sum is over: an int if all counts are, else a tensor."""
    count: Tensor | int = 0
    for value in values:
        there = value.number
        count = count + (there.to(value.total) if isinstance(there, Tensor) else there)
    return count


def _deciding(metrics: Mapping[str, float], *, step: int) -> float:
    """Return the first metric of an evaluation."""
    if not metrics:
        raise ValueError("evaluate gave no metric; the first of them decides, so one is needed.")
    for name in metrics:
        if name in OWN:
            raise ValueError(
                f"evaluate gave a metric called {name!r}, which training logs itself; "
                f"call it 'valid_{name}', for example."
            )
    name, value = next(iter(metrics.items()))
    if not math.isfinite(value):
        raise Diverged(
            f"Training went wrong: {name} is {value} at step {step}; lower learning_rate or raise "
            "warmup."
        )
    return value


def feed(
    batches: Callable[[int], Batch], numbers: Iterable[int], *, device: torch.device
) -> Iterator[Batch]:
    """Return the batches of some numbers in order, not yet moved to the device.

    For a GPU each is made on a thread while the one before is used, in page-locked memory. On a CPU
    they are made when they are asked for: a thread would take cores from the training.
    """
    if device.type != "cuda":
        return map(batches, numbers)
    return one_ahead(lambda number: _pinned(batches(number)), numbers)


def one_ahead(make: Callable[[int], Batch], numbers: Iterable[int]) -> Generator[Batch]:
    """Yield make(number) for each number, made on a thread while the one before is used.

    >>> list(one_ahead(lambda number: number * number, range(4)))
    [0, 1, 4, 9]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        before: Future[Batch] | None = None
        for number in numbers:
            coming = thread.submit(make, number)
            if before is not None:
                yield before.result()
            before = coming
        if before is not None:
            yield before.result()


def _pinned(batch: Batch) -> Batch:
    """Return a batch whose CPU tensors are in page-locked memory."""
    from accelerate.utils.operations import recursively_apply

    def pin(tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if tensor.device.type == "cpu" else tensor

    return cast(Batch, recursively_apply(pin, batch))


def best_of(values: Sequence[float], *, better: Better) -> int:
    """Return the index of the best value; of equal ones the first.

    >>> best_of([0.5, 0.2, 0.2], better="lower")
    1
    """
    if not values:
        raise ValueError("At least one value is needed to find the best, got none.")
    return values.index(min(values) if better == "lower" else max(values))


def out_of_patience(values: Sequence[float], *, better: Better, patience: int) -> bool:
    """Tell whether none of the last `patience` values is better than all before them.

    Args:
        values: one per evaluation, the oldest first.
        better: whether a lower or a higher value is better; an equal one is not.
        patience: 0 never runs out.

    >>> out_of_patience([0.5, 0.2, 0.3, 0.2], better="lower", patience=2)
    True
    """
    if patience == 0 or not values:
        return False
    return len(values) - 1 - best_of(values, better=better) >= patience
