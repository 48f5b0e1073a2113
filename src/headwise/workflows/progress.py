"""Progress bars."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Counted = Callable[[int, int], None]  # (done, in all)


@contextmanager
def counting(label: str) -> Generator[Counted]:
    """Show a progress bar; call what it yields with (done, in all)."""
    # brackets and braces of a label are text
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(label, total=None)

        def count(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield count
