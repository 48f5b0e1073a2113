"""Batches of sequences of similar length, epoch after epoch."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Epochs(Generic[Batch]):
    """Endless series of batches for `fit`, numbered from 0, epoch after epoch.

    Each epoch has every sequence once, in batches of similar length, shuffled with its own seed.
    Batches may be read in any order; only the epoch of a batch is made.

    >>> ids = [[5, 6], [7], [8, 9], [4]]
    >>> lengths = [len(sequence) for sequence in ids]
    >>> batches = Epochs(lengths, lambda chosen: [ids[i] for i in chosen], tokens=4, seed=0)
    >>> len(batches), batches(0), batches(2)
    (2, [[8, 9], [5, 6]], [[5, 6], [8, 9]])
    """

    def __init__(
        self,
        lengths: Sequence[int],
        collate: Callable[[list[int]], Batch],
        *,
        size: int | None = None,
        tokens: int | None = None,
        multiple: int = 1,
        seed: int,
    ) -> None:
        """Prepare batches; give either `size` or `tokens`, see `batches_by_length`.

        Args:
            lengths: of the sequences.
            collate: makes a batch from the indices of its sequences.
            size: sequences per batch; one batch of an epoch may be smaller.
            tokens: largest number of ids in a batch, padding included.
            multiple: `tokens` counts widths rounded up to a multiple of this.
            seed: of the shuffling.
        """
        self._lengths, self._collate, self._seed = lengths, collate, seed
        self._size, self._tokens, self._multiple = size, tokens, multiple
        self._made = (0, self._epoch(0))  # the epoch used last

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same in all epochs."""
        return len(self._made[1])

    def __call__(self, number: int) -> Batch:
        """Return batch `number`, from 0 on."""
        epoch, place = divmod(number, len(self))
        if self._made[0] != epoch:
            self._made = (epoch, self._epoch(epoch))
        return self._collate(self._made[1][place])

    def _epoch(self, epoch: int) -> list[list[int]]:
        batches = batches_by_length(
            self._lengths,
            size=self._size,
            tokens=self._tokens,
            multiple=self._multiple,
            seed=self._seed * 1_000_003 + epoch,
        )
        return list(batches)


def batches_by_length(
    lengths: Sequence[int],
    *,
    size: int | None = None,
    tokens: int | None = None,
    multiple: int = 1,
    seed: int,
) -> Iterator[list[int]]:
    """Return batches of indices, each index once, with sequences of similar length together.

    `seed` shuffles sequences of equal length and the order of the batches. Give either `size` or
    `tokens`.

    Args:
        lengths: of the sequences.
        size: sequences per batch; one batch may be smaller.
        tokens: largest number of ids in a batch, padding included: rows x longest row. Batches are
            filled from the longest sequence on, so that few shapes occur.
        multiple: `tokens` counts widths rounded up to a multiple of this.
        seed: of the shuffling; use a different one for each epoch.

    >>> sorted(batches_by_length([3, 9, 3, 8], size=2, seed=0), key=min)
    [[2, 0], [3, 1]]
    """
    if not lengths:
        raise ValueError("At least one sequence is needed to make batches, got none.")
    shuffle = random.Random(seed)
    order = list(range(len(lengths)))
    shuffle.shuffle(order)
    order.sort(key=lambda index: lengths[index])  # stable: equal lengths stay shuffled
    if size is not None and tokens is None:
        batches = _of_size(order, size=size)
    elif tokens is not None and size is None:
        batches = _of_tokens(order, lengths, tokens=tokens, multiple=multiple)
    else:
        raise ValueError(f"Give either size or tokens, got size={size} and tokens={tokens}.")
    shuffle.shuffle(batches)
    return iter(batches)


def _of_size(order: list[int], *, size: int) -> list[list[int]]:
    if size < 1:
        raise ValueError(f"A batch holds at least one sequence, got size={size}.")
    return [order[start : start + size] for start in range(0, len(order), size)]


def _of_tokens(
    order: list[int], lengths: Sequence[int], *, tokens: int, multiple: int
) -> list[list[int]]:
    """Split an order of rising length so that rows x width stays within `tokens`."""
    longest = order[-1]
    if rounded_up(lengths[longest], multiple) > tokens:
        raise ValueError(
            f"Sequence {longest} has {lengths[longest]} ids, more than tokens={tokens}; "
            "raise tokens or leave the sequence out."
        )
    batches: list[list[int]] = []
    end = len(order)
    while end > 0:
        rows = tokens // rounded_up(lengths[order[end - 1]], multiple)
        batches.append(order[max(0, end - rows) : end])
        end -= rows
    return batches


def rounded_up(length: int, multiple: int) -> int:
    """Round a length up to a multiple."""
    if multiple < 1:
        raise ValueError(f"Widths are rounded up to a multiple of at least 1, got {multiple}.")
    return -(-length // multiple) * multiple
