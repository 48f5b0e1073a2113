"""Prune the heads of a model for a task, cut them out, and report costs and gains.

    headwise prune MODEL --data TRAIN --dev DEV --keep 12 --out small/
    headwise prune MODEL --data TRAIN --dev DEV --penalty 0.05 --out small/

`small/` is then the smaller model, which `headwise inspect small/` opens. A Hugging Face model is
read by `headwise.pruning.load`; a run of a translator is still a run. `small-pruning/` is the run
of the pruning: metrics, checkpoints, the sentences of the dev set and a report. After an
interruption the same command resumes, if model and data have not changed.
"""

import errno
import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from safetensors import SafetensorError
from torch import Tensor, nn

from headwise.json_files import check_shape
from headwise.pruning.record import RECIPE, check_whole, record_of
from headwise.pruning.saving import check_replaceable
from headwise.pruning.timing import Speed, count_parameters, speed, speed_table
from headwise.recording import HeadTable, Run
from headwise.recording.checksums import digest
from headwise.recording.files import recover, writing_alone
from headwise.recording.run import TABLE
from headwise.reporting import SPEED_SHAPE, write_report
from headwise.sites import find_sites
from headwise.workflows.inspect import InspectConfig
from headwise.workflows.inspect.corpus import corpus_of
from headwise.workflows.inspect.examining import Examination
from headwise.workflows.inspect.opening import chosen_device, kind_of, open_subject
from headwise.workflows.progress import counting
from headwise.workflows.prune.choosing_heads import (
    Chosen,
    check_choice,
    choose_and_train,
    inspected,
)
from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.task import Task, hugging_face_task

# files of a run
DEV = "dev.txt"  # the sentences of the dev set, one per line
FIGURES = "figures.json"  # written when the pruning is finished
INPUTS = "inputs.json"  # {path of a file: its SHA-256}
FUNCTIONS = "functions.json"  # what the heads did before pruning
SPEED = "trace/speed.json"
# files that decide how a model computes and reads, in a Hugging Face folder or a run
OF_MODEL = (
    *("config.json", "model*.json", "model*.safetensors", "pruning*.json", "classifier.json"),
    *("tokenizer*", "*vocab*", "*.model", "hugging-face/*"),
)
FULL = (errno.ENOSPC, errno.EDQUOT)
HALF = (torch.float16, torch.bfloat16)
UNKNOWN = (
    "What the heads do was not inspected; --set inspect_lines=200 or --inspection FOLDER, given "
    "from the start, tells."
)


@dataclass(frozen=True, eq=False)
class Functions:
    """The functions of the heads of the unpruned model."""

    table: HeadTable
    note: str  # a sentence: the source, or why nothing is known


def prune_folder(
    config: PruneConfig, out: Path | str, *, before: Mapping[str, float] | None = None
) -> Run:
    """Prune the model in a folder on text files, and write the smaller model into `out`.

    An interrupted pruning resumes, unless its model or data have changed. A finished one is not
    repeated.

    Args:
        config: the settings.
        out: folder of the smaller model; its run is next to it, see `run_folder`.
        before: metrics of the unpruned model, from the `before.json` of another pruning with the
            same dev set; None measures them.

    Returns:
        The run, with metrics before and after, `trace/speed.json`, and a report.
    """
    out, place = Path(out), run_folder(Path(out))
    _check_single_process()
    _check_elsewhere(Path(config.model), out)
    recover(out)
    task = None if (place / FIGURES).exists() else _checked_task(config, out)
    with (
        _naming_full_disk(place),
        writing_alone(place),
        Run.create(place, config, "pruning") as run,
    ):
        to_time = bool(config.speed_seconds) and not run.has(SPEED)
        if to_time or not run.has(FIGURES):
            _check_inputs(config, run)
        if task is not None and not run.has(FIGURES):  # else another process has finished it
            _prune(config, task, out, run, before)
        elif not out.exists():
            raise ValueError(
                f"The pruning in {run.folder} is finished, but {out} is gone; choose another "
                "folder to prune again."
            )
        if to_time:
            run.write_json(SPEED, _timed(config, out))
        write_report(run)
    return run


def run_folder(out: Path) -> Path:
    """Return the folder of a pruning's run, next to the model that it makes."""
    return out.absolute().with_name(f"{out.absolute().name}-pruning")


def dev_text(out: Path) -> Path | None:
    """Return the dev sentences with which a pruned model was measured, if there are any."""
    path = run_folder(out) / DEV
    return path if path.is_file() else None


def open_task(config: PruneConfig, folder: Path) -> Task:
    """Return what the model in a folder is pruned for, with the data of the settings."""
    if (kind := kind_of(folder)) is None:
        check_whole(folder)
        return hugging_face_task(config, open_subject(folder, device="cpu"))
    if kind.task is None:
        raise ValueError(f"{folder} is of kind {kind.name!r}, which cannot be pruned.")
    return kind.task(folder, config)


def _checked_task(config: PruneConfig, out: Path) -> Task:
    """Return the task; raise if anything does not fit, before a folder is made."""
    check_replaceable(out)
    task = open_task(config, Path(config.model))
    check_replaceable(out, as_run=task.as_run)
    check_choice(config, task)
    return task


def _prune(
    config: PruneConfig, task: Task, out: Path, run: Run, known: Mapping[str, float] | None
) -> None:
    started = time.perf_counter()
    task.model.to(chosen_device("auto"))
    parameters = count_parameters(task.model)
    if not run.has("before.json"):
        run.write_json("before.json", known or _measured(config, task, task.model))
    before: dict[str, float] = run.read_json("before.json", {task.quality: float, ...: float})
    run.write_text(DEV, "".join(f"{text}\n" for text in task.texts))
    functions = _functions(config, task, run)
    heads = sum(site.num_heads for site in find_sites(task.model))
    with _in_float32(task.model):
        chosen = choose_and_train(config, task, run)
    task.model.eval()
    task.save(out)
    # the saved model is measured, not the one in memory
    small = task.load(out)
    after = _measured(config, task, small)
    run.save_heads(_table(chosen, functions))
    about = _about(task, chosen, functions)
    run.write_json("trace/pruning.json", {**about, "before": before, "after": after})
    figures: dict[str, Any] = {
        "heads_before": heads,
        "heads_kept": _heads_left(small),
        **{f"{name}_before": value for name, value in before.items()},
        **{f"{name}_after": value for name, value in after.items()},
        "parameters_before": parameters,
        "parameters_after": count_parameters(small),
        "chosen_by": chosen.note,
        "seconds": time.perf_counter() - started,
    }
    run.save_figures(figures)


@contextmanager
def _in_float32(model: nn.Module) -> Generator[None]:
    """Convert half-precision weights to float32 for training, as small updates would be lost."""
    halves = [(name, x, x.dtype) for name, x in _tensors(model) if x.dtype in HALF]
    for _, x, _ in halves:
        x.data = x.data.float()
    try:
        yield
    finally:
        # cut tensors are new ones with the same name, and T5's table may have a new name
        named = {name: dtype for name, _, dtype in halves}
        same = {id(x): dtype for _, x, dtype in halves}
        for name, x in _tensors(model):
            x.data = x.data.to(named.get(name, same.get(id(x), x.dtype)))


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _measured(config: PruneConfig, task: Task, model: nn.Module) -> dict[str, float]:
    return task.measure(model.to(chosen_device("auto")), size=config.batch_size)


def _timed(config: PruneConfig, out: Path) -> dict[str, Any]:
    """Return the speed table as JSON, or a note if timing fails: the pruning itself is done."""
    task = open_task(config, Path(config.model))
    small = task.load(out)
    try:
        return _speed(config, task.model, small).to_json()
    except (ValueError, RuntimeError, LookupError, TypeError) as problem:
        return {
            "device": str(chosen_device("auto")),
            "parameters": [count_parameters(task.model), count_parameters(small)],
            "quality": None,
            "workloads": [],
            "verdicts": [f"Speed could not be measured: {problem}"],
        }


def _speed(config: PruneConfig, before: nn.Module, small: nn.Module) -> Speed:
    device = chosen_device("auto")
    with counting("timing") as count:
        return speed(
            before.to(device),
            small.to(device),
            batches=config.speed_batches,
            lengths=config.speed_lengths,
            backends=config.speed_backends,
            seconds=config.speed_seconds,
            progress=count,
        )


def _table(chosen: Chosen, functions: Functions) -> HeadTable:
    """Return one row per head of the unpruned model: kept or not, and what is known of it."""
    kept = [float(head.index in chosen.keep[head.site]) for head in chosen.table.heads]
    table = chosen.table.with_column("kept", kept)
    rows = dict(iter(functions.table))
    for name in functions.table.columns:
        if name not in table.columns and not name.endswith(("_low", "_high")):
            values = [rows[head][name] if head in rows else None for head in table.heads]
            table = table.with_column(name, values)
    return table


def _about(task: Task, chosen: Chosen, functions: Functions) -> dict[str, Any]:
    """Return what the report says about a pruning besides metrics."""
    record = record_of(task.model)
    return {
        "kind": task.kind,
        "quality": task.quality,
        "shown": task.watched,
        "chosen_by": chosen.note,
        "functions": functions.note,
        "keep": chosen.keep,
        "record": record.to_json() if record else None,
    }


def _heads_left(model: nn.Module) -> int:
    record = record_of(model)
    assert record is not None, "it was pruned"
    return sum(map(len, record.kept.values()))


def _functions(config: PruneConfig, task: Task, run: Run) -> Functions:
    """Return the functions of heads from an inspection, or from the first lines of the dev set.

    The first call needs the unpruned model; the run keeps the result.
    """
    if config.inspection:
        note = f"Functions are those that the inspection {config.inspection} found."
        return Functions(inspected(config.inspection), note)
    if not config.inspect_lines:
        return Functions(HeadTable((), {}), UNKNOWN)
    if not run.has(FUNCTIONS):
        run.write_json(FUNCTIONS, _inspect(config, task))
    found = run.read_json(FUNCTIONS, {"table": TABLE, "note": str})
    return Functions(HeadTable.from_json(found["table"]), found["note"])


@torch.no_grad()
def _inspect(config: PruneConfig, task: Task) -> dict[str, Any]:
    """Inspect the heads on lines of the dev set; the result is a note if that fails."""
    lines = list(task.texts[: config.inspect_lines])
    # without importance, which takes much longer, and which gates or another choice decide
    settings = InspectConfig(config.model, "", sample=0, samples=0, seed=config.seed)
    task.model.eval()
    try:
        found = Examination(task.subject, corpus_of(lines), settings).examined()
    except (ValueError, RuntimeError) as problem:  # the pruning can do without
        note = f"What the heads do could not be found out: {problem}"
        return {"table": HeadTable((), {}).to_json(), "note": note}
    note = f"Functions are what the heads did before pruning, in {len(lines)} lines of the dev set."
    too_few = found.left_out.get("intervals and roles", "")
    return {"table": found.table.to_json(), "note": f"{note} {too_few}".strip()}


def _check_inputs(config: PruneConfig, run: Run) -> None:
    """Raise if model or data are not those with which the pruning began."""
    now = {str(path): digest(path) if path.is_file() else "" for path in _input_files(config)}
    if not run.has(INPUTS):
        run.write_json(INPUTS, now)
    before = run.read_json(INPUTS, {...: str})
    changed = [path for path in before | now if before.get(path) != now.get(path)]
    if changed:
        raise ValueError(
            f"{changed[0]} has changed since the pruning in {run.folder} began, so that its "
            "metrics would mix two; put it back, or choose another folder."
        )


def _input_files(config: PruneConfig) -> Iterator[Path]:
    yield from (Path(path) for path in (*config.data, *config.dev))
    if config.inspection:
        place = Path(config.inspection)
        yield place if place.name == "heads.json" else place / "heads.json"
    model = Path(config.model)
    # a pruned model's recipe has the checksums of all its files, which opening it checks
    names = (RECIPE,) if (model / RECIPE).is_file() else OF_MODEL
    found = {path for name in names for path in model.glob(name) if path.is_file()}
    yield from sorted(found)


def _check_elsewhere(model: Path, out: Path) -> None:
    """Raise if the smaller model would replace the model that it is made of."""
    if model.resolve().is_relative_to(out.resolve()):
        raise ValueError(
            f"The smaller model would replace {model}, from which it is made; choose another "
            f"folder than {out}."
        )


def _check_single_process() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "`prune` runs in one process; for several use headwise.pruning.Gates in your training."
        )


@contextmanager
def _naming_full_disk(folder: Path) -> Generator[None]:
    """Name the folder in errors of a full disk, which do not."""
    try:
        yield
    except (SafetensorError, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno not in FULL:
            raise
        reason = getattr(problem, "strerror", None) or problem
        raise OSError(
            f"{folder} could not be written ({reason}); free some space, and the same command "
            "resumes."
        ) from problem


def summary(run: Run, out: Path) -> list[Table | str]:
    """Return metrics before and after, the speed table and paths, for Rich to print.

    Args:
        run: of a finished pruning.
        out: the folder of the smaller model.
    """
    figures = run.figures()
    names = [name.removesuffix("_before") for name in figures if name.endswith("_before")]
    afters = {name: "heads_kept" if name == "heads" else f"{name}_after" for name in names}
    numbers = [*afters.values(), *(f"{name}_before" for name in names)]
    shape = {**dict.fromkeys(numbers, float), "chosen_by": str}
    check_shape(figures, shape, name=str(run.path(FIGURES)))
    table = Table("", "before", "after", box=None, header_style="bold", pad_edge=False)
    for name, after in afters.items():
        cells = [f"{value:,.6g}" for value in (figures[f"{name}_before"], figures[after])]
        table.add_row(name.replace("_", " "), *cells)
    parts: list[Table | str] = [table, figures["chosen_by"]]
    if run.has(SPEED):
        parts.append(speed_table(run.read_json(SPEED, SPEED_SHAPE)))
    return [*parts, f"Model: {out}", f"Report: {run.path('report.html')}"]
