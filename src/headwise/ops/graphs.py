"""CUDA graphs: what a GPU does is recorded once and started again as one piece.

A step of a small model is hundreds of kernels, and starting them one by one from Python takes
longer than running them.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch

__all__ = ["lasting_pool", "on_a_stream", "record"]

R = TypeVar("R")


def record(work: Callable[[], R], *, pool: Any) -> tuple[torch.cuda.CUDAGraph, R]:
    """Record what a GPU would do, without doing it; the graph, and what was returned.

    What `work` does in Python happens now and never again, so it must not read tensors, and what
    changes from one replay to the next must be a tensor that is changed in place. It must have run
    before, as kernels cannot be compiled meanwhile. Call it inside `on_a_stream`.

    Args:
        work: what to record.
        pool: of memory, shared with graphs that never run at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with _no_collection():
        # other threads, which make batches, may ask for memory meanwhile
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = work()
        except BaseException:
            with suppress(RuntimeError):  # of a capture that failed; why it did says more
                graph.capture_end()
            raise
        graph.capture_end()
    return graph, result


@contextmanager
def on_a_stream(device: torch.device | None = None) -> Generator[None]:
    """Run on a stream that can be recorded, everything before and after in order.

    Args:
        device: of the stream, which becomes the current one; None takes that which is.
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
    """One for all: memory that torch keeps for later is of the stream it was first used on."""
    return torch.cuda.Stream(device)


@cache
def lasting_pool(device: int) -> Any:
    """Memory of a device for graphs that come and go, one at a time.

    A pool whose last graph is gone keeps its memory but is not used again, so one graph stays.
    Call it inside `on_a_stream`.
    """
    pool, number = torch.cuda.graph_pool_handle(), torch.zeros(1, device=device)
    number.add_(0)
    _STAYING.append(record(lambda: number.add_(0), pool=pool)[0])
    return pool


_STAYING: list[torch.cuda.CUDAGraph] = []


@contextmanager
def _no_collection() -> Generator[None]:
    """Python must not free memory of the device while a graph is recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
