"""Trainings that are killed, each at another place, and started again.

    python -m tests.training.killing FOLDER

FOLDER gets a run by name: `whole`, which nobody disturbs, and one a place in PLACES. Each training
is a process of its own, forked after the imports, which take longer than all the training.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import accelerate  # noqa: F401  # once, before forking
import torch

from headwise.recording import Run, files
from headwise.training import BEST, CHECKPOINT, fit
from tests.training.noise import CONFIG, batch, evaluate, make_model, summed_loss

# Nobody disturbing, the best evaluation is that of step 8, and training ends at 18.
LINES = 11  # of metrics, after which the one without a place is killed, about step 14


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path) -> None:
    with Run.create(folder, CONFIG) as run:
        fit(make_model(), summed_loss, batch, run=run, config=CONFIG, evaluate=evaluate)


def saving(name: str, *, step: int, first: bool) -> None:
    """Be killed when a file of a step was written, or first, before."""
    save = Run.save_tensors

    def killing(run: Run, saved: str, tensors: object, note: dict[str, str]) -> None:
        here = saved == name and note["step"] == str(step)
        if here and first:
            end()
        save(run, saved, tensors, note)
        if here:
            end()

    Run.save_tensors = killing


def half_written() -> None:
    """Be killed when the third checkpoint has its contents but not yet its name."""
    flush, seen = files._flush_to_disk, []

    def killing(path: Path) -> None:
        seen.append(CHECKPOINT in path.name)
        if sum(seen) == 3:
            os.truncate(path, path.stat().st_size // 2)
            end()
        flush(path)

    files._flush_to_disk = killing


KEPT = "checkpoints/15.safetensors"
PLACES: dict[str, Callable[[], None]] = {
    "after-the-best-weights": lambda: saving(BEST, step=8, first=False),
    "before-weights-are-kept": lambda: saving(KEPT, step=15, first=True),
    "between-kept-weights-and-checkpoint": lambda: saving(KEPT, step=15, first=False),
    "in-a-checkpoint": half_written,
    "before-old-weights-go": lambda: saving(CHECKPOINT, step=18, first=False),
}


def forked(folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """The process of a training."""
    process = os.fork()
    if process == 0:
        torch.set_num_threads(1)
        prepare()
        train(folder)
        os._exit(0)
    return process


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def killed_from_outside(folder: Path) -> int:
    process, metrics = forked(folder), folder / "metrics.jsonl"
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if metrics.exists() and metrics.read_text().count("\n") >= LINES:
            break
    os.kill(process, signal.SIGKILL)
    return ended(process)


def main(folder: Path) -> None:
    os.fsync = lambda file: None  # slow, and it is processes that are killed, not the machine
    assert ended(forked(folder / "whole")) == 0
    assert killed_from_outside(folder / "from-outside") == -signal.SIGKILL
    assert ended(forked(folder / "from-outside")) == 0
    for name, prepare in PLACES.items():
        assert ended(forked(folder / name, prepare)) == -signal.SIGKILL, name
        assert ended(forked(folder / name)) == 0, name


if __name__ == "__main__":
    main(Path(sys.argv[1]))
