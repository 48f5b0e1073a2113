"""Checkpoints of a training, the best weights, and the mean of the last weights.

A checkpoint is one safetensors file with these names inside:

- `model.<name>`: parameters and buffers
- `optimizer.<parameter>.<quantity>`: state of the optimiser
- `random.cpu` and `random.cuda`: state of the random numbers, one row per process
- `window`: loss and gradient norm of each step since the last log
- `evaluations`: step and deciding metric of each evaluation
- `extra.<name>`: extra state of the caller

"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from headwise.recording.run import Run

if TYPE_CHECKING:
    from accelerate import Accelerator

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"  # weights with the best evaluation, named as in the model
FOLDER = "checkpoints"  # of a run: weights of the last checkpoints, one file per step

ExtraState = Callable[[], Mapping[str, Tensor]]


class Progress(NamedTuple):
    """Position of a training, and its measurements."""

    step: int
    window: Tensor  # (steps, 2): loss and gradient norm of each step since the last log
    evaluations: Tensor  # (evaluations, 2): step and the deciding metric, in float64


def no_extra_state() -> Mapping[str, Tensor]:
    """Return no tensors: most trainings keep nothing but the model and the optimiser."""
    return {}


class Writer:
    """Writer of files on a thread, one after the other, at most one behind.

    A GPU trains on while a file is flushed to disk. On a CPU, where a thread would take cores from
    the training, writing is synchronous. A failure raises at the next call, or at `wait`.

    Args:
        device: on which the model is trained.
    """

    def __init__(self, device: torch.device) -> None:
        self._thread = ThreadPoolExecutor(1, "writing") if device.type == "cuda" else None
        self._last: Future[None] | None = None

    def __call__(self, write: Callable[[], None]) -> None:
        """Call a function soon; its tensors must not change until then, see `on_cpu`."""
        if self._thread is None:
            write()
            return
        self.wait()
        self._last = self._thread.submit(write)

    def wait(self) -> None:
        """Wait until everything is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return CPU copies; CPU tensors stay uncopied, because CPU training writes synchronously."""
    return {
        name: tensor.detach().to("cpu", copy=True) if tensor.is_cuda else tensor
        for name, tensor in tensors.items()
    }


@dataclass(eq=False)
class CheckpointManager:
    """Checkpoints of one training: writes them in the first process, and resumes from them."""

    run: Run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    accelerator: "Accelerator"
    write: Writer
    average: int  # number of last checkpoints whose weights are kept
    extra_state: ExtraState

    def resume(self) -> Progress | None:
        """Restore everything from the checkpoint, if there is one; return its progress."""
        found = self._load() if self.run.has(CHECKPOINT) else None
        self._drop_old(found.step if found else 0)
        return found

    def save(self, progress: Progress) -> None:
        """Write a checkpoint; all processes call this, as each has its own random numbers."""
        states = {"random.cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            states["random.cuda"] = torch.cuda.get_rng_state()
        random = {name: self._rows(state) for name, state in states.items()}
        if self.accelerator.is_main_process:
            measured = {"window": progress.window, "evaluations": progress.evaluations}
            tensors = on_cpu(self._state() | random | measured)
            self.write(partial(self._write, progress.step, tensors))

    def save_best(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Write the current weights as the best so far."""
        if self.accelerator.is_main_process:
            note = {"step": str(step)} | {name: repr(value) for name, value in metrics.items()}
            weights = on_cpu(self.model.state_dict())
            self.write(partial(self.run.save_tensors, BEST, weights, note))

    def _state(self) -> dict[str, Tensor]:
        """Return the tensors of model, optimiser and caller."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for quantity, tensor in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{quantity}"] = tensor
        return tensors | {f"extra.{name}": tensor for name, tensor in self.extra_state().items()}

    def _write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        # in an order in which any file may be the last: weights to average, the checkpoint from
        # which they would be written again, then old weights are deleted
        if self.average > 1:
            keep_weights(self.run, _under("model.", tensors), step=step)
        self.run.save_tensors(CHECKPOINT, tensors, {"step": str(step)})
        self._drop_old(step)

    def _drop_old(self, step: int) -> None:
        """Delete all kept weights but the last ones up to a step.

        Later ones were written by a process that was killed before its checkpoint.
        """
        if self.average > 1 and self.accelerator.is_main_process:
            names = kept_checkpoints(self.run)
            past = [name for name in names if _step(name) <= step]
            for name in set(names) - set(past[-self.average :]):
                self.run.path(name).unlink()

    def _rows(self, state: Tensor) -> Tensor:
        """Gather one row from each process."""
        return cast(Tensor, self.accelerator.gather(state[None].to(self.accelerator.device)))

    def _load(self) -> Progress:
        tensors, note = _read(self.run), self.run.note(CHECKPOINT)
        written, processes = len(tensors["random.cpu"]), self.accelerator.num_processes
        if written != processes:
            raise ValueError(
                f"{self.run.path(CHECKPOINT)} was written by {written} processes, but "
                f"{processes} resume from it; start as many as before."
            )
        self._load_model(_under("model.", tensors))
        self._load_optimizer(_under("optimizer.", tensors))
        self._load_extra(_under("extra.", tensors))
        # clones, because torch reads from the start of a view's storage instead of its own
        process = self.accelerator.process_index
        torch.set_rng_state(tensors["random.cpu"][process].clone())
        if "random.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["random.cuda"][process].clone())
        return Progress(int(note["step"]), tensors["window"], tensors["evaluations"])

    def _load_model(self, tensors: Mapping[str, Tensor]) -> None:
        wanted = {name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()}
        there = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name in [*wanted, *there]:
            if wanted.get(name) != there.get(name):
                raise ValueError(
                    f"{self.run.path(CHECKPOINT)} is of another model: {name} has shape "
                    f"{there.get(name, 'none')} there and {wanted.get(name, 'none')} here; "
                    "choose another folder."
                )
        self.model.load_state_dict(dict(tensors))

    def _load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        found = {at: _under(f"{names[p]}.", tensors) for at, p in enumerate(parameters)}
        state = {at: quantities for at, quantities in found.items() if quantities}
        # load_state_dict, not assignment: it knows which quantity belongs on which device
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})

    def _load_extra(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill the caller's tensors in place."""
        own = self.extra_state()
        if own.keys() != tensors.keys():
            there, here = (", ".join(names) or "nothing" for names in (tensors, own))
            raise ValueError(
                f"{self.run.path(CHECKPOINT)} is of another training: its extra state is {there}, "
                f"and that of this one {here}; choose another folder."
            )
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def checkpoint_weights(run: Run) -> dict[str, Tensor]:
    """Return the weights in a run's checkpoint, named as in the model."""
    return _under("model.", _read(run))


def kept_checkpoints(run: Run) -> list[str]:
    """Return the names of the files of kept weights, the oldest first."""
    return sorted(run.names(f"{FOLDER}/*.safetensors"), key=_step)


def keep_weights(run: Run, weights: Mapping[str, Tensor], *, step: int) -> None:
    """Write the weights of a step."""
    run.save_tensors(f"{FOLDER}/{step}.safetensors", weights, {"step": str(step)})


def average_checkpoints(run: Run, *, last: int | None = None) -> dict[str, Tensor]:
    """Return the mean of the weights of the last checkpoints.

    `FitConfig.average` decides how many a training keeps; with 1 it is the only one. Means are
    computed in float64. Tensors of integers are those of the newest checkpoint. Use:
    `model.load_state_dict(average_checkpoints(run, last=5))`.

    Args:
        run: one that `fit` trained into.
        last: how many of the newest; None: all that were kept.
    """
    names = kept_checkpoints(run)
    count = len(names) if last is None else last
    if names and not 1 <= count <= len(names):
        raise ValueError(
            f"last must be between 1 and the {len(names)} checkpoints that were kept, got {last}; "
            "FitConfig.average says how many are."
        )
    if not names and count > 1:
        raise ValueError(
            f"The run in {run.folder} kept one checkpoint, but last={last} was asked for; "
            "train with a larger FitConfig.average."
        )
    return _mean(run, names[len(names) - count :]) if names else checkpoint_weights(run)


def _mean(run: Run, names: list[str]) -> dict[str, Tensor]:
    newest = run.load_tensors(names[-1])
    sums = {name: value.double() for name, value in newest.items() if value.is_floating_point()}
    for kept in names[:-1]:  # one after the other, so that at most two are in memory
        weights = run.load_tensors(kept)
        for name, total in sums.items():
            total += weights[name]
    means = {name: (total / len(names)).to(newest[name].dtype) for name, total in sums.items()}
    return {**newest, **means}


def _step(name: str) -> int:
    return int(PurePath(name).stem)


def _read(run: Run) -> dict[str, Tensor]:
    tensors, note = run.load_tensors(CHECKPOINT), run.note(CHECKPOINT)
    parts = {"random.cpu", "window", "evaluations"}
    if not note.get("step", "").isdigit() or not parts <= tensors.keys():
        raise ValueError(
            f"{run.path(CHECKPOINT)} was not written by `fit`; delete it to start anew."
        )
    return tensors


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
