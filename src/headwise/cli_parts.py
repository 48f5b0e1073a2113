"""Parts of commands: the console, shared options, and interruption by Ctrl-C."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text
from typer import Exit, Option

from headwise.config import printable

# a process may be started without them, as by `headwise data >&-`
sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115


class _PlainConsole(Console):
    """A console that takes text as it is: no markup, no emoji codes, no control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Make text of a string, also of one in the cell of a table."""
        return super().render_str(printable(text), **options)


console = _PlainConsole(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False)

Settings = Annotated[
    list[str], Option("--set", help="NAME=VALUE, any setting, e.g. fit.steps=200; may be repeated.")
]
Continued = Annotated[Path, Option(help="Run folder; an unfinished run is resumed.")]
CONTINUES = "the same command resumes where this one stopped."


def say(text: str) -> None:
    """Print a sentence or a path on one line, which only the terminal breaks."""
    console.print(text, soft_wrap=True)


@contextmanager
def interruptible(hint: str) -> Generator[None]:
    """End on Ctrl-C with one sentence and the exit code that shells expect."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"headwise: interrupted; {hint}", file=sys.stderr)
        raise Exit(130) from None
