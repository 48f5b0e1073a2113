"""The command line: parse, call the library, show, exit."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option, Typer

from headwise.cli_parts import CONTINUES, Continued, Settings, console, given, interruptible, say
from headwise.cli_train import train
from headwise.config import printable

if TYPE_CHECKING:
    from io import BufferedReader

    from headwise.experiments import Estimate, Expected
    from headwise.journeys import InspectConfig
    from headwise.recording import HeadTable

app = Typer(
    help="See, steer, sparsify and prune the attention of your models, head by head.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

FIRST = (
    "original",
    "roles",
    "role",
    "relevance",
    "confidence",
    "loss_rise",
    "offset",
    "offset_share",
)
SHOWN_ROWS = 48  # a longer table is shown by its head and told where the rest is

app.add_typer(train, name="train")


@app.command()
def demo(
    out: Continued = Path("runs/demo"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Train a small translator on the toy language and see what each of its heads does."""
    from headwise.config import override
    from headwise.journeys import DemoConfig, demo

    config = override(DemoConfig(), settings)
    with interruptible(CONTINUES):
        table = demo(config, out)
    first = ["role", "confidence", "bleu_drop", "accuracy_drop", "alignment", "coreference"]
    _show(table, [*first, *(name for name in table.columns if name not in first)], out)


@app.command()
def translate(
    run: Annotated[
        Path, Argument(help="folder of a run of `headwise train translation`, or of Marian")
    ],
    beams: Annotated[int, Option(help="hypotheses followed at the same time; 1 is fastest")] = 4,
    length_penalty: Annotated[float, Option(help="more favours longer translations")] = 0.6,
    batch: Annotated[int, Option(help="sentences translated together")] = 64,
) -> None:
    """Translate standard input line by line: headwise translate RUN < text."""
    from headwise.journeys import open_translator, translate_stream

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
        print(f"headwise: lines cut to {translator.room} pieces: {cut}", file=sys.stderr)


Inspected = Annotated[Path, Argument(help="folder of a headwise run or a Hugging Face model")]
Data = Annotated[
    Path | None,
    Option(
        help="text, a sentence or paragraph a line; or a treebank, .conllu; of a model that "
        "`prune` made, its dev sentences unless given"
    ),
]
InspectOut = Annotated[
    Path | None,
    Option(
        help="folder of the result, continued if it is there; or NAME.html, a report beside its "
        "folder NAME; runs/inspect-MODEL-DATA unless given"
    ),
]
Steps = Annotated[str | None, Option(help="predictions a sentence that LRP starts from: all or N")]
Relevance = Annotated[bool | None, Option(help="propagate relevance from predictions to heads")]
Ablation = Annotated[int | None, Option(help="sentences read with each head off; 0: none")]
Special = Annotated[str | None, Option(help="more tokens that are no words, parted by commas")]
Relations = Annotated[str | None, Option(help="of a treebank, e.g. nsubj,obj; or all")]
Ranks = Annotated[Path | None, Option(help="word counts; those of the data unless given")]
Parser = Annotated[str | None, Option(help="of plain text: spacy:PIPELINE or stanza:LANGUAGE")]
Alignments = Annotated[
    Path | None, Option(help="links a line, 0-0 1-2, of words of --data and --references")
]
References = Annotated[Path | None, Option(help="translations of the lines of --data, for these")]
Coreference = Annotated[str | None, Option(help="also find antecedents in gap, winobias …")]


@app.command()
def inspect(
    model: Inspected,
    data: Data = None,
    out: InspectOut = None,
    sort: Annotated[str | None, Option(help="column to sort the printed table by")] = None,
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
    batch_size: Annotated[int | None, Option(help="sentences read together")] = None,
    device: Annotated[str | None, Option(help="auto, cpu, cuda, cuda:1 …")] = None,
    settings: Settings = [],  # noqa: B006
) -> None:
    """Print what each head of a model does and how much it matters, and write a report."""
    from headwise.config import override
    from headwise.journeys import InspectConfig, inspect_folder

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
    config = override(InspectConfig(str(model), str(data)), [*given(options), *settings])
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
    _show(table, [*FIRST, *(name for name in table.columns if name not in FIRST)], folder, page)
    if sort and sort not in table.columns:
        say(f"Not sorted: this model and these data give no {sort}.")
    _tell_of_gaps(folder)


def _write_page(page: Path, folder: Path) -> None:
    """Write the report of a run to a page of its own, which takes the place of a symbolic link."""
    from headwise.recording import files

    files.write_text(page, (folder / "report.html").read_text(encoding="utf-8"))


def _dev_text(model: Path) -> Path:
    """What there is to read where no data are given: the dev sentences of a pruned model."""
    from headwise.journeys.prune import dev_text

    if (path := dev_text(model)) is None:
        raise ValueError(
            f"Say what {model} is to read: --data FILE, text with a sentence a line or a treebank. "
            "Only a model that `prune` made, with its run beside it, has text of its own."
        )
    say(f"Reading {path}, what {model} was measured with; --data takes another file.")
    return path


def _check_column(name: str, config: "InspectConfig") -> None:
    """A misspelt column is said at once, and not after reading a corpus."""
    from headwise.config import suggestion
    from headwise.journeys.inspect import columns_of

    if (known := columns_of(config)) and name not in known:
        raise ValueError(f"--sort takes a column, but {name!r} is none. {suggestion(name, known)}")


def _tell_of_gaps(folder: Path) -> None:
    """Say what was cut and what could not be measured."""
    from headwise.journeys.inspect import read_about
    from headwise.recording import Run

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
        help="folder of a Hugging Face model, of one that was pruned, or of a run of `headwise "
        "train translation`, `train mlm`, `train classifier` (of one seed) or `demo`"
    ),
]
FILES = "text, a sentence a line; label TAB text [TAB text]; or two files, or TABs, to translate"
Choose = Annotated[str | None, Option(help="gates, greedy, random, or an inspected column")]
Inspection = Annotated[Path | None, Option(help="folder of `headwise inspect` of the model")]
Task = Annotated[str | None, Option(help="classification, masked, causal or translation")]


@app.command()
def prune(
    model: Pruned,
    data: Annotated[list[Path], Option(help=FILES)],
    dev: Annotated[list[Path], Option(help="the same, to measure quality on")],
    out: Annotated[Path, Option(help="folder of the smaller model; OUT-pruning is its run")],
    keep: Annotated[int | None, Option(help="how many heads; or give --penalty")] = None,
    penalty: Annotated[float | None, Option(help="in the loss, of each open head")] = None,
    choose: Choose = None,
    inspection: Inspection = None,
    where: Annotated[str | None, Option(help="sites to prune, e.g. encoder.*")] = None,
    freeze: Annotated[str | None, Option(help="decoder: train the encoder only")] = None,
    task: Task = None,
    steps: Annotated[int | None, Option(help="updates of training while heads go")] = None,
    learning_rate: Annotated[float | None, Option(help="of the weights")] = None,
    gate_learning_rate: Annotated[float | None, Option(help="of the gates")] = None,
    batch_size: Annotated[int | None, Option(help="sentences in a batch")] = None,
    seed: Annotated[int | None, Option(help="of gates, batches and random choices")] = None,
    settings: Settings = [],  # noqa: B006
) -> None:
    """Remove heads for good: choose and cut them, and say what it cost and what it gained."""
    from headwise.config import override
    from headwise.journeys import PruneConfig, prune_folder
    from headwise.journeys.pruning.summary import summary

    options = [
        *given({"choose": choose, "inspection": inspection, "where": where, "freeze": freeze}),
        *given({"task": task, "steps": steps, "learning_rate": learning_rate, "seed": seed}),
        *given({"gate_learning_rate": gate_learning_rate, "batch_size": batch_size}),
    ]
    first, second = (tuple(map(str, paths)) for paths in (data, dev))
    config = PruneConfig(model=str(model), data=first, dev=second, keep=keep, penalty=penalty)
    config = override(config, [*options, *settings])
    with interruptible(CONTINUES):
        run = prune_folder(config, out)
    for part in summary(run, out):
        console.print(part, soft_wrap=isinstance(part, str))


@app.command()
def reproduce(
    name: Annotated[
        str | None, Argument(help="an experiment, e.g. sen/synthetic; see --list")
    ] = None,
    smoke: Annotated[
        bool, Option(help="tiny settings, seconds; verdicts are not enforced")
    ] = False,
    save: Annotated[
        bool,
        Option(help="keep the figures in results/ and the pictures in docs/ of this folder"),
    ] = False,
    part: Annotated[
        str, Option(help="with --save: keep them beside those of other texts or sizes, so named")
    ] = "",
    every: Annotated[bool, Option("--list", help="name the experiments and what they ask")] = False,
    out: Annotated[Path, Option(help="folder that holds run folders")] = Path("runs"),
    settings: Settings = [],  # noqa: B006
) -> None:
    """Run one of the papers' experiments and put its figures beside the paper's."""
    if every or name is None:
        _list_experiments()
        return
    from headwise.config import override
    from headwise.experiments import load_experiment
    from headwise.experiments.results import kept_parts
    from headwise.experiments.running import changes_since, reproduce

    if part and not save:
        raise ValueError("--part names what is kept, so it goes with --save.")
    if smoke and save:
        raise ValueError("Figures of --smoke say nothing, so they are not kept; leave out --save.")
    experiment = load_experiment(name)
    config = override(experiment.smoke if smoke else experiment.config, settings)
    folder = out / (f"{name}-smoke" if smoke else name)
    recorded = {} if smoke else kept_parts(name)
    with interruptible("the same command starts it again."):
        figures = reproduce(name, config, folder, save=save, part=part)
    console.print(_verdicts(experiment.expected, figures))
    say(f"Run: {folder}")
    if changed := changes_since(recorded, figures, part=part):
        say(f"Not as recorded in results/: {', '.join(changed)}.")
        raise Exit(1)


@app.command()
def data(
    name: Annotated[
        str | None, Argument(help="a set to download; without it all are listed")
    ] = None,
    folder: Annotated[
        Path | None, Option(help="the data folder; the one HEADWISE_DATA names unless given")
    ] = None,
) -> None:
    """List the public data sets and which are at hand, or download one."""
    from headwise.data.source import VARIABLE
    from headwise.journeys.data import fetch_set

    named = os.environ.get(VARIABLE)
    chosen = folder or (Path(named) if named else None)
    if name is None:
        _list_data(chosen)
        return
    if chosen is None:
        raise ValueError(f"Say where to put {name}: give --folder, or set {VARIABLE}.")
    with interruptible("nothing was left half-written."):
        paths = fetch_set(name, chosen)
    for path in paths:
        say(str(path))


# what follows `bench` is read by the benchmarks themselves, --help included
@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def bench(
    arguments: Annotated[
        list[str], Argument(help="ops or guided-step, and options; --help lists them")
    ] = [],  # noqa: B006
) -> None:
    """Measure speed against peers, in a checkout: headwise bench ops, headwise bench --help."""
    from headwise.journeys.bench import bench

    with interruptible("what was measured so far is in the folder of results."):
        bench(arguments)


def _list_data(folder: Path | None) -> None:
    from headwise.journeys.data import data_sets

    table = Table("set", "where", "MB", "note", box=None, header_style="bold", pad_edge=False)
    for state in data_sets(folder):
        size = f"{state.size / 1e6:.1f}" if state.where else ""
        table.add_row(state.name, str(state.where or "missing"), size, state.note)
    console.print(table)


def _list_experiments() -> None:
    from headwise.experiments.shelf import experiment_names, summary_of

    for name in experiment_names():
        console.print(Text.assemble((name, "bold"), f"  {summary_of(name)}"))


def _verdicts(expected: "tuple[Expected, ...]", figures: "dict[str, Estimate]") -> Table:
    from headwise.experiments.pages import HEADER, verdict_rows

    table = Table(*HEADER, box=None, header_style="bold", pad_edge=False)
    for row in verdict_rows(expected, figures):
        table.add_row(*row)
    return table


def _show(table: "HeadTable", names: list[str], folder: Path, report: Path | None = None) -> None:
    """Print the columns that fit the terminal, and say where the rest is."""
    from headwise.recording import HeadTable
    from headwise.recording.head_cells import fitting, printed_names

    heads = table.heads[:SHOWN_ROWS]
    columns = {name: values[:SHOWN_ROWS] for name, values in table.columns.items()}
    shown = fitting(columns, names, width=console.width - max(len(str(head)) for head in heads))
    console.print(HeadTable(heads, {name: columns[name] for name in shown}))
    if len(heads) < len(table):
        say(f"… and {len(table) - len(heads)} more heads.")
    measures = len(printed_names(columns))
    say(f"All {len(table)} heads, {measures} measures: {folder / 'heads.json'}")
    say(f"Report: {report or folder / 'report.html'}")


def main() -> None:
    """Run a command; bad input is one sentence and exit code 2."""
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
    """Refuse names of files that are no text, which no file of a run could hold."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise ValueError(f"An argument is text in UTF-8, but {argument!r} is not; rename it.")


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch has an error for devices alone; on a CPU it says so in words."""
    said = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in said)


if __name__ == "__main__":
    main()
