"""Compare a model before and after pruning: time, parameters, FLOPs, memory and quality.

    rich.print(pruning.speed(before, after, batches=(1, 32), lengths=(32, 128)))

Removing heads makes the four matrices of attention smaller. Feed-forward layers, embeddings and the
output matrix stay as they were, and they are often most of the work: then a model with a quarter of
its heads is hardly faster.
"""

import math
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headwise.config import printable
from headwise.hf import adopt, release
from headwise.hf.adoption import backend_of, innermost, is_adopted, positions_of
from headwise.ops.graphs import on_a_stream, record
from headwise.sites import constant_parameters, eval_mode

Inputs = Mapping[str, Tensor]
MakeInputs = Callable[[nn.Module, int, int], Inputs]


def random_text(model: nn.Module, batch: int, length: int) -> Inputs:
    """Return random ids, all rows of one length; source and target have the same length.

    Special tokens are not drawn. The input of an encoder before a decoder ends with the end
    token, which some models need.

    Args:
        model: a Hugging Face model that reads text, or one with a method `example_inputs`.
        batch: rows.
        length: tokens of each row.
    """
    inner = innermost(model)
    if make := getattr(inner, "example_inputs", None):
        return make(batch, length)
    device = next(model.parameters()).device
    random = torch.Generator().manual_seed(0)

    def ids(vocabulary: int, special: Collection[int]) -> Tensor:
        words = torch.tensor([word for word in range(vocabulary) if word not in special])
        drawn = torch.randint(0, len(words), (batch, length), generator=random)
        return words[drawn].to(device)

    if not isinstance(inner, PreTrainedModel) or inner.main_input_name != "input_ids":
        raise ValueError(
            f"{type(inner).__name__} is no Hugging Face model that reads text and has no method "
            "example_inputs; give inputs=, a function of the model, batch and length."
        )
    settings: Any = inner.config.get_text_config()
    special = set(_special_ids(settings))
    inputs = {"input_ids": ids(settings.vocab_size, special)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if settings.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids(settings.vocab_size, special)
        if isinstance(settings.eos_token_id, int):
            inputs["input_ids"][:, -1] = settings.eos_token_id
    return inputs


def without_full_masks(inputs: Inputs) -> Inputs:
    """Return the inputs of a Hugging Face model without attention masks that hide nothing.

    >>> given = {"input_ids": torch.ones(1, 2), "attention_mask": torch.ones(1, 2)}
    >>> list(without_full_masks(given))
    ['input_ids']
    """
    return {
        name: value
        for name, value in inputs.items()
        if not (name.endswith("attention_mask") and bool(value.all()))
    }


def _special_ids(settings: Any) -> Iterator[int]:
    """Yield the ids of special tokens that a model's settings name."""
    for name in dir(settings):
        if name.endswith("token_id"):
            value = getattr(settings, name)
            yield from value if isinstance(value, list) else [] if value is None else [value]


def max_length_of(model: nn.Module) -> int | None:
    """Return the maximum length of a model's input; None if it names none."""
    return min(positions_of(innermost(model)), default=None)


def decodes(model: nn.Module) -> bool:
    """Return whether a model generates text, which takes many passes."""
    inner = innermost(model)
    if isinstance(inner, PreTrainedModel):
        return bool(inner.can_generate())
    return hasattr(inner, "decode")


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_flops(model: nn.Module, inputs: Inputs) -> int:
    """Return the FLOPs of the matrix products of a forward pass, two for a multiplication."""
    # fused attention is counted on some devices only; the math backend is matrix products
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(**inputs)
    return int(counter.get_total_flops())


def peak_memory(model: nn.Module, inputs: Inputs) -> int:
    """Return the bytes of the weights plus the peak memory of a forward pass.

    On a CUDA device the allocator is asked. Elsewhere living tensors are counted, without what an
    operation needs while it runs.
    """
    device = next(model.parameters()).device
    held = {id(t.untyped_storage()): t for t in (*model.parameters(), *model.buffers())}
    weights = sum(tensor.numel() * tensor.element_size() for tensor in held.values())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        model(**inputs)
        return weights + torch.cuda.max_memory_allocated(device) - before
    with _LivingBytes() as living:
        model(**inputs)
    return weights + living.most


class _LivingBytes(TorchDispatchMode):
    """A count of the bytes of tensors that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known = weakref.WeakSet[Any]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, Tensor):
                self._known.add(given.untyped_storage())  # existed before, so does not count
        made = func(*args, **(kwargs or {}))
        for leaf in cast(list[object], tree_leaves(made)):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = int(storage.nbytes())
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


LEAST_ROUNDS, MOST_ROUNDS = 6, 31  # fewer than 6 give no 95 % interval of a median
LEAST_SECONDS = 0.01  # shorter calls are repeated, because clocks are coarse
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Speed of the second model relative to the first: a median with its 95 % interval.

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
