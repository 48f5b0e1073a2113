"""What `fit` keeps of a training in its run: checkpoints, the last weights and the best."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from headwise.recording.run import Run
from headwise.training.averaging import drop_old, keep_weights
from headwise.training.checkpoint import (
    BEST,
    CHECKPOINT,
    Progress,
    checkpoint_tensors,
    load_checkpoint,
    random_states,
    weights_of,
)
from headwise.training.writing import Writer, copied

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["Beside", "Keeper", "nothing_beside"]

Beside = Callable[[], Mapping[str, Tensor]]


def nothing_beside() -> Mapping[str, Tensor]:
    """What most trainings keep beside their model."""
    return {}


@dataclass(eq=False)
class Keeper:
    """Writes files of a training, in the first of its processes, and reads them when it goes on."""

    run: Run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    accelerator: "Accelerator"
    write: Writer
    average: int  # last checkpoints whose weights are kept
    beside: Beside  # what the caller keeps of the training

    def resume(self) -> Progress | None:
        """Put everything back as the checkpoint has it, if there is one, and say how far it was."""
        if not self.run.has(CHECKPOINT):
            self._drop_old(0)
            return None
        progress = load_checkpoint(
            self.run,
            self.model,
            self.optimizer,
            process=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
            beside=self.beside(),
        )
        self._drop_old(progress.step)
        return progress

    def checkpoint(self, progress: Progress) -> None:
        """Write a checkpoint; all processes call this, as each has random numbers of its own."""
        random = {name: self._rows(state) for name, state in random_states().items()}
        if self.accelerator.is_main_process:
            tensors = checkpoint_tensors(
                self.model, self.optimizer, progress, random=random, beside=self.beside()
            )
            self.write(partial(self._write_checkpoint, progress.step, copied(tensors)))

    def best(self, figures: Mapping[str, float], *, step: int) -> None:
        """Keep the weights as the best so far."""
        if self.accelerator.is_main_process:
            note = {"step": str(step)} | {name: repr(figure) for name, figure in figures.items()}
            weights = copied(self.model.state_dict())
            self.write(partial(self.run.save_tensors, BEST, weights, note))

    def _write_checkpoint(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """In an order in which any file may be the last: weights to keep, then the checkpoint from
        which they would be written again, then away with those too old.
        """
        if self.average > 1:
            keep_weights(self.run, weights_of(tensors), step=step)
        self.run.save_tensors(CHECKPOINT, tensors, {"step": str(step)})
        self._drop_old(step)

    def _drop_old(self, step: int) -> None:
        if self.average > 1 and self.accelerator.is_main_process:
            drop_old(self.run, keep=self.average, step=step)

    def _rows(self, state: Tensor) -> Tensor:
        """A row from each process."""
        return cast(Tensor, self.accelerator.gather(state[None].to(self.accelerator.device)))
