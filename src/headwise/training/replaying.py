"""Training steps replayed as CUDA graphs, one graph per shape of batches."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from headwise.ops.graphs import record

MAX_SHAPES = 128  # recorded; steps with other shapes run without a graph
COMPILED_WARM = 3  # compiled steps before one is recorded: the second may be compiled anew
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
