"""Pre-training batches: blocks of text with masked or replaced tokens, or pairs of segments.

Batches are numbered from 0, and a number always gives the same batch: blocks in a new order in
every epoch, and other masked places each time (dynamic masking, Liu et al., 2019). In order, for
validation, a block has the same masked places whatever the batch size. Every block of a batch has
the same number of such places, round(0.15 x its length), so that all batches have one shape; the
usual way masks each token with probability 0.15.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Int32, Int64
from torch import Tensor

from headwise_papers.data.pretraining import Document
from headwise_papers.data.subword import BATCH, ByteLevelCodec

__all__ = [
    "EncodedText",
    "MaskedBatch",
    "MaskedBatches",
    "PackedBlocks",
    "PairBatch",
    "PairBatches",
    "Pairs",
    "ReplacedBatch",
    "ReplacedBatches",
    "SegmentPairs",
    "choose_places",
    "encode_documents",
    "hide",
    "replace_tokens",
]


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Token ids of all lines, concatenated, without special tokens; no line is empty."""

    ids: Int32[Tensor, " X"]
    line_ends: Int64[Tensor, " Y"]  # after how many tokens each line ends
    document_ends: Int64[Tensor, " Z"]  # after how many tokens each document ends

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Return its tensors for a file, named after a part."""
        names = ("ids", "line_ends", "document_ends")
        return {f"{part}.{name}": getattr(self, name) for name in names}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], part: str) -> "EncodedText":
        """Return the text that `tensors` described."""
        names = ("ids", "line_ends", "document_ends")
        return EncodedText(*(tensors[f"{part}.{name}"] for name in names))

    def counts(self, vocabulary: int) -> Int64[Tensor, " V"]:
        """Return how often each token occurs."""
        return torch.bincount(self.ids, minlength=vocabulary)


def encode_documents(documents: Iterable[Document], pieces: ByteLevelCodec) -> EncodedText:
    """Encode documents; a line without tokens is left out."""
    whole = list(documents)
    chunks: list[Tensor] = []
    lengths: list[int] = []
    # all lines together: batches of the lines of a document would be too small to be fast
    for some in _batched(pieces.encode_all([line for lines in whole for line in lines])):
        lengths += map(len, some)
        chunks.append(torch.tensor([number for ids in some for number in ids], dtype=torch.int32))
    if not sum(lengths):
        raise ValueError("There is no text to encode; give some lines.")
    ends = torch.tensor(lengths).cumsum(0)
    last_lines = torch.tensor([len(lines) for lines in whole if lines]).cumsum(0) - 1
    # an empty line or document ends where the one before does
    return EncodedText(torch.cat(chunks), _ends(ends), _ends(ends[last_lines]))


def _ends(ends: Tensor) -> Tensor:
    """Return ends in order, each once, and none at the beginning."""
    found = torch.unique_consecutive(ends)
    return found[found > 0]


def _batched(rows: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    coming = iter(rows)
    while some := list(islice(coming, BATCH)):
        yield some


@dataclass(frozen=True, eq=False)
class PackedBlocks:
    """Blocks of one length, full of text: no padding.

    As RoBERTa's FULL-SENTENCES (Liu et al., 2019): text follows text, an end token stands between
    documents, and a block is `begin … end`; only, here a sentence may continue in the next block. A
    block that the end of the text does not fill is left out.

    Args:
        text: to be cut.
        pieces: codec of the text.
        length: of a block, its special tokens included.
        name: of the text, for messages.
    """

    text: EncodedText
    pieces: ByteLevelCodec
    length: int
    name: str = "text"

    def __post_init__(self) -> None:
        _check_length(self, room=self.length - 2)

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, numbers: Int[Tensor, " B"]) -> Int64[Tensor, "B T"]:
        """Return the blocks of some numbers."""
        blocks = torch.empty(len(numbers), self.length, dtype=torch.int64)
        blocks[:, 0], blocks[:, -1] = self.pieces.begin, self.pieces.end
        blocks[:, 1:-1] = self._rows[numbers]
        return blocks

    @cached_property
    def _rows(self) -> Int32[Tensor, "N T"]:
        ids, inner_ends = self.text.ids, self.text.document_ends[:-1]
        stream = torch.full((len(ids) + len(inner_ends),), self.pieces.end, dtype=torch.int32)
        is_piece = torch.ones(len(stream), dtype=torch.bool)
        is_piece[inner_ends + torch.arange(len(inner_ends))] = False
        stream[is_piece] = ids
        room = self.length - 2
        count = len(stream) // room
        return stream[: count * room].view(count, room)


class Pairs(NamedTuple):
    """Blocks of two segments each, `begin A end B end`."""

    ids: Int64[Tensor, "B T"]
    token_types: Int64[Tensor, "B T"]  # 0 to the first end token, then 1
    follows: Int64[Tensor, " B"]  # 1 where B really follows A, 0 where it is from elsewhere


@dataclass(frozen=True, eq=False)
class SegmentPairs:
    """Blocks of two segments, of which the second follows the first in half of the cases.

    As BERT's next-sentence prediction (Devlin et al., 2019): segments are many lines long, A ends
    with a line, and a B that does not follow is text of the same length from elsewhere, from the
    beginning of a line on. Unlike BERT's they run over the ends of documents, never from A to B,
    so that every block is full: no padding. A stretch of text without the end of a line inside a
    document is cut in its middle, and its B from elsewhere begins anywhere too.

    Args:
        text: to be cut.
        pieces: codec of the text.
        length: of a block, its special tokens included.
        name: of the text, for messages.
    """

    text: EncodedText
    pieces: ByteLevelCodec
    length: int
    name: str = "text"

    def __post_init__(self) -> None:
        _check_length(self, room=self.length - 3)

    def __len__(self) -> int:
        return len(self.text.ids) // (self.length - 3)

    def __call__(self, numbers: Int[Tensor, " B"], generator: torch.Generator) -> Pairs:
        """Return the blocks of some numbers; the cut and B's origin are drawn."""
        room = self.length - 3
        starts_B = numbers * room
        cut_drawn_B, there_drawn_B, drawn_B = torch.rand(3, len(numbers), generator=generator)
        cut_B, at_line_B = self._cuts(starts_B, cut_drawn_B)
        there_B = self._elsewhere(there_drawn_B, at_line_B)
        second_B = torch.where(drawn_B < 0.5, starts_B + cut_B, there_B)
        place_T = torch.arange(self.length)
        first_BT = place_T <= cut_B[:, None]  # the begin token among them
        origin_BT = torch.where(
            first_BT, starts_B[:, None] - 1 + place_T, (second_B - cut_B)[:, None] - 2 + place_T
        )
        ids_BT = self.text.ids[origin_BT.clamp(0, len(self.text.ids) - 1)].long()
        ids_BT[:, 0], ids_BT[:, -1] = self.pieces.begin, self.pieces.end
        ids_BT.scatter_(1, cut_B[:, None] + 1, self.pieces.end)
        types_BT = (place_T > cut_B[:, None] + 1).long()
        return Pairs(ids_BT, types_BT, (second_B == starts_B + cut_B).long())

    def _cuts(self, starts_B: Tensor, drawn_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the length of each A, to a line's end if there is one, and whether there is."""
        room, ends = self.length - 3, self._inner_ends
        low_B = torch.searchsorted(ends, starts_B, right=True)
        count_B = torch.searchsorted(ends, starts_B + room) - low_B
        chosen_B = (low_B + (drawn_B * count_B).long()).clamp(max=len(ends) - 1)
        found_B = ends[chosen_B] if len(ends) else starts_B
        return torch.where(count_B > 0, found_B - starts_B, room // 2), count_B > 0

    def _elsewhere(self, drawn_B: Tensor, at_line_B: Tensor) -> Int64[Tensor, " B"]:
        """Return beginnings of lines, or any places, with enough text after them."""
        last = len(self.text.ids) - (self.length - 3)
        starts = self._line_starts
        count = int(torch.searchsorted(starts, torch.tensor(last), right=True))
        anywhere_B = (drawn_B * (last + 1)).long()
        return torch.where(at_line_B, starts[(drawn_B * count).long()], anywhere_B)

    @cached_property
    def _line_starts(self) -> Int64[Tensor, " Y"]:
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.text.line_ends[:-1]])

    @cached_property
    def _inner_ends(self) -> Int64[Tensor, " Y"]:
        """Ends of lines inside documents."""
        last: Bool[Tensor, " Y"] = torch.isin(self.text.line_ends, self.text.document_ends)
        return self.text.line_ends[~last]


def _check_length(blocks: PackedBlocks | SegmentPairs, *, room: int) -> None:
    length, found = blocks.length, len(blocks.text.ids)
    if length < 8:
        raise ValueError(f"A block has at least 8 tokens, got {length}.")
    if found < room:
        raise ValueError(
            f"The {blocks.name} has {found} tokens, fewer than a block of {length}; make block "
            "smaller or give more text."
        )


Blocks = TypeVar("Blocks", PackedBlocks, SegmentPairs)
HIDDEN, RANDOM = 0.8, 0.1  # shares of the chosen places that are masked and that get any token


class MaskedBatch(NamedTuple):
    """Blocks with masked tokens."""

    ids: Int64[Tensor, "B T"]
    places: Int64[Tensor, " N"]  # in the flattened blocks
    targets: Int64[Tensor, " N"]  # original tokens


class PairBatch(NamedTuple):
    """Blocks of two segments with masked tokens."""

    ids: Int64[Tensor, "B T"]
    places: Int64[Tensor, " N"]
    targets: Int64[Tensor, " N"]
    token_types: Int64[Tensor, "B T"]
    follows: Int64[Tensor, " B"]  # whether the second follows the first, 0 or 1


class ReplacedBatch(NamedTuple):
    """Blocks with some tokens replaced."""

    ids: Int64[Tensor, "B T"]
    replaced: Bool[Tensor, "B T"]  # whether a token differs from the text


def choose_places(
    ids: Int64[Tensor, "B T"], *, marks: int, share: float, generator: torch.Generator
) -> Int64[Tensor, " N"]:
    """Draw round(share x T) places of every block, no special tokens, in the flattened blocks.

    Args:
        ids: blocks; each has at least that many ordinary tokens.
        marks: number of special tokens, which have the lowest ids.
        share: of the places.
        generator: of random numbers.
    """
    rows, length = ids.shape
    drawn_BT = torch.rand(rows, length, generator=generator).masked_fill_(ids < marks, -1.0)
    chosen_BN = drawn_BT.topk(round(share * length), dim=1).indices.sort(dim=1).values
    return (chosen_BN + torch.arange(rows)[:, None] * length).flatten()


def hide(
    ids: Int64[Tensor, "B T"],
    places: Int64[Tensor, " N"],
    *,
    pieces: ByteLevelCodec,
    generator: torch.Generator,
) -> MaskedBatch:
    """Mask tokens: 80 % of the places get the mask, 10 % any token, 10 % stay as they are.

    Args:
        ids: blocks, left as they are.
        places: in the flattened blocks.
        pieces: codec, which knows the mask and the special tokens.
        generator: of random numbers.
    """
    hidden = ids.flatten().clone()
    targets = hidden[places]
    drawn_N = torch.rand(len(places), generator=generator)
    any_N = torch.randint(pieces.marks, len(pieces), (len(places),), generator=generator)
    changed_N = torch.where(drawn_N < HIDDEN, pieces.mask, targets)
    changed_N = torch.where(drawn_N >= 1 - RANDOM, any_N, changed_N)
    hidden[places] = changed_N
    return MaskedBatch(hidden.view_as(ids), places, targets)


def replace_tokens(
    ids: Int64[Tensor, "B T"],
    places: Int64[Tensor, " N"],
    cumulative: Float[Tensor, " V"],
    *,
    generator: torch.Generator,
) -> ReplacedBatch:
    """Replace tokens by ones from one distribution: ELECTRA with a unigram generator.

    A token that equals the original one counts as not replaced.

    Args:
        ids: blocks, left as they are.
        places: in the flattened blocks.
        cumulative: how many tokens of the text have this id or a lower one, as float64.
        generator: of random numbers.
    """
    drawn_N = torch.rand(len(places), generator=generator, dtype=torch.float64) * cumulative[-1]
    changed = ids.flatten().clone()
    changed[places] = torch.searchsorted(cumulative, drawn_N, right=True)
    changed = changed.view_as(ids)
    return ReplacedBatch(changed, changed != ids)


def _seeded(number: int, seed: int) -> torch.Generator:
    # a prime between seeds, else batch 1 of seed 0 would be batch 0 of seed 1; 32 bits are kept
    return torch.Generator().manual_seed((number + seed * 1_000_000_007) % 2**32)


def _joined(parts: Sequence[MaskedBatch] | Sequence[PairBatch]) -> list[Tensor]:
    """Concatenate the tensors of batches; places are counted on."""
    before = itertools.accumulate((part.ids.numel() for part in parts), initial=0)
    moved = [part._replace(places=part.places + b) for part, b in zip(parts, before, strict=False)]
    return [torch.cat(tensors) for tensors in zip(*moved, strict=True)]


@dataclass(frozen=True, eq=False)
class _Batches(Generic[Blocks]):
    """Base of the three kinds of batches.

    Args:
        blocks: of text.
        batch_size: blocks in a batch.
        seed: of order, places and replacements.
        share: of the places of each block that are masked or replaced.
        shuffled: in a new order in every epoch; else in order, and once: the last may be smaller.
    """

    blocks: Blocks
    batch_size: int
    seed: int = 0
    share: float = 0.15
    shuffled: bool = True

    def __len__(self) -> int:
        return math.ceil(len(self.blocks) / self.batch_size)

    def block_numbers(self, number: int) -> Int64[Tensor, " B"]:
        """Return the blocks of a batch; epochs follow each other without a gap."""
        count, first = len(self.blocks), number * self.batch_size
        end = first + self.batch_size
        if not self.shuffled:
            return torch.arange(first, min(end, count))
        epochs = range(first // count, (end - 1) // count + 1)
        generators = (_seeded(2 * epoch + 1, self.seed) for epoch in epochs)
        orders = torch.cat([torch.randperm(count, generator=one) for one in generators])
        return orders[first - epochs.start * count : end - epochs.start * count]

    def _drawn(self, number: int) -> Iterator[tuple[Int64[Tensor, " B"], torch.Generator]]:
        """Yield blocks of a batch with their generator: one per block, if in order.

        Shuffled blocks share one generator, which is faster.
        """
        blocks = self.block_numbers(number)
        if self.shuffled:
            yield blocks, _seeded(2 * number, self.seed)
            return
        for block in blocks:
            yield block[None], _seeded(2 * int(block), self.seed)

    def _places(self, ids: Int64[Tensor, "B T"], generator: torch.Generator) -> Tensor:
        marks = self.blocks.pieces.marks
        return choose_places(ids, marks=marks, share=self.share, generator=generator)


class MaskedBatches(_Batches[PackedBlocks]):
    """Masked language modelling over packed blocks: a function from a number to a batch."""

    def __call__(self, number: int) -> MaskedBatch:
        """Return batch `number`, from 0 on."""
        return MaskedBatch(*_joined([self._some(*some) for some in self._drawn(number)]))

    def _some(self, numbers: Int64[Tensor, " B"], generator: torch.Generator) -> MaskedBatch:
        ids = self.blocks(numbers)
        places = self._places(ids, generator)
        return hide(ids, places, pieces=self.blocks.pieces, generator=generator)


class PairBatches(_Batches[SegmentPairs]):
    """Masked language modelling with next-sentence prediction, over pairs of segments."""

    def __call__(self, number: int) -> PairBatch:
        """Return batch `number`, from 0 on."""
        return PairBatch(*_joined([self._some(*some) for some in self._drawn(number)]))

    def _some(self, numbers: Int64[Tensor, " B"], generator: torch.Generator) -> PairBatch:
        pairs = self.blocks(numbers, generator)
        places = self._places(pairs.ids, generator)
        hidden = hide(pairs.ids, places, pieces=self.blocks.pieces, generator=generator)
        return PairBatch(*hidden, pairs.token_types, pairs.follows)


@dataclass(frozen=True, eq=False)
class ReplacedBatches(_Batches[PackedBlocks]):
    """Replaced-token detection over packed blocks; `counts` says how common each token is."""

    counts: Int[Tensor, " V"] = field(kw_only=True)

    def __call__(self, number: int) -> ReplacedBatch:
        """Return batch `number`, from 0 on."""
        some = [self._some(*some) for some in self._drawn(number)]
        return ReplacedBatch(*map(torch.cat, zip(*some, strict=True)))

    def _some(self, numbers: Int64[Tensor, " B"], generator: torch.Generator) -> ReplacedBatch:
        ids = self.blocks(numbers)
        places = self._places(ids, generator)
        return replace_tokens(ids, places, self._cumulative, generator=generator)

    @cached_property
    def _cumulative(self) -> Float[Tensor, " V"]:
        counts_V = self.counts.double()
        counts_V[: self.blocks.pieces.marks] = 0
        return counts_V.cumsum(0)
