"""CUDA graphs: the work of a GPU is recorded once and replayed with one launch.

A step of a small model is hundreds of kernels, and launching them one by one from Python takes
longer than running them.
"""

import gc
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

R = TypeVar("R")


def record(work: Callable[[], R], *, pool: Any) -> tuple[torch.cuda.CUDAGraph, R]:
    """Record GPU work without running it; return the graph and the result of `work`.

    The Python code of `work` runs now and never again. So it must not read tensors, and whatever
    changes between replays must be a tensor that is changed in place. `work` must have run before,
    because kernels cannot be compiled while recording. Call this inside `on_a_stream`.

    Args:
        work: The function to record.
        pool: Memory pool, shared with graphs that never run at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with _no_collection():
        # threads that prepare batches may allocate memory meanwhile
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = work()
        except BaseException:
            with suppress(
                RuntimeError
            ):  # the first error says more than that of ending the capture
                graph.capture_end()
            raise
        graph.capture_end()
    return graph, result


@contextmanager
def on_a_stream(device: torch.device | None = None) -> Generator[None]:
    """Run on a stream that can be recorded, in order with all work before and after.

    Args:
        device: Device of the stream, which becomes the current one; None keeps the current one.
    """
    with torch.cuda.device(device):
        stream, before = _stream(torch.cuda.current_device()), torch.cuda.current_stream()
        stream.wait_stream(before)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            before.wait_stream(stream)


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """Return the one stream of a device: torch caches memory per stream."""
    return torch.cuda.Stream(device)


@cache
def lasting_pool(device: int) -> Any:
    """Return a memory pool of a device for short-lived graphs, used one at a time.

    A pool whose last graph is deleted keeps its memory but is never reused, so one graph is kept
    alive. Call this inside `on_a_stream`.
    """
    pool, number = torch.cuda.graph_pool_handle(), torch.zeros(1, device=device)
    number.add_(0)
    _STAYING.append(record(lambda: number.add_(0), pool=pool)[0])
    return pool


_STAYING: list[torch.cuda.CUDAGraph] = []


@contextmanager
def _no_collection() -> Generator[None]:
    """Disable garbage collection: device memory must not be freed while a graph is recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


MAX_SHAPES = 128  # recorded; steps with other shapes run without a graph
Step = Callable[[Any], Tensor]


@dataclass
class _Recorded:
    """A graph, the tensors it reads and the one it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Tensor


@dataclass
class Replayed:
    """A step that is recorded once a shape of batches has occurred before, then replayed.

    At first it runs without a graph, which compiles kernels and makes the optimiser's state.
    Numbers that are not tensors are part of the shape. The step's Python code runs when it is
    recorded and never again: it must not read tensors, and what changes from step to step must be a
    tensor that is changed in place. Call it inside `headwise.ops.graphs.on_a_stream`.

    Args:
        step: from a batch, on the device or not, to the measured values.
        warm: number of steps with each shape before one is recorded.
    """

    step: Step
    warm: int = 1
    _seen: Counter[Hashable] = field(default_factory=Counter[Hashable])
    _recorded: dict[Hashable, _Recorded] = field(default_factory=dict[Hashable, _Recorded])
    _pool: Any = None  # the graphs run one after the other, so they share their memory

    def __call__(self, batch: Any) -> Tensor:
        leaves, form = tree_flatten(batch)
        shape = (str(form), *map(_shape, leaves))
        if shape not in self._recorded:
            if self._seen[shape] < self.warm or len(self._recorded) >= MAX_SHAPES:
                self._seen[shape] += 1
                return self.step(batch)
            self._recorded[shape] = self._record(leaves, form)
        recorded = self._recorded[shape]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        for held, new in zip(recorded.inputs, tensors, strict=True):
            held.copy_(new, non_blocking=True)
        recorded.graph.replay()
        return recorded.result.clone()

    def _record(self, leaves: list[Any], form: Any) -> _Recorded:
        device = torch.device("cuda", torch.cuda.current_device())
        held = [leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph, result = record(lambda: self.step(tree_unflatten(held, form)), pool=self._pool)
        return _Recorded(graph, [leaf for leaf in held if isinstance(leaf, Tensor)], result)


def _shape(leaf: Any) -> Hashable:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf
