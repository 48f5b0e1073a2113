"""Caches of keys and values, so that decoding one word at a time is cheap.

`Cache` grows with every word. `FixedCache` has room from the start and stays where it is, so that
one step can be recorded as a CUDA graph and replayed for every word. Models use them alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

MORE_ROOM = 16  # positions, at least, by which a cache grows


class KeysValues(NamedTuple):
    """Keys and values, split into heads."""

    k: Float[Tensor, "B H K D"]
    v: Float[Tensor, "B H K D"]


@dataclass(eq=False)
class Known:
    """Keys and values that do not grow, by site name.

    A row is a hypothesis. With beams, the `beams` hypotheses of a sentence are neighbours, and
    share what is known of the source.
    """

    beams: int = 1
    known: dict[str, KeysValues] = field(default_factory=dict[str, KeysValues])
    by_sentence: set[str] = field(default_factory=set[str])  # of `known`; the others are by row

    def once(self, name: str, compute: Callable[[], KeysValues]) -> KeysValues:
        """Return keys and values of the source at a site, computed at the first call."""
        if name not in self.known:
            self.known[name] = compute()
            self.by_sentence.add(name)
        return self.known[name]

    def _reorder_sentences(self, index_N: Tensor) -> None:
        sentence = index_N[:: self.beams] // self.beams
        for name in self.by_sentence:
            self.known[name] = _select(self.known[name], sentence)


@dataclass(eq=False)
class Cache(Known):
    """State of a decoding: the target's length, and keys and values by site name.

    Start with an empty one and hand the same one to every call of `decode`. For decoding alone: it
    is written in place, and no gradient goes through it.

    Axes of what grows: T positions, with free room at the end, 2 for keys and values, N rows, H, D.
    So a step writes, and rows change places, in one piece.
    """

    length: int = 0
    growing: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    _spare: Tensor | None = field(default=None, repr=False)  # what a growing one is copied to

    @property
    def start(self) -> int:
        """The position of the next word."""
        return self.length

    @property
    def lengths(self) -> None:
        """How many of the positions that `extend` gives are real: all are."""
        return None

    def advance(self, count: int) -> None:
        """Count positions that all sites have seen."""
        self.length += count

    def extend(self, name: str, new: KeysValues) -> KeysValues:
        """Add the newest positions of a site; all of its positions."""
        end = self.length + new.k.shape[2]
        if name not in self.growing or len(self.growing[name]) < end:
            self.growing[name] = self._with_room(name, new.k, end)
        held_T2NHD = self.growing[name][:end]
        for place, newest_NHTD in enumerate(new):
            held_T2NHD[self.length :, place] = newest_NHTD.detach().permute(2, 0, 1, 3)
        return KeysValues(*held_T2NHD.permute(1, 2, 3, 0, 4))

    def reorder(self, index: Int[Tensor, " N"]) -> None:
        """Let row n continue what row index[n] was; all beams of a sentence move together."""
        self.swap_beams(index)
        self._reorder_sentences(index)

    def swap_beams(self, index: Int[Tensor, " N"]) -> None:
        """Reorder rows within each sentence; the source stays."""
        for name in self.known.keys() - self.by_sentence:
            self.known[name] = _select(self.known[name], index)
        for name, held in self.growing.items():
            shape = *held.shape[:2], len(index), *held.shape[3:]
            # into memory that is there already: fresh memory is dear on a CPU
            spare, self._spare = self._spare, held
            if spare is None or spare.shape != shape:
                spare = held.new_empty(shape)
            torch.index_select(held[: self.length], 2, index, out=spare[: self.length])
            self.growing[name] = spare

    def _with_room(self, name: str, like_NHTD: Tensor, end: int) -> Tensor:
        """Allocate memory for `end` positions and more, and copy those known so far."""
        rows, heads, _, width = like_NHTD.shape
        room = end + max(MORE_ROOM, end // 2)
        whole_T2NHD = like_NHTD.new_empty(room, 2, rows, heads, width)
        if name in self.growing:
            whole_T2NHD[: self.length] = self.growing[name][: self.length]
        return whole_T2NHD


class FixedCache(Known):
    """A cache with room from the start, for a word at a time. Only tensors change, in place.

    Args:
        room: positions there is room for; the host must not go beyond.
        beams: hypotheses of a sentence.
        rows: hypotheses of all.
        device: where.
    """

    def __init__(self, room: int, *, beams: int, rows: int, device: torch.device) -> None:
        super().__init__(beams=beams)
        self.room = room
        self.growing: dict[str, Tensor] = {}  # axes as in `Cache`
        self.seen_N = torch.zeros(rows, dtype=torch.long, device=device)

    @property
    def start(self) -> Int[Tensor, " 1"]:
        """The position of the next word, which the host does not know."""
        return self.seen_N[:1]

    @property
    def lengths(self) -> Int[Tensor, " N"]:
        """How many positions are real once the next word is among them."""
        return self.seen_N + 1

    def advance(self, count: int) -> None:
        """Count positions that all sites have seen."""
        self.seen_N.add_(count)

    def extend(self, name: str, new: KeysValues) -> KeysValues:
        """Add the newest position of a site; all positions there is room for."""
        if name not in self.growing:
            rows, heads, _, width = new.k.shape
            # zeros, as what is masked is still multiplied
            self.growing[name] = new.k.new_zeros(self.room, 2, rows, heads, width)
        held_T2NHD = self.growing[name]
        newest_T2NHD = torch.stack(new).permute(3, 0, 1, 2, 4)
        held_T2NHD.index_copy_(0, self.start, newest_T2NHD)
        return KeysValues(*held_T2NHD.permute(1, 2, 3, 0, 4))

    def swap_beams(self, index: Int[Tensor, " N"]) -> None:
        """Let row n continue what row index[n] of its own sentence was."""
        for held_T2NHD in self.growing.values():
            held_T2NHD.copy_(held_T2NHD.index_select(2, index))

    def reorder(self, index: Int[Tensor, " N"]) -> None:
        """Let row n continue what row index[n] was; there may be fewer rows than before."""
        self.growing = {name: held.index_select(2, index) for name, held in self.growing.items()}
        self.seen_N = self.seen_N[index]
        self._reorder_sentences(index)

    def make_room(self, room: int) -> None:
        """Enlarge the cache to a number of positions."""
        for name, held_T2NHD in self.growing.items():
            more_T2NHD = held_T2NHD.new_zeros(room - self.room, *held_T2NHD.shape[1:])
            self.growing[name] = torch.cat([held_T2NHD, more_T2NHD])
        self.room = room


def _select(held: KeysValues, index_N: Tensor) -> KeysValues:
    return KeysValues(held.k.index_select(0, index_N), held.v.index_select(0, index_N))
