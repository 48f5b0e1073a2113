"""What the commands share: options, how figures are shown, what Ctrl-C does."""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Exit, Option

console = Console(width=None if sys.stdout.isatty() else 200)

Settings = Annotated[
    list[str], Option("--set", help="NAME=VALUE, any setting of the journey; may be repeated")
]
Continued = Annotated[Path, Option(help="folder of the run; one that is there is continued")]
CONTINUES = "the same command continues where this one stopped."


def given(options: Mapping[str, str | Path | float | int | None]) -> list[str]:
    """The options that were given, as settings."""
    return [f"{name}={value}" for name, value in options.items() if value is not None]


def show_figures(figures: Mapping[str, object], folder: Path) -> None:
    """A training's figures and where the run is; of several processes the first one shows them."""
    from headwise.journeys.training_run import is_first_process

    if not is_first_process():
        return
    table = Table("figure", "value", box=None, header_style="bold", pad_edge=False)
    for name, value in figures.items():
        shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), shown)
    console.print(table)
    console.print(f"Run: {folder}")


@contextmanager
def interruptible(hint: str) -> Generator[None]:
    """Ctrl-C ends with one sentence and the exit code that shells expect."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"headwise: interrupted; {hint}", file=sys.stderr)
        raise Exit(130) from None
