"""Compare a model before and after pruning: time, parameters, FLOPs, memory and quality.

    rich.print(pruning.speed(before, after, batches=(1, 32), lengths=(32, 128)))

Removing heads makes the four matrices of attention smaller. Feed-forward layers, embeddings and the
output matrix stay as they were, and they are often most of the work: then a model with a quarter of
its heads is hardly faster.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch import nn
from transformers import PreTrainedModel

from headwise.config import printable
from headwise.hf import adopt, release
from headwise.hf.adoption import backend_of, innermost, is_adopted
from headwise.ops.graphs import on_a_stream, record
from headwise.pruning.workloads import (
    MakeInputs,
    count_flops,
    count_parameters,
    decodes,
    max_length_of,
    peak_memory,
    random_text,
    without_full_masks,
)
from headwise.sites import constant_parameters, eval_mode

LEAST_ROUNDS, MOST_ROUNDS = 6, 31  # fewer than 6 give no 95 % interval of a median
LEAST_SECONDS = 0.01  # shorter calls are repeated, because clocks are coarse
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times faster the second model is: a median with its 95 % interval.

    >>> Ratio.of([1.2, 1.1, 1.3, 1.2, 1.25, 1.15])
    Ratio(median=1.2, low=1.1, high=1.3)
    """

    median: float
    low: float
    high: float

    @staticmethod
    def of(ratios: Sequence[float]) -> "Ratio":
        """Return median and interval of one ratio per round, for any distribution of ratios."""
        ordered, count = sorted(ratios), len(ratios)
        outside, place = 0.0, 0  # the probability that the median is below the value at place
        for index in range(count // 2):
            outside += math.comb(count, index) / 2**count
            if 1 - 2 * outside < CONFIDENCE:
                break
            place = index
        return Ratio(median(ordered), ordered[place], ordered[count - 1 - place])

    @property
    def is_one(self) -> bool:
        """Whether the interval includes 1."""
        return self.low <= 1 <= self.high


@dataclass(frozen=True)
class Compared:
    """Seconds of a call before and after, medians over rounds, and their ratio."""

    before: float
    after: float
    ratio: Ratio


def time_interleaved(
    before: Callable[[], object],
    after: Callable[[], object],
    *,
    seconds: float,
    device: torch.device,
) -> Compared:
    """Time two functions in turns, so that a busy machine slows both; which is first alternates.

    Args:
        before: the first function.
        after: the second function.
        seconds: the approximate duration; there are at least 6 rounds and at most 31.
        device: synchronised before each reading of the clock.
    """
    calls = (before, after)
    first = [max(_timed(call, 1, device) for _ in range(2)) for call in calls]  # warms up, too
    repeats = max(1, math.ceil(LEAST_SECONDS / max(min(first), 1e-9)))
    rounds = round(seconds / (sum(first) * repeats))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS)):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            times[which].append(_timed(calls[which], repeats, device))
    ratios = [old / new for old, new in zip(*times, strict=True)]
    return Compared(median(times[0]), median(times[1]), Ratio.of(ratios))


def _timed(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


OWN = "own"  # the only backend of models that are not of Hugging Face
REPLAYED = ", replayed"  # suffix of a backend's name: passes are recorded as CUDA graphs
SMALL = 0.05  # share of the FLOPs that is too small to make a model faster


@dataclass(frozen=True)
class Workload:
    """Forward passes of one size and backend, before and after.

    Args:
        backend: the attention backend.
        batch: rows of the batch.
        length: tokens of a row.
        time: seconds of a forward pass, and how many times faster it became.
        flops: of the matrix products, before and after.
        memory: bytes of weights plus peak memory of the pass, before and after.
    """

    backend: str
    batch: int
    length: int
    time: Compared
    flops: tuple[int, int]
    memory: tuple[int, int]

    @property
    def saved(self) -> float:
        """The share of the FLOPs that pruning saves."""
        return 1 - self.flops[1] / self.flops[0]

    @property
    def name(self) -> str:
        """The name in verdicts."""
        return f"{self.backend}, {self.batch} x {self.length}"


@dataclass(frozen=True)
class Speed:
    """The result of `speed`. Rich prints it as a table with the verdicts below."""

    device: str
    parameters: tuple[int, int]
    workloads: tuple[Workload, ...]
    quality: tuple[float, float] | None = None
    left_out: tuple[str, ...] = ()

    def verdicts(self) -> list[str]:
        """Return conclusions as sentences; they say so if nothing was gained."""
        if self.parameters[0] == self.parameters[1]:
            return ["Nothing was removed, so nothing can be gained.", *self.left_out]
        said = [
            f"{self.parameters[0]:,} parameters became {self.parameters[1]:,} "
            f"({_percent(1 - self.parameters[1] / self.parameters[0])} fewer)."
        ]
        small = [work for work in self.workloads if work.saved < SMALL]
        if small:
            most = max(work.saved for work in small)
            said.append(
                f"This cannot be much faster: the heads that were removed are at most "
                f"{_percent(most)} of the FLOPs of {_listed(small)}."
            )
        same = [work for work in self.workloads if work.time.ratio.is_one]
        if same:
            said.append(
                f"No difference in time was measured (the interval includes 1) for {_listed(same)}."
            )
        slower = [work for work in self.workloads if work.time.ratio.high < 1]
        if slower:
            said.append(f"Slower than before: {_listed(slower)}.")
        return said + list(self.left_out)

    def to_json(self) -> dict[str, Any]:
        """Return all measurements and the verdicts as JSON values."""
        rows = [{**asdict(work), "saved_flops": work.saved} for work in self.workloads]
        return {
            "device": self.device,
            "parameters": list(self.parameters),
            "quality": list(self.quality) if self.quality else None,
            "workloads": rows,
            "verdicts": self.verdicts(),
        }

    def __rich__(self) -> Table:
        return speed_table(self.to_json())


# two values in a cell are before > after
HEADER = ("backend", "batch", "length", "ms", "times faster", "tokens/s", "GFLOP", "MB")


def speed(
    before: nn.Module,
    after: nn.Module,
    *,
    batches: Sequence[int] = (1, 8),
    lengths: Sequence[int] = (32, 128),
    backends: Sequence[str] = ("sdpa",),
    inputs: MakeInputs = random_text,
    measure: Callable[[nn.Module], float] | None = None,
    seconds: float = 2.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Speed:
    """Measure a model before and after pruning, with interleaved forward passes without gradients.

    Both models are left as they were. An adopted model is released while it is measured.

    Args:
        before: the unpruned model, on the device to measure.
        after: the pruned model, on the same device.
        batches: batch sizes.
        lengths: numbers of tokens; those above the model's maximum length are left out.
        backends: attention backends of a Hugging Face model: "sdpa", "eager". On a GPU
            "sdpa, replayed" times a recorded CUDA graph; started from Python, a small pass takes as
            long as Python needs, whatever the number of heads.
        inputs: makes the inputs from model, batch size and length.
        measure: the quality of a model, if it is to be reported too; called in eval mode.
        seconds: the approximate time for each combination.
        progress: called with (combinations done, combinations in all).
    """
    if not batches or not lengths or not backends or min(*batches, *lengths, 1) < 1:
        raise ValueError(
            "batches and lengths need numbers of at least 1 and backends a name, got "
            f"{list(batches)}, {list(lengths)} and {list(backends)}."
        )
    device = next(before.parameters()).device
    if (other := next(after.parameters()).device) != device:
        raise ValueError(f"Both models must be on one device, got {device} and {other}.")
    quality = (_quality(before, measure), _quality(after, measure)) if measure else None
    limits = [limit for limit in map(max_length_of, (before, after)) if limit]
    fitting = [length for length in lengths if not limits or length <= min(limits)]
    left_out = [
        f"Length {length} was not measured: the model has {min(limits)} positions."
        for length in lengths
        if length not in fitting
    ]
    names = _names(before, backends, device)
    plan = [(name, b, n) for name in names for b in batches for n in fitting]
    found: list[Workload] = []
    with _measurable(before), _measurable(after), torch.inference_mode():
        for done, (name, batch, length) in enumerate(plan):
            progress(done, len(plan))
            for model in (before, after):
                _switch(model, name)
            found.append(_workload(before, after, name, (batch, length), inputs, seconds))
    progress(len(plan), len(plan))
    if decodes(before):
        left_out.append("Decoding word by word was not timed: a pass reads all words at once.")
    parameters = count_parameters(before), count_parameters(after)
    return Speed(_device_name(device), parameters, tuple(found), quality, tuple(left_out))


def _workload(
    before: nn.Module,
    after: nn.Module,
    backend: str,
    size: tuple[int, int],
    inputs: MakeInputs,
    seconds: float,
) -> Workload:
    batch, length = size
    device = next(before.parameters()).device
    old, new = inputs(before, batch, length), inputs(after, batch, length)
    start = _recorded if backend.endswith(REPLAYED) else partial
    time = time_interleaved(
        start(before, **old), start(after, **new), seconds=seconds, device=device
    )
    flops = count_flops(before, old), count_flops(after, new)
    memory = peak_memory(before, old), peak_memory(after, new)
    return Workload(backend, batch, length, time, flops, memory)


def _names(model: nn.Module, backends: Sequence[str], device: torch.device) -> list[str]:
    """Return the names of the backends that are timed."""
    if device.type != "cuda" and any(name.endswith(REPLAYED) for name in backends):
        raise ValueError(f"Passes are replayed on a GPU only, got backends={list(backends)}.")
    if isinstance(innermost(model), PreTrainedModel):
        return list(backends)
    ends = (REPLAYED if name.endswith(REPLAYED) else "" for name in backends)
    return [f"{OWN}{end}" for end in dict.fromkeys(ends)]


def _recorded(model: nn.Module, **given: Any) -> Callable[[], object]:
    """Return the replay of a forward pass, recorded as a CUDA graph."""
    inner = innermost(model)
    host = inner if isinstance(inner, PreTrainedModel) else None
    if host is not None:
        adopt(host)  # otherwise transformers makes masks that it leaves out elsewhere
    needed = without_full_masks(given)  # in a graph it cannot be checked if a mask hides anything
    try:
        with on_a_stream(next(model.parameters()).device):
            model(**needed)
            graph, _ = record(lambda: model(**needed), pool=torch.cuda.graph_pool_handle())
    finally:
        if host is not None:
            release(host)
    return graph.replay


def _quality(model: nn.Module, measure: Callable[[nn.Module], float]) -> float:
    with eval_mode(model), torch.no_grad():
        return measure(model)


@contextmanager
def _measurable(model: nn.Module) -> Generator[None]:
    """Put a model into eval mode; release a Hugging Face model and restore its backend later."""
    inner = innermost(model)
    adopted = isinstance(inner, PreTrainedModel) and is_adopted(inner)
    if adopted:
        release(inner)
    backend = backend_of(inner.config) if isinstance(inner, PreTrainedModel) else None
    try:
        # FLOPs cannot be counted with views of parameters that require gradients
        with constant_parameters(model), eval_mode(model):
            yield
    finally:
        if isinstance(inner, PreTrainedModel) and backend:
            inner.set_attn_implementation(backend)
        if adopted:
            adopt(inner)


def _switch(model: nn.Module, backend: str) -> None:
    inner = innermost(model)
    if not isinstance(inner, PreTrainedModel):
        return
    try:
        inner.set_attn_implementation(backend.removesuffix(REPLAYED))
    except (ValueError, ImportError) as problem:
        raise ValueError(
            f"{type(inner).__name__} cannot attend with {backend!r}: {str(problem).split('. ')[0]}."
        ) from None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def speed_table(measured: Mapping[str, Any]) -> Table:
    """Return what `Speed.to_json` gave as a table for Rich, with the verdicts as its caption."""
    said = [*quality_said(measured), *measured["verdicts"]]
    title = Text(printable(f"One forward pass on {measured['device']}, before > after"))
    table = Table(box=None, header_style="bold", pad_edge=False, title=title)
    table.caption = Text("\n".join(map(printable, said)))
    table.title_justify = table.caption_justify = "left"
    for name in HEADER:
        table.add_column(name, justify="left" if name == "backend" else "right", no_wrap=True)
    for work in measured["workloads"]:
        table.add_row(*_cells(work))
    return table


def quality_said(measured: Mapping[str, Any]) -> list[str]:
    """Return the quality that `Speed.to_json` gave as a sentence; none if not measured."""
    quality = measured["quality"]
    return [f"Quality: {_pair(f'{value:.4g}' for value in quality)}."] if quality else []


def _cells(work: Mapping[str, Any]) -> list[str]:
    tokens, ratio = work["batch"] * work["length"], work["time"]["ratio"]
    times = [work["time"]["before"], work["time"]["after"]]
    return [
        work["backend"],
        str(work["batch"]),
        str(work["length"]),
        _pair(f"{1000 * seconds:.2f}" for seconds in times),
        f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        _pair(f"{tokens / seconds:,.0f}" for seconds in times),
        _pair(f"{flops / 1e9:.3g}" for flops in work["flops"]),
        _pair(f"{held / 1e6:.1f}" for held in work["memory"]),
    ]


def _pair(texts: Iterable[str]) -> str:
    return " > ".join(texts)


def _listed(works: Sequence[Workload]) -> str:
    return "; ".join(work.name for work in works)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
