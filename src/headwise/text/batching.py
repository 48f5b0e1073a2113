"""Batches: sequences padded into one tensor, similar lengths together, epoch after epoch."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["Epochs", "Padded", "Ragged", "batches_by_length", "packed_blocks", "pad"]

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Padded:
    """Sequences of different lengths in one tensor."""

    ids: Int[Tensor, "*B T"]  # row b holds sequence b, then padding
    lengths: Int[Tensor, "*B"]  # how many of the row's ids are the sequence


def pad(
    sequences: Sequence[Sequence[int]],
    *,
    value: int = 0,
    multiple: int = 1,
    most: int | None = None,
) -> Padded:
    """Put sequences into one tensor, as wide as the longest, the rest filled with `value`.

    Args:
        sequences: none of them empty.
        value: what fills the rest of a row.
        multiple: the width is rounded up to a multiple of this, so that few widths occur.
        most: padding goes no further than this width, the most that a model takes.

    >>> padded = pad([[5, 6, 7], [8]])
    >>> padded.ids.tolist(), padded.lengths.tolist()
    ([[5, 6, 7], [8, 0, 0]], [3, 1])
    """
    if not sequences:
        raise ValueError("At least one sequence is needed to pad, got none.")
    lengths = [len(sequence) for sequence in sequences]
    if 0 in lengths:
        raise ValueError(f"Sequence {lengths.index(0)} is empty; leave empty sequences out.")
    longest = max(lengths)
    width = _rounded_up(longest, multiple)
    if most is not None:
        width = max(longest, min(width, most))
    rows = [[*sequence, *[value] * (width - len(sequence))] for sequence in sequences]
    return Padded(torch.tensor(rows, dtype=torch.long), torch.tensor(lengths, dtype=torch.long))


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths one after the other, on a device, padded when taken.

    >>> ragged = Ragged.of([[5, 6, 7], [8], [9, 4]])
    >>> ragged.take(torch.tensor([2, 0])).ids
    tensor([[9, 4, 0],
            [5, 6, 7]])
    """

    ids: Int[Tensor, " X"]
    starts: Int[Tensor, " N"]
    lengths: Int[Tensor, " N"]
    sizes: Int[Tensor, " N"]  # the lengths again, on the CPU: looking at them waits for nobody

    @staticmethod
    def of(sequences: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> "Ragged":
        """Put sequences, none of them empty, on a device."""
        sizes = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long)
        if not len(sizes) or int(sizes.min()) < 1:
            raise ValueError("At least one sequence, and no empty one, is needed.")
        ids = torch.tensor([number for sequence in sequences for number in sequence])
        starts = sizes.cumsum(0) - sizes
        return Ragged(ids.to(device), starts.to(device), sizes.to(device), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: Int[Tensor, "*X"], *, multiple: int = 1) -> "Padded":
        """Some sequences, padded with 0 to the longest of them.

        Args:
            chosen: which, on the CPU; any shape.
            multiple: the width is rounded up to a multiple of this, so that few widths occur.
        """
        width = _rounded_up(int(self.sizes[chosen].max()), multiple)
        there = chosen.to(self.ids.device)
        lengths = self.lengths[there]
        place_T = torch.arange(width, device=self.ids.device)
        real = place_T < lengths[..., None]
        at = (self.starts[there][..., None] + place_T).clamp_(max=len(self.ids) - 1)
        return Padded(self.ids[at].masked_fill_(~real, 0), lengths)


def packed_blocks(
    ids: Int[Tensor, " N"], length: int, *, overlap: int = 0, value: int = 0
) -> Padded:
    """Cut one stream of ids into blocks of `length`, one after the other, every id in one of them.

    Only the last block may be shorter, and is padded. For a language model take `overlap=1`, the
    inputs `blocks.ids[:, :-1]` and the targets `blocks.ids[:, 1:]`: each id but the stream's first
    is then a target exactly once.

    Args:
        ids: the stream.
        length: how many ids of its own a block has.
        overlap: so many ids of the next block follow them.
        value: what fills the rest of the last block.

    >>> packed_blocks(torch.arange(1, 8), 3).ids.tolist()
    [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    >>> packed_blocks(torch.arange(1, 8), 3, overlap=1).ids.tolist()
    [[1, 2, 3, 4], [4, 5, 6, 7]]
    """
    if length < 1 or overlap < 0:
        raise ValueError(
            f"A block has a length of at least 1 and an overlap of at least 0, got {length} and "
            f"{overlap}."
        )
    if len(ids) <= overlap:
        raise ValueError(f"More than {overlap} ids are needed to make a block, got {len(ids)}.")
    width, count = length + overlap, -(-(len(ids) - overlap) // length)
    missing = count * length + overlap - len(ids)
    stream = torch.cat([ids, ids.new_full((missing,), value)]) if missing else ids
    lengths = torch.full((count,), width)
    lengths[-1] -= missing
    return Padded(stream.unfold(0, width, length), lengths)


class Epochs(Generic[Batch]):
    """An endless numbered series of batches, as `fit` wants it: epoch after epoch.

    Each epoch has every sequence once, those of similar length together, shuffled by a seed of its
    own. Any number can be asked for at any time: only the epoch it lies in is made.

    >>> ids = [[5, 6], [7], [8, 9], [4]]
    >>> lengths = [len(sequence) for sequence in ids]
    >>> batches = Epochs(lengths, lambda chosen: pad([ids[i] for i in chosen]), tokens=4, seed=0)
    >>> len(batches), batches(0).ids.tolist(), batches(2).ids.tolist()
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
        """Give either `size` or `tokens`, as to `batches_by_length`.

        Args:
            lengths: the length of each sequence.
            collate: from the places of some sequences to their batch.
            size: sequences in a batch; one of an epoch may be smaller.
            tokens: the most ids in a batch, padding included.
            multiple: widths, and with them `tokens`, are meant rounded up to a multiple of this.
            seed: the same seed gives the same series.
        """
        self._lengths, self._collate, self._seed = lengths, collate, seed
        self._size, self._tokens, self._multiple = size, tokens, multiple
        self._made = (0, self._epoch(0))  # the epoch that was last needed

    def __len__(self) -> int:
        """Batches in an epoch; all have as many, since lengths alone decide where to cut."""
        return len(self._made[1])

    def __call__(self, number: int) -> Batch:
        """Batch `number`, from 0 on."""
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
    """Batches of indices, each index once, sequences of similar length together.

    Which of the equally long sequences meet, and the order of the batches, are shuffled by `seed`.
    Give either `size` or `tokens`.

    Args:
        lengths: the length of each sequence.
        size: sequences in a batch; one batch may be smaller.
        tokens: the most ids in a batch, padding included: rows x longest row. Batches are filled
            from the longest sequence on, so that all of one width but the last have as many rows.
        multiple: rows are meant to be padded to a multiple of this; `tokens` counts that too.
        seed: the same seed gives the same batches; give each epoch its own.

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
    """Cut an order of rising length so that rows x width stays within `tokens`."""
    longest = order[-1]
    if _rounded_up(lengths[longest], multiple) > tokens:
        raise ValueError(
            f"Sequence {longest} has {lengths[longest]} ids, more than tokens={tokens}; "
            "raise tokens or leave the sequence out."
        )
    batches: list[list[int]] = []
    end = len(order)
    while end > 0:
        rows = tokens // _rounded_up(lengths[order[end - 1]], multiple)
        batches.append(order[max(0, end - rows) : end])
        end -= rows
    return batches


def _rounded_up(length: int, multiple: int) -> int:
    if multiple < 1:
        raise ValueError(f"Widths are rounded up to a multiple of at least 1, got {multiple}.")
    return -(-length // multiple) * multiple
