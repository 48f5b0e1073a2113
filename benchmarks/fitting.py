"""Whole trainings of a small translator by `fit`, against Hugging Face's Trainer with Marian.

Updates a second of the loop as it is used: batches are made and moved while it goes on, it logs
every 10 updates and writes a checkpoint every 250; evaluation is off. Sentences are random words,
as long as those of Multi30k, as many in an epoch, 8,192 pieces a batch, in an order of each epoch's
own. Our updates run as they are, replayed as CUDA graphs, and compiled; all must have one loss.

A training cannot be halted, so contestants train one after the other. A turn is 250 updates; the
first, in which steps are recorded or compiled, is told apart. The Trainer logs and saves as often.
It gets the first 250 batches ready-made, again and again.

On a GPU it is also counted how many kernels an update has, and how long they keep the GPU busy.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import SEED, Measured, name_of
from benchmarks.marian import WITH_TRAINER, check_scores, marian_like, trainer_seconds
from benchmarks.peers import FAILURES, one_line
from headwise.recording import Run
from headwise.training import FitConfig, Summed, fit, label_smoothed_sum
from headwise_papers.data.batches import ParallelBatch
from headwise_papers.data.vocabulary import PAD
from headwise_papers.models import Transformer, TransformerConfig
from headwise_papers.sparse_transformer._speed import drawn_series, make_model

CORPUS = "multi30k"  # whose lengths sentences have
PLAIN, REPLAYED, COMPILED = "fit", "fit, replayed", "fit, compiled"
AGREEMENT = 0.02  # how far, relatively, the last losses of ours may be apart
PROFILED = 5  # batches that are looked at; each comes twice before, and twice then

Row = dict[str, Any]
Series = Callable[[int], ParallelBatch]


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are for a GPU."""

    changes: tuple[tuple[str, int], ...] = ()  # to the small translator
    vocab: int = 8000
    tokens: int = 8192  # of a batch, the longer side, padding included
    pairs: int = 29_000  # in an epoch
    turn: int = 250  # updates, and a checkpoint
    log_every: int = 10  # updates
    ways: tuple[str, ...] = (PLAIN, REPLAYED, COMPILED)


SIZES = {
    "cuda": Sizes(),
    "cpu": Sizes(
        changes=(("width", 32), ("feed_forward", 64)),
        vocab=100,
        tokens=256,
        pairs=200,
        turn=10,
        log_every=5,
        ways=(PLAIN,),
    ),
}


def measure(
    repeat: int,
    device: torch.device,
    *,
    keep: Callable[[list[Row]], None] = lambda rows: None,
    sizes: Sizes | None = None,
) -> Measured:
    """Check that Marian is the same model, and let everybody train."""
    if device.type == "cpu" and torch.cuda.is_available():
        raise SystemExit("`fit` takes the GPU that is there; hide it: CUDA_VISIBLE_DEVICES= …")
    sizes = sizes or SIZES[device.type]
    series = drawn_series(CORPUS, vocab=sizes.vocab, tokens=sizes.tokens, pairs=sizes.pairs)
    first = ParallelBatch(*(tensor.to(device) for tensor in series(0)))
    check_scores(_model(sizes, device), first)
    rows: list[Row] = []
    for name in sizes.ways:
        rows.append(_timed(name, sizes, series, device, repeat))
        keep(rows)
    for row in rows:
        if device.type == "cuda" and "reason" not in row:
            row |= _profiled(row["contestant"], sizes, series, device)
            keep(rows)
    # the last, because it changes what Accelerate keeps for the whole process
    rows.append(_trainer(sizes, series, device, repeat))
    _compare(rows)
    return Measured(rows, _table(rows, device), sum("wrong" in row for row in rows))


def _model(sizes: Sizes, device: torch.device) -> Transformer:
    """The same weights whenever it is called; Marian is post-norm and shares all embeddings."""
    shape = TransformerConfig.small(
        sizes.vocab, sizes.vocab, norm="post", share_embeddings="all", **dict(sizes.changes)
    )
    return make_model(shape, device, seed=SEED)


def _loss(model: nn.Module, batch: ParallelBatch) -> Summed:
    logits_BTV = model(batch.source, batch.source_lengths, batch.target_in)
    return label_smoothed_sum(logits_BTV, batch.target_out, pad=PAD, smoothing=0.1)


def _fit(
    name: str,
    config: FitConfig,
    sizes: Sizes,
    series: Series,
    device: torch.device,
    *,
    progress: Callable[[int, Mapping[str, float]], None],
    on_step: Callable[[int], None] | None = None,
) -> None:
    """Train from the start, into a folder that then goes away."""
    if name == COMPILED:
        torch.compiler.reset()  # of what was compiled before there are limits
    with TemporaryDirectory() as folder, Run.create(Path(folder) / "run", config) as run:
        fit(
            _model(sizes, device),
            _loss,
            series,
            run=run,
            config=config,
            tokens=lambda batch: int(batch.target_lengths.sum()),
            progress=progress,
            on_step=on_step,
        )


def _config(
    name: str, sizes: Sizes, device: torch.device, *, steps: int, log_every: int
) -> FitConfig:
    return FitConfig(
        steps=steps,
        learning_rate=1e-4,
        schedule="constant",
        warmup=0,
        precision="bfloat16" if device.type == "cuda" else "float32",
        log_every=log_every,
        checkpoint_every=sizes.turn,
        compile=name == COMPILED,
        graphs=name == REPLAYED,
        seed=SEED,
    )


@dataclass
class _Watch:
    """Notes the losses that are logged, and the time after each turn."""

    turn: int
    times: list[float] = field(default_factory=lambda: [time.perf_counter()])
    losses: list[float] = field(default_factory=list[float])

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self.losses.append(metrics["loss"])
        if step % self.turn == 0:
            self.times.append(time.perf_counter())


def _timed(name: str, sizes: Sizes, series: Series, device: torch.device, repeat: int) -> Row:
    """A training of one turn that does not count and of those that do, or why not."""
    steps = sizes.turn * (1 + repeat)
    config = _config(name, sizes, device, steps=steps, log_every=sizes.log_every)
    watch = _Watch(sizes.turn)
    try:
        _fit(name, config, sizes, series, device, progress=watch)
    except FAILURES as problem:
        return {"contestant": name, "reason": one_line(problem)}
    start, first = watch.times[:2]
    seconds = [after - before for before, after in pairwise(watch.times[1:])]
    losses = {"first_loss": watch.losses[0], "last_loss": watch.losses[-1]}
    return _row(name, seconds, sizes) | {"first_turn_s": round(first - start, 2)} | losses


def _trainer(sizes: Sizes, series: Series, device: torch.device, repeat: int) -> Row:
    batches = [series(number) for number in range(sizes.turn)]
    peer = marian_like(_model(sizes, device))
    try:
        seconds = trainer_seconds(peer, batches, turns=repeat, log_every=sizes.log_every)
    except FAILURES as problem:
        return {"contestant": WITH_TRAINER, "reason": one_line(problem)}
    return _row(WITH_TRAINER, seconds, sizes)


def _row(name: str, seconds: list[float], sizes: Sizes) -> Row:
    """Of seconds a turn; medians, and every turn."""
    return {
        "contestant": name,
        "updates_per_second": float(f"{sizes.turn / median(seconds):.4g}"),
        "ms": round(1000 * median(seconds) / sizes.turn, 3),
        "ms_by_turn": [round(1000 * spent / sizes.turn, 3) for spent in seconds],
    }


def _profiled(name: str, sizes: Sizes, series: Series, device: torch.device) -> Row:
    """What the GPU does in an update; a few batches, again and again."""
    # as PyTorch does for graphs of its own, which crash once the tracer was taken down
    os.environ |= {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}
    tracer = profile(activities=[ProfilerActivity.CUDA])
    warm, steps = 2 * PROFILED, 4 * PROFILED

    def start(step: int) -> None:
        if step == warm:
            torch.cuda.synchronize(device)
            tracer.start()

    def stop(step: int, metrics: Mapping[str, float]) -> None:
        if step == steps:
            tracer.stop()

    config = _config(name, sizes, device, steps=steps, log_every=steps)
    few = [series(number) for number in range(PROFILED)]
    _fit(name, config, sizes, lambda n: few[n % PROFILED], device, progress=stop, on_step=start)
    return kernel_figures(tracer.events() or (), steps - warm)


def kernel_figures(events: Iterable[Any], updates: int) -> Row:
    """Kernels an update, and milliseconds that they and copies take, from what was traced."""
    busy = [e for e in events if e.device_type.name == "CUDA" and not e.is_user_annotation]
    kernels = [event for event in busy if not event.name.startswith(("Memcpy", "Memset"))]
    spent_us = sum(event.time_range.elapsed_us() for event in busy)
    return {
        "kernels": round(len(kernels) / updates),
        "gpu_ms": round(spent_us / 1000 / updates, 3),
    }


def _compare(rows: list[Row]) -> None:
    """Ratios of speeds; a training that does not learn, or not as the plain one, is wrong."""
    able = {row["contestant"]: row for row in rows if "reason" not in row}
    for name, row in able.items():
        for other in (PLAIN, WITH_TRAINER):
            if other in able and other != name:
                row[f"over {other}"] = round(able[other]["ms"] / row["ms"], 3)
        if said := _complaint(row, able.get(PLAIN, row)):
            row["wrong"] = said


def _complaint(row: Row, plain: Row) -> str | None:
    if "last_loss" not in row:  # of the Trainer
        return None
    first, last = row["first_loss"], row["last_loss"]
    if not last < first:
        return f"the loss was {first:.4f} at first and {last:.4f} at last"
    wanted = plain["last_loss"]
    if not abs(last - wanted) <= AGREEMENT * wanted:
        return f"the last loss is {last:.4f}, of the plain training {wanted:.4f}"
    return None


def _table(rows: list[Row], device: torch.device) -> Table:
    table = Table(title=f"Training a small translator, {name_of(device)}")
    table.add_column("contestant", no_wrap=True)
    shown = {
        "updates_per_second": "updates/s",
        "ms": "ms an update",
        "first_turn_s": "first turn, s",
        "kernels": "kernels",
        "gpu_ms": "ms on the GPU",
        f"over {PLAIN}": "over plain",
        f"over {WITH_TRAINER}": "over Trainer",
    }
    for title in shown.values():
        table.add_column(title, justify="right")
    table.add_column("why not")
    for row in rows:
        cells = ["" if row.get(name) is None else f"{row[name]:,}" for name in shown]
        why = f"wrong: {row['wrong']}" if "wrong" in row else row.get("reason", "")
        table.add_row(row["contestant"], *cells, why)
    return table
