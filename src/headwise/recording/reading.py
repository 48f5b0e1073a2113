"""Reading: a batch in words, as recorders see it, and the rows of attention in words.

A model reads tokens, and what is asked of its heads is asked in words. The weight from one word to
another is

    W(i, j) = mean over the tokens q of i of the sum over the tokens k of j of w(q, k)

Positions that are no words (special tokens, padding) are no queries; each is a key of its own.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.ops.rows import Block, in_blocks, weights_of
from headwise.ops.scores import Part
from headwise.recording.tally import bootstrap_weights
from headwise.sites import Site


@dataclass(frozen=True, eq=False)
class Merge:
    """Plan for summing the tokens of words along one axis, in place.

    Args:
        steps: (source, target, real) of second tokens, of third tokens, and so on, each (B, C):
            in one step no target comes twice, so that the order of adding is always the same.
        lead: (B, T), 1 where a word's sum will be or where there is no word, 0 at other tokens.
        counts: (B, T), how many tokens each word has; 1 where there is no word.
    """

    steps: list[tuple[Tensor, Tensor, Tensor]]
    lead: Tensor
    counts: Tensor

    def add_rows(self, weights_BHQK: Tensor) -> None:
        """Replace each word's row, at its lead, by the mean of its tokens' rows."""
        heads, n_keys = weights_BHQK.shape[1], weights_BHQK.shape[3]
        for source_BC, target_BC, real_BC in self.steps:
            shape = (-1, heads, -1, n_keys)
            token_BHCK = weights_BHQK.gather(2, source_BC[:, None, :, None].expand(shape))
            token_BHCK *= real_BC[:, None, :, None].to(token_BHCK.dtype)
            weights_BHQK.scatter_add_(2, target_BC[:, None, :, None].expand(shape), token_BHCK)
        weights_BHQK /= self.counts[:, None, :, None].to(weights_BHQK.dtype)

    def add_columns(self, weights_BHQK: Tensor) -> None:
        """Replace each word's column, at its lead, by the sum over its tokens; 0 elsewhere."""
        heads, n_queries = weights_BHQK.shape[1:3]
        for source_BC, target_BC, real_BC in self.steps:
            shape = (-1, heads, n_queries, -1)
            token_BHQC = weights_BHQK.gather(3, source_BC[:, None, None].expand(shape))
            token_BHQC *= real_BC[:, None, None].to(token_BHQC.dtype)
            weights_BHQK.scatter_add_(3, target_BC[:, None, None].expand(shape), token_BHQC)
        weights_BHQK *= self.lead[:, None, None].to(weights_BHQK.dtype)


def _no_merges() -> dict[tuple[object, ...], Merge]:
    return {}


@dataclass(frozen=True, eq=False)
class Words:
    """Words of a stack: which word each position belongs to.

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
        """Make every position a word of its own where `words` is True, and none elsewhere."""
        number_BT = words.long().cumsum(dim=1) - 1
        return Words(torch.where(words, number_BT, -1))

    def to(self, device: torch.device) -> "Words":
        """Return the words on a device."""
        return self if self.of.device == device else Words(self.of.to(device))

    @property
    def most(self) -> int:
        """Words of the longest sentence."""
        return self.present.shape[1]

    @cached_property
    def on_host(self) -> Tensor:
        """Copy of `of` on the CPU, where plans are made, so that a device is synchronised once."""
        return self.of.cpu()

    @cached_property
    def present(self) -> Tensor:
        """(B, W), on the CPU: True where a sentence has tokens of that word."""
        return _token_counts(self.on_host) > 0

    @cached_property
    def last(self) -> Tensor:
        """(B, W), on the CPU: the position of each word's last token; 0 where there is no word."""
        return _ends(self.on_host, "last")

    @cached_property
    def first(self) -> Tensor:
        """(B, W), on the CPU: the position of each word's first token; 0 where there is no word."""
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
        """Whether no word has more than one token."""
        return not bool((_token_counts(self.on_host) > 1).any())

    @cached_property
    def are_everything(self) -> bool:
        """Whether every position is a word of its own: nothing to merge and nothing special."""
        place_T = torch.arange(self.on_host.shape[1])
        return bool((self.on_host == self.on_host[:, :1].clamp(min=0) + place_T).all())

    def special(self, batch: slice, positions: slice) -> Tensor | None:
        """Return (b, t), True where there is no word; None where all are words."""
        is_there = bool((self.on_host[batch, positions] < 0).any())
        return self.of[batch, positions] < 0 if is_there else None

    def reach_back(self, batch: slice, rows: slice) -> int:
        """Return the first position of the words that end in a range, or the range's own start."""
        if self.are_whole or rows.start == 0:
            return rows.start
        last_BW = self.last[batch]
        ends_BW = self.present[batch] & (last_BW >= rows.start) & (last_BW < rows.stop)
        starts = self.first[batch][ends_BW]
        return min(rows.start, int(starts.min())) if len(starts) else rows.start

    def merge(
        self, batch: slice, positions: slice, *, lead: Literal["first", "last"]
    ) -> Merge | None:
        """Plan the merging of tokens among some positions; None where every word is one token."""
        if self.are_whole:
            return None
        key = (batch.start, batch.stop, positions.start, positions.stop, lead)
        if key not in self._merges:
            part_BT = self.on_host[batch, positions]
            self._merges[key] = _planned(part_BT, lead, self.of.device)
        return self._merges[key]


def _token_counts(of_BT: Tensor) -> Tensor:
    """Return (B, W), how many tokens each word has."""
    batch, length = of_BT.shape
    most = int(of_BT.max()) + 1 if length and batch else 0
    count_BW = torch.zeros(batch, most + 1, dtype=torch.long)
    # positions without a word go to a column of their own, the last
    number_BT = torch.where(of_BT < 0, most, of_BT)
    return count_BW.scatter_add_(1, number_BT, torch.ones_like(number_BT))[:, :most]


def _ends(of_BT: Tensor, end: Literal["first", "last"]) -> Tensor:
    """Return (B, W), the position of each word's first or last token; 0 for none."""
    batch, length = of_BT.shape
    most = int(of_BT.max()) + 1 if length and batch else 0
    place_BT = torch.arange(length).expand(batch, length)
    number_BT = torch.where(of_BT < 0, most, of_BT)
    found_BW = torch.zeros(batch, most + 1, dtype=torch.long)
    kind = "amin" if end == "first" else "amax"
    return found_BW.scatter_reduce_(1, number_BT, place_BT, kind, include_self=False)[:, :most]


def _planned(of_BT: Tensor, lead: Literal["first", "last"], device: torch.device) -> Merge:
    word_BT = of_BT >= 0
    counts_BW, lead_BW = _token_counts(of_BT), _ends(of_BT, lead)
    if not counts_BW.shape[1]:
        ones_BT = torch.ones_like(of_BT, device=device)
        return Merge([], ones_BT, ones_BT)
    number_BT = of_BT.clamp(min=0)
    target_BT = lead_BW.gather(1, number_BT)
    counts_BT = counts_BW.gather(1, number_BT).where(word_BT, 1)
    place_T = torch.arange(of_BT.shape[1])
    follows_BT = word_BT & (target_BT != place_T)
    # a follower's place among those of its word; word numbers never fall, so order is enough
    order_BT = follows_BT.long().cumsum(1)
    before_BW = (counts_BW - 1).clamp(min=0).cumsum(1) - (counts_BW - 1).clamp(min=0)
    rank_BT = (order_BT - before_BW.gather(1, number_BT)).where(follows_BT, 0)
    steps = [
        tuple(part.to(device) for part in _step(rank_BT == rank, target_BT))
        for rank in range(1, int(rank_BT.max()) + 1)
    ]
    lead_BT = (~follows_BT).long()
    return Merge(steps, lead_BT.to(device), counts_BT.to(device))  # pyright: ignore[reportArgumentType]


def _step(chosen_BT: Tensor, target_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, target and whether it is real, (B, C), for the fullest row."""
    most = int(chosen_BT.sum(1).max())
    source_BC = chosen_BT.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return source_BC, target_BT.gather(1, source_BC), chosen_BT.gather(1, source_BC)


class WordRows(NamedTuple):
    """Statistics of the query words of each sentence; zeros and -1 where there is no word."""

    peak: Float[Tensor, "B H W"]  # the largest weight on a word
    strongest: Int[Tensor, "B H W"]  # its number, the first on ties; -1 where words get no weight
    special: Float[Tensor, "B H W"]  # weight on positions that are no words
    entropy: Float[Tensor, "B H W"]  # of the weights on words and on each special token, in nats
    seen: Bool[Tensor, "B H W"]  # whether a word attends to anything
    queries: Words
    keys: Words


@torch.no_grad()
def word_rows(attended: Attended, query_words: Words, key_words: Words) -> WordRows:
    """Compute the rows of one attention call in words, block by block, never the whole matrix.

    Args:
        attended: the call.
        query_words: words of its queries, (B, Q).
        key_words: words of its keys, (B, K).
    """
    device = attended.out.device
    query_words, key_words = query_words.to(device), key_words.to(device)
    if query_words.are_everything and key_words.are_everything:
        found_BHQ = _plain_rows(attended, key_words)
    else:
        found_BHQ = _merged_rows(attended, query_words, key_words)
    present_B1W = query_words.present[:, None].to(device)
    last_B1W = query_words.last[:, None].to(device)
    peak, strongest, special, entropy = (
        x_BHQ.gather(2, last_B1W.expand(-1, x_BHQ.shape[1], -1)).masked_fill(~present_B1W, fill)
        for x_BHQ, fill in zip(found_BHQ, (0, -1, 0, 0), strict=True)
    )
    seen_BHW = present_B1W & (peak + special > 0)
    return WordRows(peak, strongest, special, entropy, seen_BHW, query_words, key_words)


def _plain_rows(attended: Attended, key_words: Words) -> tuple[Tensor, ...]:
    """Return the call's own statistics: those of words where every position is one."""
    key_BHQ = attended.peak_key
    strongest_BHQ = torch.where(key_BHQ < 0, -1, key_BHQ + key_words.of[:, None, :1])
    return attended.peak, strongest_BHQ, torch.zeros_like(attended.peak), attended.entropy


def _merged_rows(attended: Attended, queries: Words, keys: Words) -> tuple[Tensor, ...]:
    """Return peak, strongest, special and entropy, (B, H, Q); a word's are at its last token."""

    def reduce(block: Block) -> tuple[Tensor, ...]:
        part = block.part
        # The rows before, in which words of this part begin, are computed once more: there are few,
        # and no half of a word need be carried from part to part.
        start = queries.reach_back(part.batch, part.rows)
        wider = part._replace(rows=slice(start, part.rows.stop))
        found = _reduced(_weights(attended, wider), wider, queries, keys)
        return tuple(x_BHQ[:, :, part.rows.start - start :] for x_BHQ in found)

    scores = attended.scores
    return in_blocks(reduce, scores, list(scores.parts()), parameters=attended.parameters)


def _weights(attended: Attended, part: Part) -> Tensor:
    """Return weights of a part, up to the last key that any of its queries attends to."""
    scores = attended.scores.part(part)
    parameters = (part.of(parameter) for parameter in attended.parameters)
    return weights_of(scores.up_to(scores.reach()), attended.row_function, *parameters)


def _reduced(
    weights_BHQK: Tensor, part: Part, queries: Words, keys: Words
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return peak, strongest, special and entropy of a part, (b, h, q); overwrites the weights."""
    if merge := queries.merge(part.batch, part.rows, lead="last"):
        merge.add_rows(weights_BHQK)
    seen = slice(0, weights_BHQK.shape[3])
    if merge := keys.merge(part.batch, seen, lead="first"):
        merge.add_columns(weights_BHQK)
    # the log of 0 counts as that of a number so small that 0 times it is 0
    other_BHQK = weights_BHQK.clamp(min=torch.finfo(weights_BHQK.dtype).tiny).log_()
    entropy_BHQ = other_BHQK.mul_(weights_BHQK).sum(dim=-1).neg_()
    special_BHQ = torch.zeros_like(entropy_BHQ)
    if (special_BK := keys.special(part.batch, seen)) is not None:
        special = special_BK[:, None, None].to(weights_BHQK.dtype)
        special_BHQ = torch.mul(weights_BHQK, special, out=other_BHQK).sum(dim=-1)
        weights_BHQK *= 1 - special
    peak_BHQ, key_BHQ = weights_BHQK.max(dim=-1)
    number_BHK = keys.of[part.batch, None, seen].expand(-1, key_BHQ.shape[1], -1)
    strongest_BHQ = torch.where(peak_BHQ > 0, number_BHK.gather(2, key_BHQ), -1)
    return peak_BHQ, strongest_BHQ, special_BHQ, entropy_BHQ


@dataclass(frozen=True, eq=False)
class Gold:
    """Right keys of queries in one batch, under one label.

    Args:
        label: the column's name, e.g. "nsubj_to_head".
        kind: the sites it is about, e.g. "encoder.self" or "decoder.cross".
        right: (N, 3) of (batch item, query, right key), in words. A query may have several.
    """

    label: str
    kind: str
    right: Int[Tensor, "N 3"]


@dataclass(frozen=True, eq=False)
class Reading:
    """A batch as recorders see it. Recorders that share one share what is computed for it.

    Args:
        sentences: each item's number in the corpus. Bootstrap weights follow from it alone, so that
            any order and any number of processes give the same intervals.
        words: of each stack, "encoder" or "decoder"; in one that is not named, all are words.
        gold: right keys that heads might attend to.
    """

    sentences: Sequence[int]
    words: Mapping[str, Words] = field(default_factory=dict[str, Words])
    gold: Sequence[Gold] = ()
    _kept: dict[Any, Any] = field(default_factory=dict[Any, Any], init=False, repr=False)

    def rows(self, site: Site, attended: Attended) -> WordRows:
        """Return the call's rows in words, computed once for all recorders."""
        call, rows = self._kept.get("rows", (None, None))
        if call is None or call() is not attended:
            rows = word_rows(attended, *self._words_of(site, attended))
            # a weak reference: queries and keys of a layer need not outlive it
            self._kept["rows"] = weakref.ref(attended), rows
        return rows

    def weights(self, replicates: int, *, seed: int, device: torch.device) -> Tensor:
        """Return bootstrap weights of the sentences, (B, R)."""
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
        """Return words of some positions of a stack; in cached decoding queries are the last."""
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
    """Return the reading that a recorder was given; raise if it has none."""
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
