"""What the training journeys share: settings, a run in one process or many, and the result."""

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.config import Dataclass
from headwise.recording import Run
from headwise.recording.checksums import LIST, check_checksums
from headwise.recording.files import writing_alone
from headwise.reporting import write_report
from headwise.training import BEST, FitConfig, average_checkpoints, progress_bar
from headwise.training.averaging import kept_checkpoints
from headwise.training.checkpoint import CHECKPOINT
from headwise.training.progress import Report

MINUTES = "minutes"  # a metric
Precision = Literal["auto", "float32", "bfloat16"]
Evaluate = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True)
class TrainingSettings:
    """How `headwise prune` trains."""

    steps: int = 3000  # updates, at most
    learning_rate: float = 1e-3  # at the peak of the schedule
    warmup: int = 300  # steps over which the learning rate rises
    schedule: Literal["constant", "inverse_square_root", "cosine", "linear"] = "cosine"
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    accumulate: int = 1  # batches in a step, of each process
    weight_decay: float = 0.0
    precision: Precision = "auto"  # bfloat16 on a GPU, float32 elsewhere
    compile: bool | None = False  # train through torch.compile; None does so on a GPU
    graphs: bool = True  # replay steps as CUDA graphs, where there is one GPU
    average: int = 5  # last checkpoints whose mean is tried beside the best one
    evaluate_every: int = 250  # steps
    checkpoint_every: int = 250  # steps
    patience: int = 0  # evaluations without a better one after which to stop; 0 never stops
    tensorboard: bool = False  # write what is logged as TensorBoard's scalars too
    seed: int = 0  # of the first weights, dropout and the order of batches

    def fit_config(
        self, *, cuda: bool, replayable: bool = False, one_shape: bool = False
    ) -> FitConfig:
        """The settings that `headwise.training.fit` wants.

        Args:
            cuda: whether training runs on a GPU, which is what "auto" and None ask.
            replayable: whether the loss is one of which CUDA graphs can be made.
            one_shape: whether all batches have it. Only then are compiled steps replayed too: a new
                shape may have to be compiled, which cannot be recorded.
        """
        settings = FitConfig(
            steps=self.steps,
            learning_rate=self.learning_rate,
            warmup=self.warmup,
            schedule=self.schedule,
            clip=self.clip,
            accumulate=self.accumulate,
            weight_decay=self.weight_decay,
            precision=self.precision,
            compile=self.compile,
            graphs=self.graphs,
            average=self.average,
            evaluate_every=self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
            patience=self.patience,
            tensorboard=self.tensorboard,
            seed=self.seed,
        )
        return settings.on_device(
            cuda=cuda, replayable=replayable, one_shape=one_shape, processes=process_count()
        )


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


def check_at_least(least: int, config: Dataclass, *names: str) -> None:
    """Raise if one of some settings is smaller than allowed."""
    for name in names:
        if not getattr(config, name) >= least:  # nan is not either
            raise ValueError(f"{name} must be at least {least}, got {getattr(config, name)}.")


@contextmanager
def shared_run(folder: Path, config: Dataclass, kind: str = "") -> Generator[Run]:
    """The run in a folder, made by the first process, which alone writes, and opened by the others.

    At the end they wait for the first one, so that all find the run finished.
    """
    state = _processes()
    with writing_alone(folder) if state.is_main_process else nullcontext():
        run = Run.create(folder, config, kind) if state.is_main_process else None
        state.wait_for_everyone()
        with run or Run.open(folder) as opened:
            yield opened
    state.wait_for_everyone()


def complete_report(run: Run) -> None:
    """Write the report of a finished run, unless it was written after the figures were.

    A run that was killed between the two is given its report when it is started again. A damaged
    model is refused first, as the figures would not be those of the model that is there.
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
    figures, report = (run.path(name).stat() for name in ("figures.json", "report.html"))
    return report.st_mtime_ns >= figures.st_mtime_ns


def in_first_process_first(make: Callable[[], Any]) -> Any:
    """Call a function in the first process, and then, when its files are there, in the others."""
    with _processes().main_process_first():
        return make()


def is_first_process() -> bool:
    """Whether this process is the one that writes."""
    return bool(_processes().is_main_process)


def process_count() -> int:
    """How many processes train together."""
    return int(_processes().num_processes)


def _processes() -> Any:
    """Accelerate's view of the processes that were started together."""
    from accelerate import PartialState  # lazy: takes seconds, and only training needs it

    # the first look decides, and without a GPU it finds one process unless told of the CPU
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return PartialState(cpu=several and not torch.cuda.is_available())


@dataclass
class Clock:
    """Minutes of training, those before an interruption included.

    They are logged with every evaluation, so that a run that goes on finds them again.
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
        """Until now."""
        return self._before + (time.perf_counter() - self._since) / 60

    def timed(self, evaluate: Evaluate) -> Evaluate:
        """An evaluation that tells the minutes after its own figures."""
        return lambda model: {**evaluate(model), MINUTES: self.minutes()}


@contextmanager
def training_bar(steps: int) -> Generator[Report]:
    """A progress bar for `fit` in the first process; minutes, which it counts itself, left out."""
    if not is_first_process():
        yield lambda step, metrics: None
        return
    with progress_bar(steps) as show:
        yield lambda step, metrics: show(
            step, {name: value for name, value in metrics.items() if name != MINUTES}
        )


def choose_weights(run: Run, model: nn.Module, evaluate: Evaluate) -> str:
    """Give a model the better of the best weights and the mean of the last; says which.

    Args:
        run: one that `fit` trained into, with evaluations.
        model: gets the weights, and is left in evaluation mode.
        evaluate: its first figure decides, lower being better.
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
    """Return what a training logged with a metric; raise if there is nothing.

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
    """Updates, minutes, median tokens a second and parameters of a training."""
    rows = logged_rows(run)
    speeds = sorted(row["tokens_per_second"] for row in rows if "tokens_per_second" in row)
    return {
        "updates": max(int(row["step"]) for row in rows),
        "minutes": max(row.get(MINUTES, 0.0) for row in rows),
        "tokens_per_second": speeds[len(speeds) // 2] if speeds else 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
