"""The papers' commands: demo, train, translate, reproduce, data."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option, Typer

from headwise.cli import show_table
from headwise.cli_parts import CONTINUES, Continued, Settings, console, interruptible, say
from headwise_papers.cli_train import train

if TYPE_CHECKING:
    from io import BufferedReader


def add_commands(app: Typer) -> None:
    """Add the papers' commands to the command line of Headwise."""
    for command in (demo, translate, reproduce, data):
        app.command()(command)
    app.add_typer(train, name="train")


def demo(
    out: Continued = Path("runs/demo"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a small translator on the toy language and inspect each of its heads."""
    from headwise.config import override
    from headwise_papers.recipes.demo import DemoConfig, demo

    config = override(DemoConfig(), settings)
    with interruptible(CONTINUES):
        table = demo(config, out)
    first = ["role", "confidence", "bleu_drop", "accuracy_drop", "alignment", "coreference"]
    show_table(table, [*first, *(name for name in table.columns if name not in first)], out)


def translate(
    run: Annotated[
        Path, Argument(help="Folder of a run of `headwise train translation`, or of Marian.")
    ],
    beams: Annotated[int, Option(help="Beam size; 1 is fastest.")] = 4,
    length_penalty: Annotated[float, Option(help="More favours longer translations.")] = 0.6,
    batch: Annotated[int, Option(help="Sentences translated together.")] = 64,
) -> None:
    """Translate standard input line by line: headwise translate RUN < text."""
    from headwise_papers.recipes.translator import open_translator, translate_stream

    translator = open_translator(run)
    if sys.stdin.isatty():
        print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    with interruptible("what was translated is printed."):
        cut = translate_stream(
            translator,
            cast("BufferedReader", sys.stdin.buffer),
            write,
            beams=beams,
            length_penalty=length_penalty,
            batch=batch,
        )
    if cut:
        print(f"headwise: lines cut to {translator.max_tokens} tokens: {cut}", file=sys.stderr)


def reproduce(
    name: Annotated[
        str | None, Argument(help="Experiment, e.g. training_dynamics/synthetic; see --list.")
    ] = None,
    smoke: Annotated[
        bool, Option(help="Tiny settings that take seconds; no verdicts are given.")
    ] = False,
    save: Annotated[bool, Option(help="Keep the results and figures in papers/.")] = False,
    part: Annotated[
        str, Option(help="With --save: name of the part that this run is, e.g. 8-layers.")
    ] = "",
    jobs: Annotated[int, Option(help="Models trained in parallel.")] = 1,
    every: Annotated[bool, Option("--list", help="List the experiments and their questions.")] = (
        False
    ),
    out: Annotated[Path, Option(help="Folder of run folders and of trained models.")] = Path(
        "runs"
    ),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Run one of the papers' experiments and compare its results with the paper's."""
    if every or name is None:
        _list_experiments()
        return
    from headwise.config import override
    from headwise_papers.core.runner import load_experiment

    if part and not save:
        raise ValueError("--part names what is kept, so it goes with --save.")
    if smoke and save:
        raise ValueError("Results of --smoke say nothing, so they are not kept; leave out --save.")
    experiment = load_experiment(name)
    config = override(experiment.smoke if smoke else experiment.config, settings)
    folder = out / (f"{name}-smoke" if smoke else name)
    with interruptible(CONTINUES):
        changed = _run(
            experiment, name, config, folder, smoke=smoke, save=save, part=part, jobs=jobs
        )
    say(f"Run: {folder}")
    if changed:
        say(f"Not as recorded in papers/: {', '.join(changed)}.")
        raise Exit(1)


def _run(
    experiment: Any,
    name: str,
    config: Any,
    folder: Path,
    *,
    smoke: bool,
    save: bool,
    part: str,
    jobs: int,
) -> list[str]:
    """Run an experiment, print its table, and name the results that changed since the record."""
    from headwise_papers.core import using_cache
    from headwise_papers.core.page import result_table
    from headwise_papers.core.record import changes_since, recorded
    from headwise_papers.core.runner import reproduce

    records = {} if smoke else recorded(name)
    with using_cache(folder.parents[len(Path(name).parts) - 1] / "models"):
        results = reproduce(name, config, folder, jobs=jobs, save=save, part=part)
    header, *rows = result_table(experiment, results, smoke=smoke)
    _print_table(header, rows)
    return changes_since(records, results, part=part)


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def data(
    name: Annotated[
        str | None, Argument(help="Data set to download; without it all are listed.")
    ] = None,
    folder: Annotated[
        Path | None, Option(help="Data folder; by default the one that HEADWISE_DATA names.")
    ] = None,
) -> None:
    """List the public data sets and where they are, or download one."""
    from headwise_papers.data.source import VARIABLE
    from headwise_papers.recipes.data import fetch_set

    named = os.environ.get(VARIABLE)
    chosen = folder or (Path(named) if named else None)
    if name is None:
        _list_data(chosen)
        return
    with interruptible("nothing was left half-written."):
        paths = fetch_set(name, chosen)
    for path in paths:
        say(str(path))


def _list_data(folder: Path | None) -> None:
    from headwise_papers.recipes.data import data_sets

    table = Table("set", "where", "MB", "note", box=None, header_style="bold", pad_edge=False)
    for state in data_sets(folder):
        size = f"{state.size / 1e6:.1f}" if state.where else ""
        table.add_row(state.name, str(state.where or "missing"), size, state.note)
    console.print(table)


def _list_experiments() -> None:
    from headwise_papers.core.runner import experiment_names, summary_of

    for name in experiment_names():
        console.print(Text.assemble((name, "bold"), f"  {summary_of(name)}"))
