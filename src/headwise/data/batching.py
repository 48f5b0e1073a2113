"""Batches: sequences padded into one tensor, and sequences of similar length put together."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["Padded", "Ragged", "batches_by_length", "pad"]


@dataclass(frozen=True)
class Padded:
    """Sequences of different lengths in one tensor."""

    ids: Int[Tensor, "*B T"]  # row b holds sequence b, then padding
    lengths: Int[Tensor, "*B"]  # how many of the row's ids are the sequence


def pad(sequences: Sequence[Sequence[int]], *, value: int = 0) -> Padded:
    """Put sequences into one tensor, as wide as the longest, the rest filled with `value`.

    >>> padded = pad([[5, 6, 7], [8]])
    >>> padded.ids.tolist(), padded.lengths.tolist()
    ([[5, 6, 7], [8, 0, 0]], [3, 1])
    """
    if not sequences:
        raise ValueError("At least one sequence is needed to pad, got none.")
    lengths = [len(sequence) for sequence in sequences]
    if 0 in lengths:
        raise ValueError(f"Sequence {lengths.index(0)} is empty; leave empty sequences out.")
    width = max(lengths)
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
        width = -(-int(self.sizes[chosen].max()) // multiple) * multiple
        there = chosen.to(self.ids.device)
        lengths = self.lengths[there]
        place_T = torch.arange(width, device=self.ids.device)
        real = place_T < lengths[..., None]
        at = (self.starts[there][..., None] + place_T).clamp_(max=len(self.ids) - 1)
        return Padded(self.ids[at].masked_fill_(~real, 0), lengths)


def batches_by_length(
    lengths: Sequence[int], *, size: int | None = None, tokens: int | None = None, seed: int
) -> Iterator[list[int]]:
    """Batches of indices, each index once, sequences of similar length together.

    Which of the equally long sequences meet, and the order of the batches, are shuffled by `seed`.
    Give either `size` or `tokens`.

    Args:
        lengths: the length of each sequence.
        size: sequences in a batch; one batch may be smaller.
        tokens: the most ids in a batch, padding included: rows x longest row.
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
        batches = _of_tokens(order, lengths, tokens=tokens)
    else:
        raise ValueError(f"Give either size or tokens, got size={size} and tokens={tokens}.")
    shuffle.shuffle(batches)
    return iter(batches)


def _of_size(order: list[int], *, size: int) -> list[list[int]]:
    if size < 1:
        raise ValueError(f"A batch holds at least one sequence, got size={size}.")
    return [order[start : start + size] for start in range(0, len(order), size)]


def _of_tokens(order: list[int], lengths: Sequence[int], *, tokens: int) -> list[list[int]]:
    """Cut an order of rising length so that rows x longest row stays within `tokens`."""
    longest = order[-1]
    if lengths[longest] > tokens:
        raise ValueError(
            f"Sequence {longest} has {lengths[longest]} ids, more than tokens={tokens}; "
            "raise tokens or leave the sequence out."
        )
    batches: list[list[int]] = [[]]
    for index in order:
        if (len(batches[-1]) + 1) * lengths[index] > tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
