"""Texts as numbers in one row, and the blocks of equal length that a model reads of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from headwise_papers.data.byte_pieces import BATCH, BytePieces
from headwise_papers.data.pretraining import Document

__all__ = ["EncodedText", "PackedBlocks", "Pairs", "SegmentPairs", "encode_documents"]


@dataclass(frozen=True, eq=False)
class EncodedText:
    """The pieces of all lines one after another, without marks; none of the lines is empty."""

    ids: Int32[Tensor, " X"]
    line_ends: Int64[Tensor, " Y"]  # after how many pieces each line ends
    document_ends: Int64[Tensor, " Z"]  # the same of documents

    def tensors(self, part: str) -> dict[str, Tensor]:
        """As a file of tensors holds it, under the name of a part."""
        names = ("ids", "line_ends", "document_ends")
        return {f"{part}.{name}": getattr(self, name) for name in names}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], part: str) -> "EncodedText":
        """What `tensors` gave."""
        names = ("ids", "line_ends", "document_ends")
        return EncodedText(*(tensors[f"{part}.{name}"] for name in names))

    def counts(self, vocabulary: int) -> Int64[Tensor, " V"]:
        """How often each piece occurs."""
        return torch.bincount(self.ids, minlength=vocabulary)


def encode_documents(documents: Iterable[Document], pieces: BytePieces) -> EncodedText:
    """Number the pieces of documents; a line without any is left out."""
    whole = list(documents)
    chunks: list[Tensor] = []
    lengths: list[int] = []
    # all lines in one go: batches of the lines of a document would be too small to be fast
    for some in _batched(pieces.encode_all([line for lines in whole for line in lines])):
        lengths += map(len, some)
        chunks.append(torch.tensor([number for ids in some for number in ids], dtype=torch.int32))
    if not sum(lengths):
        raise ValueError("There is no text to number the pieces of; give some lines.")
    ends = torch.tensor(lengths).cumsum(0)
    last_lines = torch.tensor([len(lines) for lines in whole if lines]).cumsum(0) - 1
    # an empty line or document ends where the one before does
    return EncodedText(torch.cat(chunks), _ends(ends), _ends(ends[last_lines]))


def _ends(ends: Tensor) -> Tensor:
    """Ends in order, each once, and none at the beginning."""
    found = torch.unique_consecutive(ends)
    return found[found > 0]


def _batched(rows: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    coming = iter(rows)
    while some := list(islice(coming, BATCH)):
        yield some


@dataclass(frozen=True, eq=False)
class PackedBlocks:
    """Blocks of one length, full of text: no padding.

    As RoBERTa's FULL-SENTENCES (Liu et al., 2019): text follows text, an end mark stands between
    documents, and a block is `begin … end`; only, here a sentence may go on in the next block. What
    does not fill a block at the end of the text is left out.

    Args:
        text: to be cut.
        pieces: whose marks are taken.
        length: of a block, its marks included.
        name: of the text, for messages.
    """

    text: EncodedText
    pieces: BytePieces
    length: int
    name: str = "text"

    def __post_init__(self) -> None:
        _check_length(self, room=self.length - 2)

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, numbers: Int[Tensor, " B"]) -> Int64[Tensor, "B T"]:
        """The blocks of some numbers."""
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
    """Two segments in each block, `begin A end B end`."""

    ids: Int64[Tensor, "B T"]
    token_types: Int64[Tensor, "B T"]  # 0 to the first end mark, then 1
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
        pieces: whose marks are taken.
        length: of a block, its marks included.
        name: of the text, for messages.
    """

    text: EncodedText
    pieces: BytePieces
    length: int
    name: str = "text"

    def __post_init__(self) -> None:
        _check_length(self, room=self.length - 3)

    def __len__(self) -> int:
        return len(self.text.ids) // (self.length - 3)

    def __call__(self, numbers: Int[Tensor, " B"], generator: torch.Generator) -> Pairs:
        """The blocks of some numbers; the cut and B's origin are drawn."""
        room = self.length - 3
        starts_B = numbers * room
        cut_drawn_B, there_drawn_B, drawn_B = torch.rand(3, len(numbers), generator=generator)
        cut_B, at_line_B = self._cuts(starts_B, cut_drawn_B)
        there_B = self._elsewhere(there_drawn_B, at_line_B)
        second_B = torch.where(drawn_B < 0.5, starts_B + cut_B, there_B)
        place_T = torch.arange(self.length)
        first_BT = place_T <= cut_B[:, None]  # the begin mark among them
        origin_BT = torch.where(
            first_BT, starts_B[:, None] - 1 + place_T, (second_B - cut_B)[:, None] - 2 + place_T
        )
        ids_BT = self.text.ids[origin_BT.clamp(0, len(self.text.ids) - 1)].long()
        ids_BT[:, 0], ids_BT[:, -1] = self.pieces.begin, self.pieces.end
        ids_BT.scatter_(1, cut_B[:, None] + 1, self.pieces.end)
        types_BT = (place_T > cut_B[:, None] + 1).long()
        return Pairs(ids_BT, types_BT, (second_B == starts_B + cut_B).long())

    def _cuts(self, starts_B: Tensor, drawn_B: Tensor) -> tuple[Tensor, Tensor]:
        """The length of each A, to the end of a line if there is one, and whether there is."""
        room, ends = self.length - 3, self._inner_ends
        low_B = torch.searchsorted(ends, starts_B, right=True)
        count_B = torch.searchsorted(ends, starts_B + room) - low_B
        chosen_B = (low_B + (drawn_B * count_B).long()).clamp(max=len(ends) - 1)
        found_B = ends[chosen_B] if len(ends) else starts_B
        return torch.where(count_B > 0, found_B - starts_B, room // 2), count_B > 0

    def _elsewhere(self, drawn_B: Tensor, at_line_B: Tensor) -> Int64[Tensor, " B"]:
        """Beginnings of lines, or any places, so far from the end that there is text enough."""
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
        """The ends of lines after which the document goes on."""
        last: Bool[Tensor, " Y"] = torch.isin(self.text.line_ends, self.text.document_ends)
        return self.text.line_ends[~last]


def _check_length(blocks: PackedBlocks | SegmentPairs, *, room: int) -> None:
    length, found = blocks.length, len(blocks.text.ids)
    if length < 8:
        raise ValueError(f"A block has at least 8 pieces, got {length}.")
    if found < room:
        raise ValueError(
            f"The {blocks.name} has {found} pieces, fewer than a block of {length}; make block "
            "smaller or give more text."
        )
