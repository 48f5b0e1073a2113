"""Training runs: a folder shared by processes, its data, minutes, losses, results and report."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.config import Dataclass, to_json
from headwise.recording import Run
from headwise.recording.checksums import LIST, check_checksums
from headwise.recording.files import writing_alone
from headwise.reporting import write_report
from headwise.training import (
    BEST,
    CHECKPOINT,
    Evaluate,
    FitConfig,
    Report,
    average_checkpoints,
    kept_checkpoints,
    progress_bar,
)

MINUTES = "minutes"  # a metric
DATA = "data.json"  # of a run: the checksum of its data


def fit_here(fit: FitConfig, *, replayable: bool = False, one_shape: bool = False) -> FitConfig:
    """Return the settings of a training with "auto" and None decided for this machine.

    Args:
        fit: the settings.
        replayable: whether CUDA graphs can be made of the loss.
        one_shape: whether all batches have one shape.
    """
    return fit.on_device(
        cuda=torch.cuda.is_available(),
        replayable=replayable,
        one_shape=one_shape,
        processes=process_count(),
    )


@contextmanager
def shared_run(
    folder: Path, config: Dataclass, kind: str = "", *, data: str = ""
) -> Generator[Run]:
    """Create or resume the run in a folder, in the first process, and open it in the others.

    The first process alone writes. At the end the others wait for it, so that all find the run
    finished. An unfinished run resumes only with the data that it began with.

    Args:
        folder: of the run.
        config: its settings.
        kind: its kind.
        data: checksum of its data, from `checksum_of`; "" does not check.
    """
    _check_data(folder, config, data)
    state = _processes()
    with writing_alone(folder) if state.is_main_process else nullcontext():
        run = Run.create(folder, config, kind) if state.is_main_process else None
        if run and data and not run.has(DATA) and not run.has("figures.json"):
            run.write_json(DATA, {"sha256": data})
        state.wait_for_everyone()
        with run or Run.open(folder) as opened:
            yield opened
    state.wait_for_everyone()


def checksum_of(*parts: Sequence[Any] | Tensor) -> str:
    """Compute the SHA-256 of tensors, and of lists of texts and numbers.

    >>> checksum_of(["a", "b"]) == checksum_of(["a"], ["b"])
    False

    Args:
        parts: such as the sentences of a language; one at a time is held in memory as bytes.
    """
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            found.update(part.contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            found.update(json.dumps(part).encode())
    return found.hexdigest()


def _check_data(folder: Path, config: Dataclass, checksum: str) -> None:
    """Raise if an unfinished run with these settings began with other data."""
    begun = all((folder / name).is_file() for name in ("config.json", DATA))
    if not checksum or not begun or (folder / "figures.json").is_file():
        return
    run = Run.open(folder)
    before = str(run.read_json(DATA, {"sha256": str})["sha256"])
    if run.config() == to_json(config) and before != checksum:
        raise ValueError(
            f"The data are not those that the run in {folder} began with: their checksum was "
            f"{before[:16]} and is now {checksum[:16]}; put the files back, or take another --out."
        )


def in_first_process_first(make: Callable[[], Any]) -> Any:
    """Call a function in the first process, and then, when its files are there, in the others."""
    with _processes().main_process_first():
        return make()


def is_first_process() -> bool:
    """Tell whether this process is the one that writes."""
    return bool(_processes().is_main_process)


def process_count() -> int:
    """Return the number of processes that train together."""
    return int(_processes().num_processes)


def _processes() -> Any:
    """Return Accelerate's state of the processes that were started together."""
    from accelerate import PartialState  # lazy: takes seconds, and only training needs it

    # the first call decides; without a GPU it finds one process unless told to use the CPU
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return PartialState(cpu=several and not torch.cuda.is_available())


@dataclass
class Clock:
    """Minutes of training, those before an interruption included.

    They are logged with every evaluation, so that a resumed run finds them.
    """

    run: Run
    _before: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        if self.run.has(CHECKPOINT):
            reached = int(self.run.note(CHECKPOINT)["step"])
            logged = [row for row in self.run.metrics() if row["step"] <= reached]
            self._before = max((row.get(MINUTES, 0.0) for row in logged), default=0.0)

    def minutes(self) -> float:
        """Return the minutes until now."""
        return self._before + (time.perf_counter() - self._since) / 60

    def timed(self, evaluate: Evaluate) -> Evaluate:
        """Return an evaluation with the minutes after its own metrics."""
        return lambda model: {**evaluate(model), MINUTES: self.minutes()}


@contextmanager
def training_bar(steps: int, *, label: str = "training") -> Generator[Report]:
    """Show a progress bar for `fit` in the first process, without minutes, which it counts itself.

    Args:
        steps: number of steps of the whole bar.
        label: stands before the bar.
    """
    if not is_first_process():
        yield lambda step, metrics: None
        return
    with progress_bar(steps, label=label) as show:
        yield lambda step, metrics: show(
            step, {name: value for name, value in metrics.items() if name != MINUTES}
        )


def choose_weights(run: Run, model: nn.Module, evaluate: Evaluate) -> str:
    """Load the best weights, or the mean of the last ones if that is better; return which.

    Args:
        run: one that `fit` trained into, with evaluations.
        model: gets the weights, and is left in evaluation mode.
        evaluate: its first metric decides, lower being better.
    """
    model.eval()
    candidates = {f"step {run.note(BEST)['step']}": run.load_tensors(BEST)}
    if (kept := len(kept_checkpoints(run))) > 1:
        candidates[f"mean of the last {kept} checkpoints"] = average_checkpoints(run)
    losses = {name: _loss_with(model, weights, evaluate) for name, weights in candidates.items()}
    best = min(losses, key=lambda name: losses[name])
    model.load_state_dict(candidates[best])
    return best


@torch.no_grad()
def _loss_with(model: nn.Module, weights: Mapping[str, Tensor], evaluate: Evaluate) -> float:
    model.load_state_dict(dict(weights))
    return next(iter(evaluate(model).values()))


def logged_rows(run: Run, name: str = "step") -> list[dict[str, float | int]]:
    """Return the logged rows that have a metric; raise if there are none.

    Args:
        run: of the training.
        name: of the metric.
    """
    rows = [row for row in run.metrics() if name in row]
    if not rows:
        raise ValueError(
            f"{run.path('metrics.jsonl')} was cut or changed: it has no {name} of this training; "
            "choose another folder to train again."
        )
    return rows


def training_figures(run: Run, model: nn.Module) -> dict[str, float | int]:
    """Return updates, minutes, median tokens per second and parameters of a training."""
    rows = logged_rows(run)
    speeds = sorted(row["tokens_per_second"] for row in rows if "tokens_per_second" in row)
    return {
        "updates": max(int(row["step"]) for row in rows),
        "minutes": max(row.get(MINUTES, 0.0) for row in rows),
        "tokens_per_second": speeds[len(speeds) // 2] if speeds else 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


@contextmanager
def clock(label: str) -> Generator[None]:
    """Show a label and the time that a block takes, where its end is not known."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns) as shown:
        shown.add_task(label, total=None)
        yield


class RunningLoss:
    """Running means of a loss: over all batches, and over the last ones.

        average_n = average_(n-1) + (x_n - average_(n-1)) / n
        recent_n  = recent_(n-1) + (x_n - recent_(n-1)) / min(n, window)

    Given to `fit` as `extra_state=running.tensors` they are in its checkpoints, so that a resumed
    training has the same means. Nothing waits for a GPU. With several processes each averages its
    own batches, and those of the first are kept.

    >>> running = RunningLoss(window=2)
    >>> for loss in (4.0, 2.0, 0.0):
    ...     running.add(torch.tensor(loss))
    >>> running.average, running.recent
    (2.0, 1.5)

    Args:
        window: number of batches that `recent` is about.
    """

    def __init__(self, *, window: int) -> None:
        self.window = max(window, 1)
        self._held_3 = torch.zeros(3)  # number of batches, mean of all, mean of the last

    def tensors(self) -> dict[str, Tensor]:
        """Return the state, which may be filled in place."""
        return {"running_loss": self._held_3}

    @torch.no_grad()
    def add(self, loss: Tensor) -> None:
        """Add the loss of one more batch, a scalar."""
        if self._held_3.device != loss.device:  # the first time, before a graph is recorded
            self._held_3 = self._held_3.to(loss.device)
        held_3 = self._held_3
        number = held_3[0] + 1
        share_2 = torch.stack([number, number.clamp(max=self.window)]).reciprocal()
        held_3[1:] += (loss.float() - held_3[1:]) * share_2
        held_3[0] = number

    @property
    def average(self) -> float:
        """Mean over all batches so far."""
        return self._held_3[1].item()

    @property
    def recent(self) -> float:
        """Mean over about the last `window` batches, the newest weighted most."""
        return self._held_3[2].item()


def complete_report(run: Run) -> None:
    """Write the report of a finished run, unless it is newer than the results.

    A run that was killed between the two gets its report when it is started again. A damaged model
    is refused first, as the results would not be those of the model that is there.
    """
    check_models(run)
    if is_first_process() and not _has_new_report(run):
        write_report(run)


def check_models(run: Run) -> None:
    """Raise if the model of a run, or of a training in it, was damaged; one may be missing."""
    for name in (*run.names("model.safetensors"), *run.names("*/model.safetensors")):
        run.load_tensors(name)
    for path in sorted(run.folder.glob(f"*/*/{LIST}")):
        check_checksums(path.parent)


def _has_new_report(run: Run) -> bool:
    if not run.has("report.html"):
        return False
    results, report = (run.path(name).stat() for name in ("figures.json", "report.html"))
    return report.st_mtime_ns >= results.st_mtime_ns
