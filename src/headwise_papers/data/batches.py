"""Padded batches: sequences of different lengths in one tensor, and sentence pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.text import batches_by_length, rounded_up
from headwise_papers.data.vocabulary import BOS, EOS

__all__ = ["Padded", "ParallelBatch", "ParallelData", "Ragged", "pad", "parallel_batch"]


@dataclass(frozen=True)
class Padded:
    """Sequences of different lengths in one tensor."""

    ids: Int[Tensor, "*B T"]  # row b holds sequence b, then padding
    lengths: Int[Tensor, "*B"]  # of the sequences


def pad(
    sequences: Sequence[Sequence[int]],
    *,
    value: int = 0,
    multiple: int = 1,
    most: int | None = None,
) -> Padded:
    """Pad sequences to the length of the longest with `value`.

    Args:
        sequences: none of them empty.
        value: token id of padding.
        multiple: the width is rounded up to a multiple of this, so that few widths occur.
        most: largest width to round up to, the maximum length of a model.

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
    width = rounded_up(longest, multiple)
    if most is not None:
        width = max(longest, min(width, most))
    rows = [[*sequence, *[value] * (width - len(sequence))] for sequence in sequences]
    return Padded(torch.tensor(rows, dtype=torch.long), torch.tensor(lengths, dtype=torch.long))


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths concatenated on a device, padded when taken.

    >>> ragged = Ragged.of([[5, 6, 7], [8], [9, 4]])
    >>> ragged.take(torch.tensor([2, 0])).ids
    tensor([[9, 4, 0],
            [5, 6, 7]])
    """

    ids: Int[Tensor, " X"]
    starts: Int[Tensor, " N"]
    lengths: Int[Tensor, " N"]
    sizes: Int[Tensor, " N"]  # the lengths on the CPU, to be read without synchronisation

    @staticmethod
    def of(sequences: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> "Ragged":
        """Put sequences on a device; none may be empty."""
        sizes = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long)
        if not len(sizes) or int(sizes.min()) < 1:
            raise ValueError("At least one sequence, and no empty one, is needed.")
        ids = torch.tensor([number for sequence in sequences for number in sequence])
        starts = sizes.cumsum(0) - sizes
        return Ragged(ids.to(device), starts.to(device), sizes.to(device), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: Int[Tensor, "*X"], *, multiple: int = 1) -> "Padded":
        """Return some sequences, padded with 0 to the longest of them.

        Args:
            chosen: their indices, on the CPU; any shape.
            multiple: the width is rounded up to a multiple of this, so that few widths occur.
        """
        width = rounded_up(int(self.sizes[chosen].max()), multiple)
        there = chosen.to(self.ids.device)
        lengths = self.lengths[there]
        place_T = torch.arange(width, device=self.ids.device)
        real = place_T < lengths[..., None]
        at = (self.starts[there][..., None] + place_T).clamp_(max=len(self.ids) - 1)
        return Padded(self.ids[at].masked_fill_(~real, 0), lengths)


Ids = Sequence[int]


class ParallelBatch(NamedTuple):
    """Pairs of sentences, padded. Sources end with EOS."""

    source: Int[Tensor, "B K"]
    source_lengths: Int[Tensor, " B"]  # EOS included
    target_in: Int[Tensor, "B T"]  # begins with BOS
    target_out: Int[Tensor, "B T"]  # shifted by one token, ends with EOS
    target_lengths: Int[Tensor, " B"]  # of target_in and target_out alike


def parallel_batch(
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    multiple: int = 1,
    most: int | None = None,
) -> ParallelBatch:
    """Add special tokens and padding to the ids of some sentence pairs.

    Args:
        sources: ids of each source sentence.
        targets: ids of each translation.
        multiple: widths are rounded up to a multiple of this, so that few widths occur.
        most: largest width to round up to, a model's `max_length`.
    """
    source = pad([[*ids, EOS] for ids in sources], multiple=multiple, most=most)
    target_in = pad([[BOS, *ids] for ids in targets], multiple=multiple, most=most)
    target_out = pad([[*ids, EOS] for ids in targets], multiple=multiple, most=most)
    return ParallelBatch(
        source.ids, source.lengths, target_in.ids, target_out.ids, target_in.lengths
    )


@dataclass(frozen=True, eq=False)
class ParallelData:
    """Sentence pairs to train on, as an endless numbered series of batches.

    Batch n is the same in every process and after every restart. Each epoch uses every pair once,
    pairs of similar length together, in an order of its own.
    """

    sources: Sequence[Ids]
    targets: Sequence[Ids]
    batch_size: int
    seed: int

    def __call__(self, number: int) -> ParallelBatch:
        """Return batch `number`, from 0 on."""
        per_epoch = -(-len(self.sources) // self.batch_size)
        indices = _epoch(self, number // per_epoch)[number % per_epoch]
        return parallel_batch(
            [self.sources[index] for index in indices], [self.targets[index] for index in indices]
        )


@lru_cache(maxsize=2)
def _epoch(data: ParallelData, epoch: int) -> list[list[int]]:
    lengths = [
        len(source) + len(target) for source, target in zip(data.sources, data.targets, strict=True)
    ]
    seed = data.seed * 1_000_003 + epoch
    return list(batches_by_length(lengths, size=data.batch_size, seed=seed))
