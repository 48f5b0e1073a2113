"""Reading: what recorders must know of a batch before its forward pass."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.recording.tally import bootstrap_weights
from headwise.recording.word_rows import WordRows, word_rows
from headwise.recording.words import Words
from headwise.sites import Site

__all__ = ["Gold", "Reading", "Words", "reading_of"]


@dataclass(frozen=True, eq=False)
class Gold:
    """What heads might point at in one batch, under one label.

    Args:
        label: the column's name, e.g. "nsubj_to_head".
        kind: the sites it speaks of, e.g. "encoder.self" or "decoder.cross".
        right: (N, 3) of (batch item, query, right key), in words. A query may have several.
    """

    label: str
    kind: str
    right: Int[Tensor, "N 3"]


@dataclass(frozen=True, eq=False)
class Reading:
    """A batch as recorders see it. Those who share one share what is computed for it.

    Args:
        sentences: each item's number in the corpus. Bootstrap weights follow from it alone, so that
            any order of reading, and any sharing out among processes, gives the same intervals.
        words: of each stack, "encoder" or "decoder"; in one that is not named, all are words.
        gold: what heads might point at.
    """

    sentences: Sequence[int]
    words: Mapping[str, Words] = field(default_factory=dict[str, Words])
    gold: Sequence[Gold] = ()
    _kept: dict[Any, Any] = field(default_factory=dict[Any, Any], init=False, repr=False)

    def rows(self, site: Site, attended: Attended) -> WordRows:
        """The call's rows in words, computed once for all who ask."""
        call, rows = self._kept.get("rows", (None, None))
        if call is None or call() is not attended:
            rows = word_rows(attended, *self._words_of(site, attended))
            # a weak reference: queries and keys of a layer need not outlive it
            self._kept["rows"] = weakref.ref(attended), rows
        return rows

    def weights(self, replicates: int, *, seed: int, device: torch.device) -> Tensor:
        """Bootstrap weights of the sentences, (B, R)."""
        key = (replicates, seed, device)
        if key not in self._kept:
            drawn_BR = bootstrap_weights(self.sentences, replicates=replicates, seed=seed)
            self._kept[key] = drawn_BR.to(device)
        return self._kept[key]

    def _words_of(self, site: Site, attended: Attended) -> tuple[Words, Words]:
        batch, _, n_queries, n_keys = attended.scores.shape
        if len(self.sentences) != batch:
            raise ValueError(
                f"{site.name} saw a batch of {batch}, but the reading is of {len(self.sentences)} "
                "sentences. Set a new Reading before each forward pass."
            )
        first, device = attended.scores.first_position, attended.out.device
        keys = self._stack(site.keys, batch, 0, n_keys, n_keys, device)
        total = n_keys if site.queries == site.keys else n_queries
        return self._stack(site.queries, batch, first, n_queries, total, device), keys

    def _stack(
        self, stack: str, batch: int, first: int, length: int, total: int, device: torch.device
    ) -> Words:
        """Words of some positions of a stack; in cached decoding the queries are its last."""
        key = (stack, first, length, total, device)
        if key not in self._kept:
            words = self.words.get(stack)
            if words is None:
                place_T = torch.arange(first, first + length, device=device)
                self._kept[key] = Words(place_T.expand(batch, length))
            else:
                _check_shape(words.of, stack, batch, total)
                whole = first == 0 and length == total
                self._kept[key] = (
                    words if whole else Words(words.of[:, first : first + length])
                ).to(device)
        return self._kept[key]


def reading_of(name: str, reading: Reading | None) -> Reading:
    """The reading that a recorder was given, or one sentence that says to give it one."""
    if reading is None:
        raise ValueError(
            f"{name}.reading must be set before each forward pass: {name}.reading = "
            "Reading(sentences=[...], words={...})."
        )
    return reading


def _check_shape(of_BT: Tensor, stack: str, batch: int, length: int) -> None:
    if of_BT.shape != (batch, length):
        raise ValueError(
            f"Reading.words[{stack!r}] must have shape ({batch}, {length}) for this batch, "
            f"got {tuple(of_BT.shape)}. Set a new Reading before each forward pass."
        )
