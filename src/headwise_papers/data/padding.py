"""Padded batches: sequences of different lengths in one tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.text.batching import rounded_up


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
