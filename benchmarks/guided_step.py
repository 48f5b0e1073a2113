"""A training step of RoBERTa-base with guidance on half the heads, against the plain step.

The attention itself stays with SDPA; the loss is computed beside it from q and k of every layer.
The peer is the usual way: eager attention that returns its matrices, and the loss from those.
A host that is adopted and not guided takes part too: compiled alone, transformers makes a mask that
hides nothing, for which SDPA has no fused kernel. The fastest plain step is the yardstick.
Weights are random: nothing is downloaded. The experiment `attention_guidance/overhead` also has our
`Encoder` and gradient checkpointing, and nothing compiled.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from rich.table import Table

from benchmarks import Measured, name_of, wait_for
from benchmarks.peers import FAILURES, one_line
from benchmarks.turns import take_turns
from headwise_papers.attention_guidance._masked_steps import (
    Settings,
    Trainee,
    from_matrices,
    guided,
    plain,
)

AIM = 1.05
PLAIN = ("plain", "plain, compiled", "adopted, compiled")  # the fastest of a round is the yardstick
MATRICES = "eager, loss from the matrices"
AGREEMENT = 0.02  # how far, relatively, the guidance losses of two ways may be apart

Row = dict[str, Any]
Build = Callable[[], Trainee]


def measure(
    repeat: int,
    device: torch.device,
    *,
    keep: Callable[[list[Row]], None] = lambda rows: None,
    settings: Settings | None = None,
    compiled: bool = True,
) -> Measured:
    """Build everybody, refuse who computes another loss, and let the others take turns."""
    settings = settings or Settings()
    rows: list[Row] = []
    matrices: float | None = None
    for round_ in _rounds(settings, device, compiled):
        trainees: dict[str, Trainee] = {}
        for name, build in round_.items():
            row, trainee = _try(name, build, device, matrices)
            rows.append(row)
            keep(rows)
            if trainee is not None:
                trainees[name] = trainee
                matrices = trainee.guidance if name == MATRICES else matrices
        _add_times(rows, trainees, settings, device, repeat)
        keep(rows)
    wrong = sum("wrong" in row or (row["who"] == "guided" and "reason" in row) for row in rows)
    return Measured(rows, _table(rows, device), wrong=wrong)


def _rounds(settings: Settings, device: torch.device, compiled: bool) -> Iterator[dict[str, Build]]:
    """Who takes turns with whom; the matrices first: they are what guided steps are held to."""
    yield {
        MATRICES: partial(from_matrices, settings, device),
        "plain": partial(plain, settings, device),
        "guided": partial(guided, settings, device),
    }
    if compiled:  # these take a while to start
        yield {
            f"{MATRICES}, compiled": partial(from_matrices, settings, device, compiled=True),
            "plain, compiled": partial(plain, settings, device, compiled=True),
            "adopted, compiled": partial(plain, settings, device, compiled=True, adopted=True),
            "guided, compiled": partial(guided, settings, device, compiled=True),
        }


def _try(
    name: str, build: Build, device: torch.device, matrices: float | None
) -> tuple[Row, Trainee | None]:
    """Build one, take two steps and note the memory, or say why not."""
    before = _memory(device)
    start = time.perf_counter()
    try:
        trainee = build()
        said = _disagreement(trainee.guidance, matrices)
        for _ in range(2):
            trainee.step()
        wait_for(device)
    except FAILURES as problem:
        return {"who": name, "reason": one_line(problem)}, None
    row: Row = {"who": name, "start_s": round(time.perf_counter() - start, 1)}
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) - before
        row["peak_gib"] = round(peak / 2**30, 2)
    return (row | {"wrong": said}, None) if said else (row, trainee)


def _memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _disagreement(mine: float | None, matrices: float | None) -> str | None:
    """Why a guidance loss is not the one that the matrices give; all start with equal weights."""
    if mine is None or matrices is None or abs(mine - matrices) <= AGREEMENT * abs(matrices):
        return None
    return f"the guidance loss is {mine:.5g}, from the matrices {matrices:.5g}"


def _add_times(
    rows: list[Row],
    trainees: dict[str, Trainee],
    settings: Settings,
    device: torch.device,
    repeat: int,
) -> None:
    steps = {name: trainee.step for name, trainee in trainees.items()}
    times = take_turns(steps, device, repeat=repeat)
    fastest = min((times[name].ms for name in times if name in PLAIN), default=None)
    for row in rows:
        if row["who"] not in times:
            continue
        ms = times[row["who"]].ms
        row["step_ms"] = round(ms, 3)
        row["tokens_per_s"] = round(settings.batch * settings.length / ms * 1000)
        if fastest is not None:
            row["ratio"] = round(ms / fastest, 3)
        if row["who"].startswith("guided"):
            row["aim"] = AIM


def _table(rows: list[Row], device: torch.device) -> Table:
    table = Table(title=f"A training step of RoBERTa-base, {name_of(device)}")
    table.add_column("who", no_wrap=True)
    for name in ("step ms", "tokens/s", "peak GiB", "ratio to plain", "aim"):
        table.add_column(name, justify="right")
    table.add_column("not timed, because")
    for row in rows:
        figures = [
            row.get(name) for name in ("step_ms", "tokens_per_s", "peak_gib", "ratio", "aim")
        ]
        shown = ["" if figure is None else f"{figure:,}" for figure in figures]
        why = f"wrong: {row['wrong']}" if "wrong" in row else row.get("reason", "")
        table.add_row(row["who"], *shown, why)
    return table
