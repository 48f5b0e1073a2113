"""Steps replayed as CUDA graphs: what a GPU does in a step is recorded once a shape of batches.

A step of a small model is a thousand kernels, and starting them one by one from Python takes longer
than running them. A recorded step is started at once.
"""

import gc
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["Replayed", "on_a_stream"]

MOST = 128  # shapes that are recorded; further ones run as they are
Step = Callable[[Any], Tensor]


@dataclass
class _Recorded:
    """A graph, the tensors it reads and the one it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Tensor


@dataclass
class Replayed:
    """A step that is recorded when a shape of batches comes for the second time, then replayed.

    The first time it runs as it is, which compiles kernels and makes the optimiser's state. Numbers
    that are no tensors are part of the shape. What the step does in Python happens when it is
    recorded and never again, so it must not read tensors, and what changes from step to step
    must be a tensor that is changed in place.

    Call it inside `on_a_stream`.

    Args:
        step: from a batch, whose tensors are on the device or will be, to what was measured.
    """

    step: Step
    _seen: set[Hashable] = field(default_factory=set[Hashable])
    _recorded: dict[Hashable, _Recorded] = field(default_factory=dict[Hashable, _Recorded])
    _pool: Any = None  # the graphs run one after the other, so they share their memory

    def __call__(self, batch: Any) -> Tensor:
        leaves, form = tree_flatten(batch)
        shape = (str(form), *map(_shape, leaves))
        if shape not in self._recorded:
            if shape not in self._seen or len(self._recorded) >= MOST:
                self._seen.add(shape)
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
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with _no_collection():
            # other threads, which make batches, may ask for memory meanwhile
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = self.step(tree_unflatten(held, form))
            except BaseException:
                with suppress(RuntimeError):  # of a capture that failed; why it did says more
                    graph.capture_end()
                raise
            graph.capture_end()
        return _Recorded(graph, [leaf for leaf in held if isinstance(leaf, Tensor)], result)


@contextmanager
def on_a_stream() -> Generator[None]:
    """Run on a stream that can be recorded, everything before and after in order."""
    stream, before = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)


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


def _shape(leaf: Any) -> Hashable:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf
