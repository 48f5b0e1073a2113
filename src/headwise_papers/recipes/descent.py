"""Full-batch gradient descent of many seeds together, with early stopping for each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from headwise.recording import Run
from headwise.training import Report
from headwise_papers.data.bags import Bags
from headwise_papers.measures.sen_curves import Records

__all__ = ["STATE", "Descent", "Recorder", "Stack", "Training", "descend", "under"]

STATE = "checkpoint.safetensors"
Data = TypeVar("Data")


@runtime_checkable
class _Evaluation(Protocol):
    @property
    def loss(self) -> Tensor: ...


@runtime_checkable
class Stack(Protocol[Data]):
    """S models of one shape: `BagStack`, `PairStack`, or your own."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Parameters by name, seeds on the leading axis."""
        ...

    @property
    def seeds(self) -> int:
        """Number of models."""
        ...

    def prepare(self, bags: Bags) -> Data:
        """Convert sentences to what `step` and `evaluate` take."""
        ...

    def step(self, data: Data, *, rate: float) -> Tensor:
        """Update in place, and return each seed's loss before it, (S,)."""
        ...

    def evaluate(self, data: Data) -> _Evaluation:
        """Return each seed's `loss`, (S,)."""
        ...

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Copy parameters."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """Observer of models in training; see `headwise_papers.measures.sen_curves`."""

    name: str

    def __call__(self, epoch: int, model: Any, /) -> None:
        """Record the model as it is after `epoch` updates."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what was recorded."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume after what `tensors` returned earlier."""
        ...


@dataclass(frozen=True)
class Descent:
    """History of a training."""

    loss: Tensor  # (E, S) training loss before each update
    validation_loss: Tensor  # (E + 1, S) after 0, 1, 2, ... updates; empty without validation
    best_epoch: Tensor  # (S,) updates done where the validation loss was lowest; the last without
    stopped: Tensor  # (S,) updates done when patience ran out, or training ended


def descend(
    stack: Stack[Data],
    train: Bags,
    *,
    epochs: int,
    rate: float,
    validation: Bags | None = None,
    patience: int | None = None,
    recorders: Sequence[Recorder] = (),
    run: Run | None = None,
    log_every: int = 100,
    checkpoint_every: int = 2000,
    progress: Report | None = None,
) -> Descent:
    """Train a stack in place: an epoch is one update with the gradient of all sentences.

    With validation sentences each seed ends with the parameters of its lowest validation loss.
    With `patience` a seed stops when so many epochs brought no lower one; its result is that of
    then, though it is recorded until the last seed stops: cut its curves at `stopped`. With a
    run, a killed training resumes from its last checkpoint and goes through the same numbers;
    records are written to `trace/<name>/curves`, losses to `trace/descent/losses`.

    Args:
        stack: the models.
        train: sentences to learn from, for each seed.
        epochs: updates to do, at most.
        rate: the learning rate, the paper's eta.
        validation: sentences to choose the best epoch with.
        patience: epochs to wait for a lower validation loss; None waits forever.
        recorders: called before the first update and after every one.
        run: where checkpoints, metrics and traces go; None keeps nothing.
        log_every: epochs between lines in the run's metrics, means over seeds.
        checkpoint_every: epochs between checkpoints.
        progress: called after every log; see `progress_bar`.
    """
    if patience is not None and (validation is None or patience < 1):
        raise ValueError("patience needs validation sentences and must be 1 or more.")
    loop = _Loop(stack, recorders, run)
    data = stack.prepare(train)
    held_out = None if validation is None else stack.prepare(validation)
    if loop.finished and loop.done < epochs and bool((loop.stopped < 0).any()):
        raise ValueError(
            f"The run ended after its {loop.done} epochs; for {epochs} choose another folder."
        )
    while not loop.finished:
        loop.validate(held_out, patience)
        if loop.done >= epochs or bool((loop.stopped >= 0).all()):
            loop.finished = True
            break
        loop.add(stack.step(data, rate=rate))
        if loop.done % log_every == 0 or loop.done == epochs:
            validation_losses = loop.validation_losses
            last = validation_losses.last().mean().item() if validation_losses else None
            loop.log(progress, **({} if last is None else {"validation_loss": last}))
        if loop.done % checkpoint_every == 0:
            loop.checkpoint()
    return loop.finish()


class Training:
    """Losses, records and checkpoints of a stack in training, whatever updates it.

    Args:
        recorders: observers.
        run: where checkpoints, metrics and traces go; None keeps nothing.
        unit: name of one update, for messages.
    """

    def __init__(self, recorders: Sequence[Recorder], run: Run | None, *, unit: str) -> None:
        self.recorders, self.run, self.unit = recorders, run, unit
        self.done = 0  # updates
        self.losses = Records()

    def record(self, model: object) -> None:
        """Call the recorders."""
        for record in self.recorders:
            record(self.done, model)

    def add(self, loss_S: Tensor) -> None:
        """Count an update and keep its losses."""
        self.losses.append(loss_S)
        self.done += 1

    def log(self, progress: Report | None, **metrics: float) -> None:
        """Log the mean loss of the last update; raise if it is not finite."""
        metrics = {"loss": self._finite_loss(), **metrics}
        if self.run is not None:
            self.run.log(self.done, **metrics)
        if progress is not None:
            progress(self.done, metrics)

    def save(self, tensors: Mapping[str, Tensor], **note: object) -> None:
        """Write a checkpoint, but never of a training that diverged."""
        if self.run is None:
            return
        self._finite_loss()
        kept = {**tensors, "loop.loss": self.losses.stacked()}
        for record in self.recorders:
            kept |= {f"recorder.{record.name}.{key}": x for key, x in record.tensors().items()}
        notes = {"done": self.done, **note}
        self.run.save_tensors(STATE, kept, {key: str(value) for key, value in notes.items()})

    def restore(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors and the note of the last checkpoint; both are empty without one."""
        if self.run is None or not self.run.has(STATE):
            return {}, {}
        tensors, note = self.run.load_tensors(STATE), self.run.note(STATE)
        self.done, self.losses = int(note["done"]), Records(tensors["loop.loss"])
        for record in self.recorders:
            kept = under(f"recorder.{record.name}.", tensors)
            if not kept:
                raise ValueError(
                    f"{self.run.path(STATE)} holds no records of {record.name!r}; resume with the "
                    "same recorders, or choose another folder."
                )
            record.restore(kept)
        return tensors, note

    def write_traces(self) -> None:
        """Write what the recorders have to the run."""
        if self.run is not None:
            for record in self.recorders:
                self.run.save_tensors(f"trace/{record.name}/curves.safetensors", record.tensors())

    def _finite_loss(self) -> float:
        """Return the mean loss of the last update; seldom, as reading makes a GPU wait."""
        if not self.losses:
            return 0.0
        loss_S = self.losses.last().cpu()
        if not bool(loss_S.isfinite().all()):
            bad = (~loss_S.isfinite()).nonzero()[:, 0].tolist()
            raise ValueError(
                f"Training diverged by {self.unit} {self.done}: the loss of seeds {bad} is not "
                "finite; lower the rate."
            )
        return loss_S.mean().item()


class _Loop(Training):
    """Gradient descent in progress, with the best parameters so far."""

    def __init__(self, stack: Stack[Any], recorders: Sequence[Recorder], run: Run | None) -> None:
        super().__init__(recorders, run, unit="epoch")
        self.stack = stack
        self.finished = False
        self.validation_losses = Records()
        self.best: dict[str, Tensor] = {}  # parameters; empty without validation
        self.best_loss = torch.full((stack.seeds,), torch.inf, dtype=torch.float64)
        self.best_epoch = torch.zeros(stack.seeds, dtype=torch.long)
        self.stopped = torch.full((stack.seeds,), -1)
        tensors, note = self.restore()
        if note:
            self.finished = note["finished"] == "True"
            stack.load(under("model.", tensors))
            some = next(iter(stack.parameters.values()))
            self.best = {n: t.to(some.device) for n, t in under("best.", tensors).items()}
            own = under("loop.", tensors)
            self.validation_losses = Records(own["validation_loss"])
            self.best_loss, self.best_epoch = own["best_loss"], own["best_epoch"]
            self.stopped = own["stopped"]

    def validate(self, held_out: object | None, patience: int | None) -> None:
        """Record and validate the models as they are, before the next update."""
        self.record(self.stack)
        if held_out is None:
            return
        loss_S = self.stack.evaluate(held_out).loss.detach().double().cpu()
        self.validation_losses.append(loss_S)
        better_S = (loss_S < self.best_loss) & (self.stopped < 0)
        self._keep(better_S)
        self.best_loss = torch.where(better_S, loss_S, self.best_loss)
        self.best_epoch[better_S] = self.done
        if patience is not None:
            over_S = (self.done - self.best_epoch >= patience) & (self.stopped < 0)
            self.stopped[over_S] = self.done

    def checkpoint(self) -> None:
        """Write everything that resuming needs."""
        tensors = {f"model.{name}": value for name, value in self.stack.parameters.items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        tensors |= {f"loop.{name}": value for name, value in self._curves().items()}
        self.save(tensors, finished=self.finished)

    def finish(self) -> Descent:
        """Write the last checkpoint and the traces, and put the best parameters in place."""
        self.checkpoint()
        self.write_traces()
        if self.run is not None:
            self.run.save_tensors("trace/descent/losses.safetensors", self._curves())
        if self.best:
            self.stack.load(self.best)
        last = torch.full_like(self.stopped, self.done)
        return Descent(
            self.losses.stacked(),
            self.validation_losses.stacked(),
            self.best_epoch if self.best else last,
            torch.where(self.stopped < 0, last, self.stopped),
        )

    def _keep(self, better_S: Tensor) -> None:
        """Copy the parameters of seeds that have just improved."""
        if not self.best:
            self.best = {name: value.clone() for name, value in self.stack.parameters.items()}
        for seed in better_S.nonzero()[:, 0].tolist():
            for name, value in self.stack.parameters.items():
                self.best[name][seed].copy_(value[seed])

    def _curves(self) -> dict[str, Tensor]:
        return {
            "loss": self.losses.stacked(),
            "validation_loss": self.validation_losses.stacked(),
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "stopped": self.stopped,
        }


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
