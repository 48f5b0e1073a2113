"""What a model is to guess: hidden pieces, replaced pieces, whether one text follows another.

Batches are numbered from 0, and a number always gives the same batch: blocks in a new order at
every pass through the text, and other hidden places each time (dynamic masking, Liu et al., 2019).
In order, to validate, a block has the same hidden places whatever the size of batches.
Every block of a batch has the same number of such places, round(0.15 x its length), so that all
batches have one shape; the usual way hides each piece with probability 0.15.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from headwise_papers.data.byte_pieces import BytePieces
from headwise_papers.data.packing import PackedBlocks, SegmentPairs

__all__ = [
    "MaskedBatch",
    "MaskedBatches",
    "PairBatch",
    "PairBatches",
    "ReplacedBatch",
    "ReplacedBatches",
    "choose_places",
    "hide",
    "replace_pieces",
]

Blocks = TypeVar("Blocks", PackedBlocks, SegmentPairs)
HIDDEN, RANDOM = 0.8, 0.1  # shares of the chosen places that are masked and that get any piece


class MaskedBatch(NamedTuple):
    """Blocks with hidden pieces."""

    ids: Int64[Tensor, "B T"]
    places: Int64[Tensor, " N"]  # in the flattened blocks
    targets: Int64[Tensor, " N"]  # what stood there


class PairBatch(NamedTuple):
    """The same of two segments in each block."""

    ids: Int64[Tensor, "B T"]
    places: Int64[Tensor, " N"]
    targets: Int64[Tensor, " N"]
    token_types: Int64[Tensor, "B T"]
    follows: Int64[Tensor, " B"]  # whether the second follows the first, 0 or 1


class ReplacedBatch(NamedTuple):
    """Blocks some of whose pieces were replaced."""

    ids: Int64[Tensor, "B T"]
    replaced: Bool[Tensor, "B T"]  # whether another piece stands there than in the text


def choose_places(
    ids: Int64[Tensor, "B T"], *, marks: int, share: float, generator: torch.Generator
) -> Int64[Tensor, " N"]:
    """Draw round(share x T) places of every block, none of them a mark, in the flattened blocks.

    Args:
        ids: blocks; at least so many of their pieces are no marks.
        marks: how many of the first pieces are marks.
        share: of the places.
        generator: where the random numbers come from.
    """
    rows, length = ids.shape
    drawn_BT = torch.rand(rows, length, generator=generator).masked_fill_(ids < marks, -1.0)
    chosen_BN = drawn_BT.topk(round(share * length), dim=1).indices.sort(dim=1).values
    return (chosen_BN + torch.arange(rows)[:, None] * length).flatten()


def hide(
    ids: Int64[Tensor, "B T"],
    places: Int64[Tensor, " N"],
    *,
    pieces: BytePieces,
    generator: torch.Generator,
) -> MaskedBatch:
    """Hide what stands at some places: 80 % get the mask, 10 % any piece, 10 % stay as they are.

    Args:
        ids: blocks, left as they are.
        places: in the flattened blocks.
        pieces: which piece is the mask, and which are no marks.
        generator: where the random numbers come from.
    """
    hidden = ids.flatten().clone()
    targets = hidden[places]
    drawn_N = torch.rand(len(places), generator=generator)
    any_N = torch.randint(pieces.marks, len(pieces), (len(places),), generator=generator)
    changed_N = torch.where(drawn_N < HIDDEN, pieces.mask, targets)
    changed_N = torch.where(drawn_N >= 1 - RANDOM, any_N, changed_N)
    hidden[places] = changed_N
    return MaskedBatch(hidden.view_as(ids), places, targets)


def replace_pieces(
    ids: Int64[Tensor, "B T"],
    places: Int64[Tensor, " N"],
    cumulative: Float[Tensor, " V"],
    *,
    generator: torch.Generator,
) -> ReplacedBatch:
    """Put pieces drawn from one distribution at some places: ELECTRA with a unigram generator.

    A piece that happens to be the one that stood there counts as not replaced.

    Args:
        ids: blocks, left as they are.
        places: in the flattened blocks.
        cumulative: how many of the text's pieces have this number or a lower one, as float64.
        generator: where the random numbers come from.
    """
    drawn_N = torch.rand(len(places), generator=generator, dtype=torch.float64) * cumulative[-1]
    changed = ids.flatten().clone()
    changed[places] = torch.searchsorted(cumulative, drawn_N, right=True)
    changed = changed.view_as(ids)
    return ReplacedBatch(changed, changed != ids)


@dataclass(frozen=True)
class _Numbers:
    """Which blocks a batch has, and its random numbers."""

    blocks: int
    batch_size: int
    seed: int
    shuffled: bool

    @property
    def per_pass(self) -> int:
        """Batches until all blocks were seen."""
        return math.ceil(self.blocks / self.batch_size)

    def of(self, number: int) -> Int64[Tensor, " B"]:
        """The blocks of a batch; the passes through the text follow each other without a gap."""
        first, end = number * self.batch_size, (number + 1) * self.batch_size
        if not self.shuffled:
            return torch.arange(first, min(end, self.blocks))
        passes = range(first // self.blocks, (end - 1) // self.blocks + 1)
        orders = torch.cat([self._order(number) for number in passes])
        skipped = passes.start * self.blocks
        return orders[first - skipped : end - skipped]

    def drawn(self, number: int) -> Iterator[tuple[Int64[Tensor, " B"], torch.Generator]]:
        """The blocks of a batch with where their random numbers come from: a block's own, in order.

        Shuffled blocks share one generator, which is faster.
        """
        blocks = self.of(number)
        if self.shuffled:
            yield blocks, _seeded(2 * number, self.seed)
            return
        for block in blocks:
            yield block[None], _seeded(2 * int(block), self.seed)

    def _order(self, number: int) -> Tensor:
        return torch.randperm(self.blocks, generator=_seeded(2 * number + 1, self.seed))


def _seeded(number: int, seed: int) -> torch.Generator:
    # a prime between seeds, else batch 1 of seed 0 would be batch 0 of seed 1; 32 bits are kept
    return torch.Generator().manual_seed((number + seed * 1_000_000_007) % 2**32)


def _joined(parts: Sequence[MaskedBatch] | Sequence[PairBatch]) -> list[Tensor]:
    """The tensors of batches one after another; places go on counting."""
    before = itertools.accumulate((part.ids.numel() for part in parts), initial=0)
    moved = [part._replace(places=part.places + b) for part, b in zip(parts, before, strict=False)]
    return [torch.cat(tensors) for tensors in zip(*moved, strict=True)]


@dataclass(frozen=True, eq=False)
class _Batches(Generic[Blocks]):
    """What the three kinds of batches share.

    Args:
        blocks: of text.
        batch_size: blocks in a batch.
        seed: of order, places and what is put there.
        share: of the places of each block that are to be guessed.
        shuffled: in a new order at every pass; else in order, and once: the last may be smaller.
    """

    blocks: Blocks
    batch_size: int
    seed: int = 0
    share: float = 0.15
    shuffled: bool = True

    def __len__(self) -> int:
        return self._numbers.per_pass

    @property
    def _numbers(self) -> _Numbers:
        return _Numbers(len(self.blocks), self.batch_size, self.seed, self.shuffled)

    def _places(self, ids: Int64[Tensor, "B T"], generator: torch.Generator) -> Tensor:
        marks = self.blocks.pieces.marks
        return choose_places(ids, marks=marks, share=self.share, generator=generator)


class MaskedBatches(_Batches[PackedBlocks]):
    """Masked language modelling over packed blocks: a function from a number to a batch."""

    def __call__(self, number: int) -> MaskedBatch:
        """Batch `number`, from 0 on."""
        return MaskedBatch(*_joined([self._some(*some) for some in self._numbers.drawn(number)]))

    def _some(self, numbers: Int64[Tensor, " B"], generator: torch.Generator) -> MaskedBatch:
        ids = self.blocks(numbers)
        places = self._places(ids, generator)
        return hide(ids, places, pieces=self.blocks.pieces, generator=generator)


class PairBatches(_Batches[SegmentPairs]):
    """The same over pairs of segments, for next-sentence prediction beside."""

    def __call__(self, number: int) -> PairBatch:
        """Batch `number`, from 0 on."""
        return PairBatch(*_joined([self._some(*some) for some in self._numbers.drawn(number)]))

    def _some(self, numbers: Int64[Tensor, " B"], generator: torch.Generator) -> PairBatch:
        pairs = self.blocks(numbers, generator)
        places = self._places(pairs.ids, generator)
        hidden = hide(pairs.ids, places, pieces=self.blocks.pieces, generator=generator)
        return PairBatch(*hidden, pairs.token_types, pairs.follows)


@dataclass(frozen=True, eq=False)
class ReplacedBatches(_Batches[PackedBlocks]):
    """Replaced-token detection over packed blocks; `counts` says how common each piece is."""

    counts: Int[Tensor, " V"] = field(kw_only=True)

    def __call__(self, number: int) -> ReplacedBatch:
        """Batch `number`, from 0 on."""
        some = [self._some(*some) for some in self._numbers.drawn(number)]
        return ReplacedBatch(*map(torch.cat, zip(*some, strict=True)))

    def _some(self, numbers: Int64[Tensor, " B"], generator: torch.Generator) -> ReplacedBatch:
        ids = self.blocks(numbers)
        places = self._places(ids, generator)
        return replace_pieces(ids, places, self._cumulative, generator=generator)

    @cached_property
    def _cumulative(self) -> Float[Tensor, " V"]:
        counts_V = self.counts.double()
        counts_V[: self.blocks.pieces.marks] = 0
        return counts_V.cumsum(0)
