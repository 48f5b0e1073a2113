"""Prune the heads of a model for a task, cut them out, and say what that was good for.

    headwise prune MODEL --data TRAIN --dev DEV --keep 12 --out small/
    headwise prune MODEL --data TRAIN --dev DEV --penalty 0.05 --out small/

`small/` is then the smaller model, which `headwise inspect small/` opens. A Hugging Face model is
read by `headwise.pruning.load`; a run of ours is still a run. Beside it `small-pruning/` is the run
of the pruning: metrics, checkpoints, the sentences of the dev set and a report. Started again after
an interruption, the same command goes on, if model and data are what they were.
"""

import errno
import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from headwise.pruning.comparing import Speed, speed
from headwise.pruning.folders import recover
from headwise.pruning.recipe import check_whole
from headwise.pruning.record import record_of
from headwise.pruning.workloads import count_parameters
from headwise.recording import HeadTable, Run
from headwise.recording.files import writing_alone
from headwise.reporting import write_report
from headwise.sites import find_sites
from headwise.workflows.inspect.hugging_face import HuggingFaceSubject
from headwise.workflows.inspect.opening import chosen_device, kind_of, open_subject
from headwise.workflows.progress import counting
from headwise.workflows.prune.choosing_heads import Chosen, check_choice, choose_and_train
from headwise.workflows.prune.config import PruneConfig
from headwise.workflows.prune.hugging_face_tasks import hugging_face_task
from headwise.workflows.prune.inputs import check_inputs
from headwise.workflows.prune.looking import Functions, functions_of
from headwise.workflows.prune.places import check_elsewhere, check_replaceable
from headwise.workflows.prune.task import Task
from headwise_papers.recipes.classifier_task import classifier_task
from headwise_papers.recipes.encoder_subject import classifier_subject
from headwise_papers.recipes.translator import Translator
from headwise_papers.recipes.translator_task import translator_task
from headwise_papers.recipes.tuning.classifier import Classifier

__all__ = ["PruneConfig", "dev_text", "prune_folder", "run_folder"]

DEV = "dev.txt"  # of a run: the sentences of the dev set, a line each
FIGURES = "figures.json"  # of a run whose pruning is finished
FULL = (errno.ENOSPC, errno.EDQUOT)
HALF = (torch.float16, torch.bfloat16)
TRANSLATORS = ("translation", "demo")
SPEED = "trace/speed.json"


def prune_folder(
    config: PruneConfig, out: Path | str, *, before: Mapping[str, float] | None = None
) -> Run:
    """Prune the model in a folder on text files; the smaller model is in `out`.

    A pruning that was stopped goes on where it was, unless its model or data have changed; one that
    is finished is not done again.

    Args:
        config: the settings.
        out: folder of the smaller model; its run stands beside it, see `run_folder`.
        before: what is known of the unpruned model from the `before.json` of another pruning with
            the same dev set; None measures it.

    Returns:
        The run, with figures before and after, `trace/speed.json`, and a report.
    """
    out, place = Path(out), run_folder(Path(out))
    _check_alone()
    check_elsewhere(Path(config.model), out)
    recover(out)
    task = None if (place / FIGURES).exists() else _checked_task(config, out)
    with (
        _naming_what_is_full(place),
        writing_alone(place),
        Run.create(place, config, "pruning") as run,
    ):
        to_time = bool(config.speed_seconds) and not run.has(SPEED)
        if to_time or not run.has(FIGURES):
            check_inputs(config, run)
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


@contextmanager
def _naming_what_is_full(folder: Path) -> Generator[None]:
    """Say which folder found no room, as errors of a full disk do not."""
    try:
        yield
    except (SafetensorError, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno not in FULL:
            raise
        reason = getattr(problem, "strerror", None) or problem
        raise OSError(
            f"{folder} could not be written ({reason}); with more room the same command goes on."
        ) from problem


def run_folder(out: Path) -> Path:
    """Where the run of a pruning is: beside the model that it makes."""
    return out.absolute().with_name(f"{out.absolute().name}-pruning")


def dev_text(out: Path) -> Path | None:
    """The sentences that the model in a folder was measured with when it was pruned, if known."""
    path = run_folder(out) / DEV
    return path if path.is_file() else None


def open_task(config: PruneConfig, model: Path) -> Task:
    """What the model in a folder is pruned for, with the data of the settings."""
    kind = _kind_name(model)
    if kind in TRANSLATORS:
        return translator_task(config, Translator.load(Run.open(model)))
    check_whole(model)
    classifier = Classifier.load(Run.open(model)) if kind == "classifier" else None
    subject = classifier_subject(classifier) if classifier else open_subject(model, device="cpu")
    if not isinstance(subject, HuggingFaceSubject):
        raise ValueError(
            f"{model} attends with something else than softmax, so that Hugging Face has no model "
            "like it to prune. From Python, headwise.masked(model, heads) switches heads off."
        )
    if classifier is not None:
        return classifier_task(config, classifier, subject)
    return hugging_face_task(config, subject)


def _kind_name(model: Path) -> str | None:
    kind = kind_of(model)
    return None if kind is None else kind.name


def _checked_task(config: PruneConfig, out: Path) -> Task:
    """The task, when everything fits: what is refused here leaves no folder behind."""
    # a translator stays a run when it is pruned
    check_replaceable(out, as_run=_kind_name(Path(config.model)) in TRANSLATORS)
    task = open_task(config, Path(config.model))
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
    functions = functions_of(config, task, run)
    heads = sum(site.num_heads for site in find_sites(task.model))
    with _in_float32(task.model):
        chosen = choose_and_train(config, task, run)
    task.model.eval()
    task.save(out)
    # what was saved is measured, not what is in memory
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
    """Train weights that are kept in half precision, which would round small updates away."""
    halves = [(name, x, x.dtype) for name, x in _tensors(model) if x.dtype in HALF]
    for _, x, _ in halves:
        x.data = x.data.float()
    try:
        yield
    finally:
        # what was cut is another tensor of the same name, and T5's table may have another name
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
    """The speed table as JSON; where timing fails, a note, as the pruning itself is done."""
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
    """What is known of each head, in the numbers the model had before: kept or not, and why."""
    kept = [float(head.index in chosen.keep[head.site]) for head in chosen.table.heads]
    table = chosen.table.with_column("kept", kept)
    rows = dict(iter(functions.table))
    for name in functions.table.columns:
        if name not in table.columns and not name.endswith(("_low", "_high")):
            values = [rows[head][name] if head in rows else None for head in table.heads]
            table = table.with_column(name, values)
    return table


def _about(task: Task, chosen: Chosen, functions: Functions) -> dict[str, Any]:
    """What the report tells of a pruning, beside figures."""
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


def _check_alone() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "`prune` runs in one process; for several use headwise.pruning.Gates in your training."
        )
