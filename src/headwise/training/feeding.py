"""Batches on their way: the next is made, and pinned for a GPU, while one is used."""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

import torch
from torch import Tensor

Batch = TypeVar("Batch")


def feed(
    batches: Callable[[int], Batch], numbers: Iterable[int], *, device: torch.device
) -> Iterator[Batch]:
    """The batches of some numbers, in order, still where `batches` made them.

    For a GPU each is made on a thread while the one before is used, in memory from which it can be
    moved without waiting. On a CPU they are made when they are asked for: a thread would take the
    cores from the training.
    """
    if device.type != "cuda":
        return map(batches, numbers)
    return one_ahead(lambda number: pinned(batches(number)), numbers)


def one_ahead(make: Callable[[int], Batch], numbers: Iterable[int]) -> Generator[Batch]:
    """make(number) for each number, each made on a thread while the one before is used.

    >>> list(one_ahead(lambda number: number * number, range(4)))
    [0, 1, 4, 9]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        before: Future[Batch] | None = None
        for number in numbers:
            coming = thread.submit(make, number)
            if before is not None:
                yield before.result()
            before = coming
        if before is not None:
            yield before.result()


def pinned(batch: Batch) -> Batch:
    """The batch with its tensors on the CPU copied to page-locked memory."""
    from accelerate.utils.operations import recursively_apply

    def pin(tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if tensor.device.type == "cpu" else tensor

    return cast(Batch, recursively_apply(pin, batch))
