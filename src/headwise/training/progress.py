"""A progress bar for training."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

Report = Callable[[int, Mapping[str, float]], None]  # (steps done, what was just logged)


@contextmanager
def progress_bar(steps: int, *, label: str = "training") -> Generator[Report]:
    """A bar with loss, speed and the time left; hand what it yields to `fit(progress=...)`.

    Args:
        steps: how many make the whole bar.
        label: stands before the bar.
    """
    # lazy: headless training does not need rich
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  {task.fields[shown]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(label, total=steps, shown="")

        def report(step: int, metrics: Mapping[str, float]) -> None:
            bar.update(task, completed=step, shown=_shown(metrics))

        yield report


def _shown(metrics: Mapping[str, float]) -> str:
    speed = metrics.get("tokens_per_second")
    return f"loss {metrics['loss']:.3f}" + (f"  {speed:,.0f} tokens/s" if speed else "")
