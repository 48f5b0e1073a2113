"""Progress bars of trainings, and TensorBoard scalars."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from headwise.recording.run import Run

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
