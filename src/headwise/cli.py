"""The command line: parse, call the library, show, exit."""

import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from headwise.cli_parts import CONTINUES, Settings, console, interruptible, say
from headwise.config import printable

if TYPE_CHECKING:
    from headwise.recording import HeadTable
    from headwise.workflows.inspect import InspectConfig

app = Typer(
    help="See, steer, sparsify and prune the attention of your models, head by head.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

SHOWN_ROWS = 48  # a longer table is shown by its head and told where the rest is


Inspected = Annotated[Path, Argument(help="Folder of a headwise run or of a Hugging Face model.")]
Data = Annotated[
    Path | None,
    Option(
        help="Text with one sentence or paragraph per line, or a treebank (.conllu). For a pruned "
        "model the default is its dev sentences."
    ),
]
InspectOut = Annotated[
    Path | None,
    Option(
        help="Folder of the result, resumed if it exists; or NAME.html, a report beside its folder "
        "NAME. Default: runs/inspect-MODEL-DATA."
    ),
]
Steps = Annotated[
    str | None, Option(help="Predictions per sentence that LRP starts from: all or N.")
]
Relevance = Annotated[
    bool | None, Option(help="Propagate relevance from predictions to heads (LRP).")
]
Ablation = Annotated[int | None, Option(help="Sentences read with each head off; 0 for none.")]
Special = Annotated[str | None, Option(help="More tokens that are no words, separated by commas.")]
Relations = Annotated[str | None, Option(help="Relations of a treebank, e.g. nsubj,obj; or all.")]
Ranks = Annotated[Path | None, Option(help="File of word counts. Default: counts of the data.")]
Parser = Annotated[
    str | None, Option(help="Parser of plain text: spacy:PIPELINE or stanza:LANGUAGE.")
]
Alignments = Annotated[
    Path | None, Option(help="Links such as 0-0 1-2 between words of --data and --references.")
]
References = Annotated[
    Path | None, Option(help="Translations of the lines of --data, for --alignments.")
]
Coreference = Annotated[str | None, Option(help="Coreference set to inspect too: gap, winobias …")]


@app.command()
def inspect(
    model: Inspected,
    data: Data = None,
    out: InspectOut = None,
    sort: Annotated[str | None, Option(help="Column to sort the printed table by.")] = None,
    steps: Steps = None,
    relevance: Relevance = None,
    ablation_lines: Ablation = None,
    special: Special = None,
    relations: Relations = None,
    ranks: Ranks = None,
    coreference: Coreference = None,
    alignments: Alignments = None,
    references: References = None,
    parser: Parser = None,
    batch_size: Annotated[int | None, Option(help="Sentences in a batch.")] = None,
    device: Annotated[str | None, Option(help="Device: auto, cpu, cuda, cuda:1 …")] = None,
    settings: Settings = [],  # noqa: B006
) -> None:
    """Print what each head of a model does and how much it matters, and write a report."""
    from headwise.config import override
    from headwise.recording.columns import printing_order
    from headwise.workflows.inspect import InspectConfig, inspect_folder

    options: dict[str, str | Path | float | None] = {
        "steps": "none" if steps == "all" else steps,
        "relevance": relevance,
        "ablation_lines": ablation_lines,
        "special": special,
        "relations": relations,
        "ranks": ranks,
        "coreference": coreference,
        "alignments": alignments,
        "references": references,
        "parser": parser,
        "batch_size": batch_size,
        "device": device,
    }
    data = data or _dev_text(model)
    said = [f"{name}={value}" for name, value in options.items() if value is not None]
    config = override(InspectConfig(str(model), str(data)), [*said, *settings])
    if sort:
        _check_column(sort, config)
    wanted = out or Path("runs") / f"inspect-{model.resolve().name}-{data.name.split('.')[0]}"
    page = wanted if wanted.suffix == ".html" else None
    folder = wanted.with_suffix("") if page else wanted
    if page and page.is_dir():
        raise ValueError(f"A report is a file, but {page} is a folder; choose another path.")
    with interruptible(CONTINUES):
        table = inspect_folder(config, folder)
    if page:
        _write_page(page, folder)
    table = table.sort(sort) if sort and sort in table.columns else table
    show_table(table, printing_order(table.columns), folder, page)
    if sort and sort not in table.columns:
        say(f"Not sorted: this model and these data give no {sort}.")
    _tell_of_gaps(folder)


def _write_page(page: Path, folder: Path) -> None:
    """Write the report of a run to another file, which replaces a symbolic link."""
    from headwise.recording import files

    files.write_text(page, (folder / "report.html").read_text(encoding="utf-8"))


def _dev_text(model: Path) -> Path:
    """Return the dev sentences of a pruned model, which are read where no data are given."""
    from headwise.workflows.inspect.opening import kind_of
    from headwise.workflows.prune.pruning import dev_text

    kind_of(model)  # refuses a wrong folder
    if (path := dev_text(model)) is None:
        raise ValueError(
            f"Say what {model} is to read: --data FILE, text with a sentence a line or a treebank. "
            "Only a model that `prune` made, with its run beside it, has text of its own."
        )
    say(f"Reading {path}, what {model} was measured with; --data takes another file.")
    return path


def _check_column(name: str, config: "InspectConfig") -> None:
    """Raise for a misspelt column before a corpus is read."""
    from headwise.config import suggestion
    from headwise.workflows.inspect.config import columns_of

    if (known := columns_of(config)) and name not in known:
        raise ValueError(f"--sort takes a column, but {name!r} is none. {suggestion(name, known)}")


def _tell_of_gaps(folder: Path) -> None:
    """Say what was cut and what could not be measured."""
    from headwise.recording import Run
    from headwise.workflows.inspect.inspection import read_about

    about = read_about(Run.open(folder))
    if cut := about["truncated_lines"]:
        lines, limit = about["lines"], about.get("token_limit")
        say(f"{cut} of {lines} lines were cut to {limit} tokens.")
    if cut := about["unfinished_translations"]:
        said = f"{cut} of {about['lines']} translations had not ended at their limit"
        say(f"{said}; --set max_translation=N lets Hugging Face models write more.")
    for what, why in about["left_out"].items():
        say(f"Not measured: {what}. {why}")


Pruned = Annotated[
    Path,
    Argument(
        help="Folder of a Hugging Face model, of a pruned model, or of a run of `headwise "
        "train translation`, `train mlm`, `train classifier` (of one seed) or `demo`"
    ),
]
FILES = "Text, one sentence per line; or label TAB text [TAB text]; or two files to translate."
Choose = Annotated[
    str | None, Option(help="How to choose: gates, greedy, random, or an inspected column.")
]
Inspection = Annotated[Path | None, Option(help="Folder of `headwise inspect` of the model.")]
Task = Annotated[str | None, Option(help="Task: classification, masked, causal or translation.")]


@app.command()
def prune(
    model: Pruned,
    data: Annotated[list[Path], Option(help=FILES)],
    dev: Annotated[list[Path], Option(help="Files like --data, to measure quality on.")],
    out: Annotated[Path, Option(help="Folder of the smaller model; OUT-pruning is its run.")],
    keep: Annotated[int | None, Option(help="Number of heads to keep; or give --penalty.")] = None,
    penalty: Annotated[float | None, Option(help="Penalty of each open head in the loss.")] = None,
    choose: Choose = None,
    inspection: Inspection = None,
    where: Annotated[str | None, Option(help="Sites to prune, e.g. encoder.*")] = None,
    freeze: Annotated[
        str | None, Option(help="Part to freeze; decoder trains the encoder only.")
    ] = None,
    task: Task = None,
    steps: Annotated[int | None, Option(help="Training steps while heads are removed.")] = None,
    learning_rate: Annotated[float | None, Option(help="Learning rate of the weights.")] = None,
    gate_learning_rate: Annotated[float | None, Option(help="Learning rate of the gates.")] = None,
    batch_size: Annotated[int | None, Option(help="Sentences in a batch.")] = None,
    seed: Annotated[int | None, Option(help="Seed of gates, batches and random choices.")] = None,
    settings: Settings = [],  # noqa: B006
) -> None:
    """Remove heads for good: choose and cut them, and say what it cost and what it gained."""
    from headwise.config import override
    from headwise.workflows.prune import PruneConfig, prune_folder, summary

    options = {"choose": choose, "inspection": inspection, "where": where, "freeze": freeze}
    options |= {"task": task, "steps": steps, "learning_rate": learning_rate, "seed": seed}
    options |= {"gate_learning_rate": gate_learning_rate, "batch_size": batch_size}
    first, second = (tuple(map(str, paths)) for paths in (data, dev))
    config = PruneConfig(model=str(model), data=first, dev=second, keep=keep, penalty=penalty)
    config = override(config, settings, options)
    with interruptible(CONTINUES):
        run = prune_folder(config, out)
    for part in summary(run, out):
        console.print(part, soft_wrap=isinstance(part, str))


def show_table(
    table: "HeadTable", names: list[str], folder: Path, report: Path | None = None
) -> None:
    """Print the columns that fit the terminal, and say where the rest is."""
    from headwise.recording import HeadTable
    from headwise.recording.columns import fitting, printed_names

    heads = table.heads[:SHOWN_ROWS]
    columns = {name: values[:SHOWN_ROWS] for name, values in table.columns.items()}
    shown = fitting(columns, names, width=console.width - max(len(str(head)) for head in heads))
    console.print(HeadTable(heads, {name: columns[name] for name in shown}))
    if len(heads) < len(table):
        say(f"… and {len(table) - len(heads)} more heads.")
    measures = len(printed_names(columns))
    say(f"All {len(table)} heads, {measures} measures: {folder / 'heads.json'}")
    say(f"Report: {report or folder / 'report.html'}")


def add_installed_commands() -> bool:
    """Add the commands of installed packages (entry points `headwise.commands`), if there are any.

    An entry point names a function that takes the app and adds commands to it.
    """
    points = entry_points(group="headwise.commands")
    for point in points:
        point.load()(app)
    return bool(points)


def main() -> None:
    """Run a command; bad input is one sentence and exit code 2."""
    add_installed_commands()
    run_app()


def run_app() -> None:
    """Run the command that the arguments name."""
    try:
        _check_text(sys.argv[1:])
        app(standalone_mode=True)
    except (ValueError, OSError) as error:
        # the library speaks of the folder it was given, which here is an option
        choose = r"choose (another|a new or empty) (folder|path)"
        said = re.sub(choose, r"\g<0> (--out)", str(error))
        print("headwise:", *map(printable, said.split()), file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        first = (str(error).strip() or "too much was asked for").splitlines()[0]
        print("headwise: There is not enough memory:", first, file=sys.stderr)
        print("Take a smaller model, batch or text.", file=sys.stderr)
        sys.exit(2)


def _check_text(arguments: list[str]) -> None:
    """Raise for arguments that are not text in UTF-8."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise ValueError(f"An argument is text in UTF-8, but {argument!r} is not; rename it.")


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out; on a CPU PyTorch says so only in the message."""
    said = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in said)


if __name__ == "__main__":
    main()
