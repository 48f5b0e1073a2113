"""A progress bar for training, and a clock for work whose end is not known."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

Report = Callable[[int, Mapping[str, float]], None]  # (steps done, what was just logged)

_HIDDEN = ("gradient_norm", "learning_rate", "tokens_per_second")


@contextmanager
def progress_bar(steps: int, *, label: str = "training") -> Generator[Report]:
    """A bar with loss, evaluation, speed and the time left; for `fit(progress=...)`.

    Args:
        steps: how many make the whole bar.
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
        latest: dict[str, float] = {}  # an evaluation stays in sight until the next one

        def report(step: int, metrics: Mapping[str, float]) -> None:
            latest.update(metrics)
            bar.update(task, completed=step, shown=_shown(latest))

        yield report


@contextmanager
def clock(label: str) -> Generator[None]:
    """What is being done, and for how long already."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns) as shown:
        shown.add_task(label, total=None)
        yield


def _shown(metrics: Mapping[str, float]) -> str:
    parts = [f"{name} {value:.3f}" for name, value in metrics.items() if name not in _HIDDEN]
    if metrics.get("tokens_per_second"):
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    return "  ".join(parts)
