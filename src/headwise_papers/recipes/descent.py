"""Full-batch gradient descent of many seeds at once, with early stopping for each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from headwise.recording.run import Run
from headwise.training import Report
from headwise_papers.data.bags import Bags
from headwise_papers.measures.sen_curves import Records

__all__ = ["Descent", "Recorder", "Stack", "descend"]

STATE = "descent.safetensors"
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
        """By name, seeds on the leading axis."""
        ...

    @property
    def seeds(self) -> int:
        """How many models there are."""
        ...

    def prepare(self, bags: Bags) -> Data:
        """Sentences in the form `step` and `evaluate` want."""
        ...

    def step(self, data: Data, *, rate: float) -> Tensor:
        """Update in place; each seed's loss before the update, (S,)."""
        ...

    def evaluate(self, data: Data) -> _Evaluation:
        """Each seed's `loss`, (S,)."""
        ...

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Take over parameters."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """Watches models through training; see `headwise_papers.measures.sen_curves`."""

    name: str

    def __call__(self, epoch: int, model: Any, /) -> None:
        """Look at the model as it is after `epoch` updates."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What was recorded."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on after what `tensors` gave earlier."""
        ...


@dataclass(frozen=True)
class Descent:
    """How training went."""

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

    With validation sentences each seed ends with the parameters that had its lowest validation
    loss. With `patience` a seed stops when that many epochs brought no lower one; its parameters
    and its result are those of then, though it is carried along, and recorded, until the last seed
    stops: cut its curves at `stopped`. With a run, a killed training goes on where its last
    checkpoint was, through the same numbers; recorders are kept in `trace/<name>/curves` and the
    losses in `trace/descent/losses`.

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
    if loop.finished and loop.epoch < epochs and bool((loop.stopped < 0).any()):
        raise ValueError(
            f"The run ended after its {loop.epoch} epochs; for {epochs} choose another folder."
        )
    while not loop.finished:
        loop.look(held_out, patience)
        if loop.epoch >= epochs or bool((loop.stopped >= 0).all()):
            loop.finished = True
            break
        loop.update(data, rate)
        if loop.epoch % log_every == 0 or loop.epoch == epochs:
            loop.log(progress)
        if loop.epoch % checkpoint_every == 0:
            loop.checkpoint()
    return loop.finish()


class _Loop:
    """Training in progress: what changes from epoch to epoch."""

    def __init__(self, stack: Stack[Any], recorders: Sequence[Recorder], run: Run | None) -> None:
        self.stack, self.recorders, self.run = stack, recorders, run
        self.epoch = 0  # updates done
        self.finished = False
        self.losses = Records()
        self.validation_losses = Records()
        self.best: dict[str, Tensor] = {}  # parameters; empty without validation
        self.best_loss = torch.full((stack.seeds,), torch.inf, dtype=torch.float64)
        self.best_epoch = torch.zeros(stack.seeds, dtype=torch.long)
        self.stopped = torch.full((stack.seeds,), -1)
        if run is not None and run.has(STATE):
            self._restore(run)

    def look(self, held_out: object | None, patience: int | None) -> None:
        """Record and validate the models as they are, before the next update."""
        for record in self.recorders:
            record(self.epoch, self.stack)
        if held_out is None:
            return
        loss_S = self.stack.evaluate(held_out).loss.detach().double().cpu()
        self.validation_losses.append(loss_S)
        better_S = (loss_S < self.best_loss) & (self.stopped < 0)
        self._keep(better_S)
        self.best_loss = torch.where(better_S, loss_S, self.best_loss)
        self.best_epoch[better_S] = self.epoch
        if patience is not None:
            over_S = (self.epoch - self.best_epoch >= patience) & (self.stopped < 0)
            self.stopped[over_S] = self.epoch

    def update(self, data: object, rate: float) -> None:
        """One step of gradient descent."""
        self.losses.append(self.stack.step(data, rate=rate))
        self.epoch += 1

    def log(self, progress: Report | None) -> None:
        """Say how the last epoch went; raise if it went wrong."""
        loss = self._finite_loss()
        metrics = {"loss": loss}
        if self.validation_losses:
            metrics["validation_loss"] = self.validation_losses.last().mean().item()
        if self.run is not None:
            self.run.log(self.epoch, **metrics)
        if progress is not None:
            progress(self.epoch, metrics)

    def checkpoint(self) -> None:
        """Write everything needed to go on, but never a training that went wrong."""
        if self.run is None:
            return
        self._finite_loss()
        tensors = {f"model.{name}": value for name, value in self.stack.parameters.items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        tensors |= {f"loop.{name}": value for name, value in self._curves().items()}
        for record in self.recorders:
            kept = record.tensors().items()
            tensors |= {f"recorder.{record.name}.{name}": value for name, value in kept}
        note = {"epoch": str(self.epoch), "finished": str(self.finished)}
        self.run.save_tensors(STATE, tensors, note)

    def finish(self) -> Descent:
        """Write the last checkpoint and the traces, and put the best parameters in place."""
        self.checkpoint()
        if self.run is not None:
            for record in self.recorders:
                name = f"trace/{record.name}/curves.safetensors"
                self.run.save_tensors(name, record.tensors())
            self.run.save_tensors("trace/descent/losses.safetensors", self._curves())
        if self.best:
            self.stack.load(self.best)
        last = torch.full_like(self.stopped, self.epoch)
        return Descent(
            self.losses.stacked(),
            self.validation_losses.stacked(),
            self.best_epoch if self.best else last,
            torch.where(self.stopped < 0, last, self.stopped),
        )

    def _keep(self, better_S: Tensor) -> None:
        """Copy the parameters of seeds that have just become better."""
        if not self.best:
            self.best = {name: value.clone() for name, value in self.stack.parameters.items()}
        for seed in better_S.nonzero()[:, 0].tolist():
            for name, value in self.stack.parameters.items():
                self.best[name][seed].copy_(value[seed])

    def _finite_loss(self) -> float:
        """The mean loss of the last epoch; looked at here only, as looking makes a GPU wait."""
        if not self.losses:
            return 0.0
        loss_S = self.losses.last().cpu()
        if not bool(loss_S.isfinite().all()):
            bad = (~loss_S.isfinite()).nonzero()[:, 0].tolist()
            raise ValueError(
                f"Training went wrong by epoch {self.epoch}: the loss of seeds {bad} is not "
                "finite; lower the rate."
            )
        return loss_S.mean().item()

    def _curves(self) -> dict[str, Tensor]:
        return {
            "loss": self.losses.stacked(),
            "validation_loss": self.validation_losses.stacked(),
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "stopped": self.stopped,
        }

    def _restore(self, run: Run) -> None:
        tensors, note = run.load_tensors(STATE), run.note(STATE)
        self.epoch, self.finished = int(note["epoch"]), note["finished"] == "True"
        self.stack.load(_under("model.", tensors))
        some = next(iter(self.stack.parameters.values()))
        self.best = {n: t.to(some.device) for n, t in _under("best.", tensors).items()}
        own = _under("loop.", tensors)
        self.losses = Records(own["loss"])
        self.validation_losses = Records(own["validation_loss"])
        self.best_loss, self.best_epoch = own["best_loss"], own["best_epoch"]
        self.stopped = own["stopped"]
        for record in self.recorders:
            kept = _under(f"recorder.{record.name}.", tensors)
            if not kept:
                raise ValueError(
                    f"{run.path(STATE)} holds no records of {record.name!r}; go on with the same "
                    "recorders, or choose another folder."
                )
            record.restore(kept)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
