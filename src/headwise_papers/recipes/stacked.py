"""Minibatch training of many seeds together, with Adam.

The loss of a stack is the sum of its seeds' losses, and Adam works number by number, so every seed
goes the way it would go alone. On a GPU a whole update, forward, backward and Adam, is recorded
once for each shape of batch and then replayed (CUDA graphs): thousands of small kernels of a
recurrence would otherwise wait for Python.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.recording import Run
from headwise.training import Report
from headwise_papers.recipes.descent import STATE, Recorder, Training, under

__all__ = ["STATE", "TrainableStack", "shuffled_order", "train_stack"]

Batch = tuple[Tensor, ...]


@runtime_checkable
class TrainableStack(Protocol):
    """S models of one shape: `RnnClassifierStack`, `Seq2SeqStack`, or your own."""

    weights: dict[str, Tensor]  # by name, seeds on the leading axis; they require gradients

    @property
    def seeds(self) -> int:
        """Number of models."""
        ...

    @property
    def loss(self) -> Callable[..., Tensor]:
        """From the tensors of a batch to each seed's loss, (S,): a method, as a rule."""
        ...


def train_stack(
    stack: TrainableStack,
    batches: Callable[[int], Batch],
    *,
    steps: int,
    rate: float = 1e-3,
    recorders: Sequence[Recorder] = (),
    stop: Callable[[int], bool] | None = None,
    replay: bool = True,
    run: Run | None = None,
    log_every: int = 100,
    checkpoint_every: int = 1000,
    progress: Report | None = None,
) -> Float[Tensor, "E S"]:
    """Train a stack in place, and return the losses before each update.

    With a run, a killed training resumes from its last checkpoint. On a GPU products are computed
    in TensorFloat-32.

    Args:
        stack: the models.
        batches: the tensors of update 0, 1, 2, ..., as `stack.loss` wants them, on its device; the
            same number must give the same batch. Few different shapes, as each is recorded.
        steps: updates to do.
        rate: the learning rate of Adam, whose other settings are PyTorch's.
        recorders: called with (updates done, stack) before the first update and after every one.
        stop: asked with the updates done, after the recorders; True ends training early.
        replay: record updates as CUDA graphs; False for a loss that looks at its own numbers, as
            ops with data-dependent loops do. A CPU does not record.
        run: where checkpoints, metrics and traces go; None keeps nothing.
        log_every: updates between lines in the run's metrics, means over seeds.
        checkpoint_every: updates between checkpoints.
        progress: called after every log; see `progress_bar`.
    """
    with _fast_products():
        loop = _Loop(stack, rate, recorders, run)
        loop.replaying = loop.cuda and replay
        while loop.done < steps and not (stop is not None and stop(loop.done)):
            loop.update(batches(loop.done))
            if loop.done % log_every == 0 or loop.done == steps:
                loop.log(progress)
            loop.record(stack)
            if loop.done % checkpoint_every == 0 and loop.done < steps:
                loop.checkpoint()
        return loop.finish()


def shuffled_order(count: int, *, batch: int, seeds: Sequence[int]) -> Callable[[int], Tensor]:
    """Shuffle examples: all of them, then all again, with an order for each seed and pass.

    Every pass is in an order of its own, and a batch may lie across two passes.

    Args:
        count: examples there are.
        batch: examples of an update.
        seeds: one of each model; equal seeds see the same examples.

    Returns:
        A function from the update to indices (S, batch), on the CPU.
    """
    passes: dict[int, Tensor] = {}  # the two latest

    def one_pass(number: int) -> Tensor:
        if number not in passes:
            orders = [
                torch.randperm(count, generator=torch.Generator().manual_seed(seed * 7919 + number))
                for seed in seeds
            ]
            passes[number] = torch.stack(orders)
            for old in [known for known in passes if known < number - 1]:
                del passes[old]
        return passes[number]

    def indices(step: int) -> Tensor:
        place = torch.arange(step * batch, (step + 1) * batch)
        parts = [
            one_pass(number)[:, place[place // count == number] % count]
            for number in (place // count).unique().tolist()
        ]
        return torch.cat(parts, dim=1)

    return indices


class _Loop(Training):
    """Training with Adam in progress."""

    def __init__(
        self, stack: TrainableStack, rate: float, recorders: Sequence[Recorder], run: Run | None
    ) -> None:
        super().__init__(recorders, run, unit="update")
        self.stack = stack
        self.cuda = next(iter(stack.weights.values())).is_cuda
        self.optimizer = torch.optim.Adam(
            list(stack.weights.values()), lr=rate, fused=True, capturable=self.cuda
        )
        self.replays: dict[tuple[torch.Size, ...], _Replay] = {}
        # one pool for all recordings: only one of them runs at a time
        self.pool = torch.cuda.graph_pool_handle() if self.cuda else None
        self.replaying = False
        tensors, _ = self.restore()
        if tensors:
            self._load(tensors)
        else:
            self.record(stack)

    def update(self, batch: Batch) -> None:
        """Update every seed once."""
        shape = tuple(x.shape for x in batch)
        if not self.replaying:
            loss_S = self._compute(batch)
        elif shape in self.replays:
            loss_S = self.replays[shape](batch)
        else:
            # a shape is worth recording when it comes a second time
            loss_S = self._compute(batch)
            self.replays[shape] = _Replay(self._compute, self.pool)
        self.add(loss_S)

    def checkpoint(self) -> None:
        """Write everything that resuming needs."""
        tensors = {f"model.{name}": weight.detach() for name, weight in self.stack.weights.items()}
        for name, weight in self.stack.weights.items():
            state = self.optimizer.state.get(weight, {})
            tensors |= {f"adam.{name}:{key}": value for key, value in state.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if self.cuda:
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        self.save(tensors)

    def finish(self) -> Tensor:
        """Write the last checkpoint and the traces, and return the losses."""
        self.checkpoint()
        self.replays.clear()  # their memory goes with them, and they refer to this loop
        self.write_traces()
        return self.losses.stacked()

    def _compute(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss_S = self.stack.loss(*batch)
        loss_S.sum().backward()
        self.optimizer.step()
        return loss_S.detach()

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for index, (name, weight) in enumerate(self.stack.weights.items()):
            _copy(weight, tensors.get(f"model.{name}"), name)
            state[index] = under(f"adam.{name}:", tensors)
        self.optimizer.load_state_dict(
            {**self.optimizer.state_dict(), "state": {i: s for i, s in state.items() if s}}
        )
        torch.set_rng_state(tensors["random.cpu"])
        if self.cuda and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])


class _Replay:
    """An update recorded as a CUDA graph when first called, then replayed on new batches."""

    def __init__(self, compute: Callable[[Batch], Tensor], pool: Any) -> None:
        self.compute, self.pool = compute, pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch = ()
        self.loss = torch.zeros(0)

    def __call__(self, batch: Batch) -> Tensor:
        if self.graph is None:
            self.batch = tuple(x.clone() for x in batch)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=self.pool):
                self.loss = self.compute(self.batch)
        for held, given in zip(self.batch, batch, strict=True):
            held.copy_(given)
        self.graph.replay()
        return self.loss


@contextmanager
def _fast_products() -> Generator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copy(weight: Tensor, kept: Tensor | None, name: str) -> None:
    if kept is None or kept.shape != weight.shape:
        came = "none" if kept is None else tuple(kept.shape)
        raise ValueError(
            f"{name} of shape {tuple(weight.shape)} was wanted, got {came}; "
            "resume with a stack of the same config and seeds, or choose another folder."
        )
    with torch.no_grad():
        weight.copy_(kept)
