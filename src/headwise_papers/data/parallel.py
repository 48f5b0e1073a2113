"""Sentence pairs as batches for a translator."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from headwise.text.batching import batches_by_length
from headwise_papers.data.padding import pad
from headwise_papers.data.vocabulary import BOS, EOS

__all__ = ["ParallelBatch", "ParallelData", "parallel_batch"]

Ids = Sequence[int]


class ParallelBatch(NamedTuple):
    """Pairs of sentences, padded. Sources end with the end mark."""

    source: Int[Tensor, "B K"]
    source_lengths: Int[Tensor, " B"]  # the end mark included
    target_in: Int[Tensor, "B T"]  # begins with the beginning mark
    target_out: Int[Tensor, "B T"]  # the same, one word later, up to the end mark
    target_lengths: Int[Tensor, " B"]  # of target_in and target_out alike


def parallel_batch(
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    multiple: int = 1,
    most: int | None = None,
) -> ParallelBatch:
    """Put marks and padding around the ids of some sentence pairs.

    Args:
        sources: ids of each source sentence.
        targets: ids of each translation.
        multiple: widths are rounded up to a multiple of this, so that few widths occur.
        most: padding goes no further than this width, a model's `max_length`.
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
        """Batch `number`, from 0 on."""
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
