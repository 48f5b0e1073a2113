"""Words: which positions of a batch make up which word, and how pieces are put together."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["Merge", "Words"]


@dataclass(frozen=True, eq=False)
class Merge:
    """How to add up the pieces of words along one axis, in place.

    Args:
        steps: (source, target, real) of second pieces, of third pieces, and so on, each (B, C):
            in one step no target comes twice, so that the order of adding is always the same.
        lead: (B, T), 1 where a word's sum will lie or where there is no word, 0 at other pieces.
        pieces: (B, T), how many pieces each word has; 1 where there is no word.
    """

    steps: list[tuple[Tensor, Tensor, Tensor]]
    lead: Tensor
    pieces: Tensor

    def add_rows(self, weights_BHQK: Tensor) -> None:
        """Each word's row becomes the mean of its pieces' rows, at its lead."""
        heads, n_keys = weights_BHQK.shape[1], weights_BHQK.shape[3]
        for source_BC, target_BC, real_BC in self.steps:
            shape = (-1, heads, -1, n_keys)
            piece_BHCK = weights_BHQK.gather(2, source_BC[:, None, :, None].expand(shape))
            piece_BHCK *= real_BC[:, None, :, None].to(piece_BHCK.dtype)
            weights_BHQK.scatter_add_(2, target_BC[:, None, :, None].expand(shape), piece_BHCK)
        weights_BHQK /= self.pieces[:, None, :, None].to(weights_BHQK.dtype)

    def add_columns(self, weights_BHQK: Tensor) -> None:
        """Each word's column becomes the sum of its pieces' columns, at its lead; 0 elsewhere."""
        heads, n_queries = weights_BHQK.shape[1:3]
        for source_BC, target_BC, real_BC in self.steps:
            shape = (-1, heads, n_queries, -1)
            piece_BHQC = weights_BHQK.gather(3, source_BC[:, None, None].expand(shape))
            piece_BHQC *= real_BC[:, None, None].to(piece_BHQC.dtype)
            weights_BHQK.scatter_add_(3, target_BC[:, None, None].expand(shape), piece_BHQC)
        weights_BHQK *= self.lead[:, None, None].to(weights_BHQK.dtype)


def _no_merges() -> dict[tuple[object, ...], Merge]:
    return {}


@dataclass(frozen=True, eq=False)
class Words:
    """Which word each position of a stack belongs to.

    Args:
        of: (B, T), the number of the word in its sentence, from 0 on and never falling; -1 at
            padding and special tokens (end of sentence, separators), which are no words.
    """

    of: Int[Tensor, "B T"]
    _merges: dict[tuple[object, ...], Merge] = field(
        default_factory=_no_merges, init=False, repr=False
    )

    @staticmethod
    def each(words: Bool[Tensor, "B T"]) -> "Words":
        """Every position is a word of its own where `words` holds, and none elsewhere."""
        number_BT = words.long().cumsum(dim=1) - 1
        return Words(torch.where(words, number_BT, -1))

    def to(self, device: torch.device) -> "Words":
        """The same words on a device."""
        return self if self.of.device == device else Words(self.of.to(device))

    @property
    def most(self) -> int:
        """Words of the longest sentence."""
        return self.present.shape[1]

    @cached_property
    def on_host(self) -> Tensor:
        """`of` on the CPU, where plans are made, so that no device is waited for twice."""
        return self.of.cpu()

    @cached_property
    def present(self) -> Tensor:
        """(B, W), on the CPU: True where a sentence has a word of that number, and pieces of it."""
        return _pieces(self.on_host) > 0

    @cached_property
    def last(self) -> Tensor:
        """(B, W), on the CPU: the position of each word's last piece; 0 where there is no word."""
        return _ends(self.on_host, "last")

    @cached_property
    def first(self) -> Tensor:
        """(B, W), on the CPU: the position of each word's first piece; 0 where there is no word."""
        return _ends(self.on_host, "first")

    @cached_property
    def first_word(self) -> Tensor:
        """(B,), on the CPU: the number of each sentence's first word; 0 where it has none."""
        return (
            self.present.to(torch.int8).argmax(dim=1)
            if self.most
            else torch.zeros(len(self.on_host), dtype=torch.long)
        )

    @cached_property
    def are_whole(self) -> bool:
        """No word has more than one piece."""
        return not bool((_pieces(self.on_host) > 1).any())

    @cached_property
    def are_everything(self) -> bool:
        """Every position is a word of its own: there is nothing to merge and nothing special."""
        place_T = torch.arange(self.on_host.shape[1])
        return bool((self.on_host == self.on_host[:, :1].clamp(min=0) + place_T).all())

    def special(self, batch: slice, positions: slice) -> Tensor | None:
        """(b, t), True at what is no word; None where all are words."""
        is_there = bool((self.on_host[batch, positions] < 0).any())
        return self.of[batch, positions] < 0 if is_there else None

    def reach_back(self, batch: slice, rows: slice) -> int:
        """The first position of the words that end in some range, or the range's own start."""
        if self.are_whole or rows.start == 0:
            return rows.start
        last_BW = self.last[batch]
        ends_BW = self.present[batch] & (last_BW >= rows.start) & (last_BW < rows.stop)
        starts = self.first[batch][ends_BW]
        return min(rows.start, int(starts.min())) if len(starts) else rows.start

    def merge(
        self, batch: slice, positions: slice, *, lead: Literal["first", "last"]
    ) -> Merge | None:
        """How to add up the pieces among some positions; None where every word is whole."""
        if self.are_whole:
            return None
        key = (batch.start, batch.stop, positions.start, positions.stop, lead)
        if key not in self._merges:
            part_BT = self.on_host[batch, positions]
            self._merges[key] = _planned(part_BT, lead, self.of.device)
        return self._merges[key]


def _pieces(of_BT: Tensor) -> Tensor:
    """(B, W), how many pieces each word has."""
    batch, length = of_BT.shape
    most = int(of_BT.max()) + 1 if length and batch else 0
    count_BW = torch.zeros(batch, most + 1, dtype=torch.long)
    # what is no word goes to a column of its own, the last
    number_BT = torch.where(of_BT < 0, most, of_BT)
    return count_BW.scatter_add_(1, number_BT, torch.ones_like(number_BT))[:, :most]


def _ends(of_BT: Tensor, end: Literal["first", "last"]) -> Tensor:
    """(B, W), the position of each word's first or last piece; 0 where there is none."""
    batch, length = of_BT.shape
    most = int(of_BT.max()) + 1 if length and batch else 0
    place_BT = torch.arange(length).expand(batch, length)
    number_BT = torch.where(of_BT < 0, most, of_BT)
    found_BW = torch.zeros(batch, most + 1, dtype=torch.long)
    kind = "amin" if end == "first" else "amax"
    return found_BW.scatter_reduce_(1, number_BT, place_BT, kind, include_self=False)[:, :most]


def _planned(of_BT: Tensor, lead: Literal["first", "last"], device: torch.device) -> Merge:
    word_BT = of_BT >= 0
    pieces_BW, lead_BW = _pieces(of_BT), _ends(of_BT, lead)
    if not pieces_BW.shape[1]:
        ones_BT = torch.ones_like(of_BT, device=device)
        return Merge([], ones_BT, ones_BT)
    number_BT = of_BT.clamp(min=0)
    target_BT = lead_BW.gather(1, number_BT)
    pieces_BT = pieces_BW.gather(1, number_BT).where(word_BT, 1)
    place_T = torch.arange(of_BT.shape[1])
    follows_BT = word_BT & (target_BT != place_T)
    # a follower's place among those of its word: words never fall, so they are told apart in order
    order_BT = follows_BT.long().cumsum(1)
    before_BW = (pieces_BW - 1).clamp(min=0).cumsum(1) - (pieces_BW - 1).clamp(min=0)
    rank_BT = (order_BT - before_BW.gather(1, number_BT)).where(follows_BT, 0)
    steps = [
        tuple(part.to(device) for part in _step(rank_BT == rank, target_BT))
        for rank in range(1, int(rank_BT.max()) + 1)
    ]
    lead_BT = (~follows_BT).long()
    return Merge(steps, lead_BT.to(device), pieces_BT.to(device))  # pyright: ignore[reportArgumentType]


def _step(chosen_BT: Tensor, target_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target and whether it is real, (B, C): as many columns as the fullest row needs."""
    most = int(chosen_BT.sum(1).max())
    source_BC = chosen_BT.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return source_BC, target_BT.gather(1, source_BC), chosen_BT.gather(1, source_BC)
