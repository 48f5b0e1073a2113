"""Choose the heads to keep: gates that are learned in training, or a choice before fine-tuning."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.pruning.choosing import Keep, by_column, greedy, random
from headwise.pruning.cutting import prune
from headwise.pruning.gates import NAME, Gates, decoder_parameters
from headwise.pruning.parts import anatomy
from headwise.pruning.target import Target, penalised
from headwise.recording import HeadTable, Run
from headwise.sites import find_sites
from headwise.training import fit, progress_bar
from headwise.workflows.progress import counting
from headwise.workflows.prune.config import GATES, GREEDY, RANDOM, PruneConfig
from headwise.workflows.prune.task import Task

SHOWN = ("accuracy", "perplexity", "open_heads")  # next to the progress bar
TENTH = 10  # the greedy choice removes a tenth of the heads per round


@dataclass(frozen=True, eq=False)
class Chosen:
    """The heads to keep, and what is known of each head."""

    keep: Keep
    table: HeadTable
    note: str  # a sentence: how they were chosen


def choose_and_train(config: PruneConfig, task: Task, run: Run) -> Chosen:
    """Train the task's model, cut heads out of it, and return which are kept.

    After an interruption it resumes with the same numbers.
    """
    if config.choose == GATES:
        return _with_gates(config, task, run)
    chosen = _chosen_before(config, task, run)
    prune(task.model, chosen.keep)
    if config.freeze == "decoder":
        for parameter in decoder_parameters(task.model):
            parameter.requires_grad_(False)
    if config.steps:
        left = float(sum(map(len, chosen.keep.values())))
        _fit(config, task, run, task.loss, lambda: {"open_heads": left}, {})
    return chosen


def check_choice(config: PruneConfig, task: Task) -> None:
    """Raise what choosing and training would raise, before the work; the model is not changed."""
    model = task.model
    for part in (task.train, task.dev):
        part.epochs(size=config.batch_size, seed=config.seed)
    if config.inspection:
        _check_inspection(config, model)
    if config.choose == GATES:
        _gates(config, model)[0].undo()
        return
    if config.freeze == "decoder":
        decoder_parameters(model)
    if config.by_column:
        _choose(config, task)
    else:  # any choice of so many heads; the greedy one takes long
        group = group_of(config, model)
        random(model, config.keep or 0, seed=0, where=config.where, group=group)


def _check_inspection(config: PruneConfig, model: nn.Module) -> None:
    known = set(inspected(config.inspection).heads)
    heads = [head for site in find_sites(model, where=config.where) for head in site.heads]
    if missing := [str(head) for head in heads if head not in known]:
        raise ValueError(
            f"The inspection {config.inspection} is of another model: it has no {missing[0]}. "
            f"Inspect {config.model} first."
        )


def inspected(path: str) -> HeadTable:
    """Return the head table of an inspection, from its folder or its heads.json."""
    place = Path(path)
    folder = place.parent if place.name == "heads.json" else place
    return Run.open(folder).heads()


def group_of(config: PruneConfig, model: nn.Module) -> int:
    """Return the number of heads that stay or go together."""
    sites = find_sites(model, where=config.where)
    sizes = {anatomy(model, site).heads.each for site in sites}
    if config.group:
        if split := [size for size in sizes if config.group % size]:
            raise ValueError(
                f"group must be a multiple of the {split[0]} heads that share keys and values, "
                f"got {config.group}."
            )
        return config.group
    if len(sizes) > 1:
        raise ValueError(
            f"{sorted(sizes)} heads share keys and values at different sites; choose some sites "
            "with where=, or give group=."
        )
    return sizes.pop()


def _gates(config: PruneConfig, model: nn.Module) -> tuple[Gates, Target | None]:
    """Add gates to the model, and a target if a number of heads was given."""
    gates = Gates(
        model,
        where=config.where,
        initial=config.initial,
        group=group_of(config, model),
        seed=config.seed,
    )
    try:
        target = None if config.keep is None else Target(gates, config.keep, steps=config.steps)
        gates.parameter_groups(
            model,
            learning_rate=config.gate_learning_rate,
            freeze="decoder" if config.freeze == "decoder" else None,
        )
    except ValueError:
        gates.undo()
        raise
    return gates, target


def _with_gates(config: PruneConfig, task: Task, run: Run) -> Chosen:
    model = task.model
    gates, target = _gates(config, model)
    too_slow = _warn_if_too_slow(config)
    penalty = config.penalty or 0.0
    loss = penalised(
        task.loss,
        gates,
        target or penalty,
        normalise=config.normalise,
        every=config.accumulate,
    )

    def gate_metrics() -> Mapping[str, float]:
        _trace(run, gates, step=int(gates.draws) // config.accumulate)
        return {**gates.log(), **(target.log() if target else {})}

    _fit(config, task, run, loss, gate_metrics, {f"{NAME}.*": config.gate_learning_rate})
    keep, table = (target or gates).keep(), gates.table()
    if target:
        note = " ".join([f"Gates, steered to {config.keep} heads.", target.note() or ""]).strip()
    else:
        told = gates.lambda_in_both(penalty, config.normalise)
        note = f"Gates, {told}.{too_slow}{_note_if_none_left(keep, table)}"
    gates.undo()
    prune(model, keep)
    return Chosen(keep, table, note)


def _warn_if_too_slow(config: PruneConfig) -> str:
    """Warn if gates have no time to close: Adam moves them by the learning rate per step."""
    factor = config.fit_config(cuda=False).factor()
    way = config.gate_learning_rate * sum(map(factor, range(1, config.steps + 1)))
    if not config.penalty or way >= config.initial:
        return ""
    warning = (
        f"In {config.steps} steps gates fall by about {way:.2g} of the {config.initial:g} that "
        "close them, so few heads can close; give more --steps or a larger --gate-learning-rate."
    )
    warnings.warn(warning, stacklevel=2)
    return f" {warning}"


def _note_if_none_left(keep: Keep, table: HeadTable) -> str:
    """Return a sentence if the penalty closed every gate."""
    if any(keep.values()):
        return ""
    return (
        f" None of the {len(table.heads)} heads is left: lambda times the sum over heads "
        "outweighed the loss, so a smaller --penalty keeps more."
    )


def _trace(run: Run, gates: Gates, *, step: int) -> None:
    """Record the gates now, for the report's plot over training."""
    probabilities = {name: prob_H.tolist() for name, prob_H in gates.prob_open().items()}
    state = {"step": step, "prob_open": probabilities, "keep": gates.keep()}
    run.write_json(f"trace/gates/{step:07}.json", state)


def _fit(
    config: PruneConfig,
    task: Task,
    run: Run,
    loss: Any,
    metrics: Any,
    rates: Mapping[str, float],
) -> None:
    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {**task.evaluate(model, size=config.batch_size), **metrics()}

    with progress_bar(config.steps) as show:
        fit(
            task.model,
            loss,
            task.train.epochs(size=config.batch_size, seed=config.seed),
            run=run,
            config=config.fit_config(cuda=torch.cuda.is_available(), replayable=task.replayable),
            tokens=lambda batch: int((batch["labels"] >= 0).sum()),
            progress=lambda step, metrics: show(
                step, {name: metrics[name] for name in SHOWN if name in metrics}
            ),
            evaluate=evaluate,
            rates=rates,
        )


def _chosen_before(config: PruneConfig, task: Task, run: Run) -> Chosen:
    """Choose without gates, once: the run keeps the choice for a resumed training."""
    heads = {site.name: site.num_heads for site in find_sites(task.model, where=config.where)}
    if run.has("keep.json"):
        keep: Keep = run.read_json("keep.json", {name: [int] for name in heads})
    else:
        keep = _choose(config, task)
        run.write_json("keep.json", keep)
    kept = {name: [float(i in keep[name]) for i in range(heads[name])] for name in heads}
    return Chosen(keep, HeadTable.of({"kept": kept}), f"Chosen by {config.choose}.")


def _choose(config: PruneConfig, task: Task) -> Keep:
    model, where, group = task.model, config.where, group_of(config, task.model)
    count = config.keep or 0
    if config.choose == RANDOM:
        return random(model, count, seed=config.seed, where=where, group=group)
    if config.choose != GREEDY:
        table = inspected(config.inspection)
        return by_column(
            table, config.choose, count, where=where, lowest=config.lowest, group=group
        )
    groups = sum(site.num_heads for site in find_sites(model, where=where)) // group

    def measure(model: nn.Module) -> float:
        return task.evaluate(model, size=config.batch_size)[task.watched]

    model.eval()
    with counting("choosing heads") as count_done:
        return greedy(
            model,
            measure,
            count,
            better=task.better,
            where=where,
            group=group,
            at_once=config.at_once or max(1, groups // TENTH),
            progress=count_done,
        )
