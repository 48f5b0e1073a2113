"""CUDA graphs: the work of a GPU is recorded once and replayed with one launch.

A step of a small model is hundreds of kernels, and launching them one by one from Python takes
longer than running them.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch

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
