"""Shares with intervals over sentences, streaming and mergeable: hits out of chances, head by head.

The interval is a Poisson bootstrap: in each of R replicates a sentence counts as often as a draw
from Poisson(1) says. The draws are a pure function of the seed, the sentence's number and the
replicate's, so that nothing of the corpus is kept, and any order of reading, any cut into batches
and any sharing out among processes gives the same interval.

A bootstrap knows nothing of what was not drawn. A kind of sentence that makes up 1 - 0.025^(1 / n)
of a corpus is missing among n of its sentences once in 40 times, whatever those show; no interval
of a share is narrower than this doubt allows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

REPLICATES = 200
GRAIN = 2.0**-24  # float32's own, next to 1: sums of its multiples are exact up to 2^29
TAIL = 0.025  # on each side of an interval
FEWEST_SENTENCES = 10  # with a chance; fewer say nothing of others, and so get no interval

GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio as a signed number: the step of splitmix64
FIRST_FACTOR, SECOND_FACTOR = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # of its mixing


@dataclass(frozen=True, eq=False)
class Shares:
    """Estimates with the ends of their 95 % intervals.

    A value is nan where there was no chance, an end where too few sentences had one.
    """

    value: Tensor
    low: Tensor
    high: Tensor

    def at(self, *places: Any) -> "Shares":
        """Index value, low and high alike."""
        return Shares(self.value[places], self.low[places], self.high[places])

    def columns(self, name: str) -> dict[str, list[float | None]]:
        """Return {name, name_low, name_high: one value per head}; None for nan."""
        ends = {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}
        return {column: _plain(values) for column, values in ends.items()}


def _plain(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def bootstrap_weights(
    sentences: Sequence[int], *, replicates: int = REPLICATES, seed: int = 0
) -> Float[Tensor, "B R"]:
    """Return how often each sentence counts in each replicate: draws from Poisson(1).

    Args:
        sentences: numbers in the corpus; the same number always gives the same row.
        replicates: R, how many columns.
        seed: another seed gives other draws.

    >>> rows = bootstrap_weights([7, 8], replicates=100)
    >>> torch.equal(rows[1:], bootstrap_weights([8], replicates=100))
    True
    """
    sentence_B1 = torch.tensor(list(sentences), dtype=torch.long)[:, None]
    stream_B1 = _mixed(_mixed(torch.tensor(seed) + GOLDEN) + (sentence_B1 + 1) * GOLDEN)
    bits_BR = _mixed(stream_B1 + (torch.arange(replicates) + 1) * GOLDEN)
    uniform_BR = _shifted(bits_BR, 11).double() * 2.0**-53
    return torch.searchsorted(_poisson_steps(), uniform_BR, right=True).double()


def _mixed(number: Tensor) -> Tensor:
    """Apply the finaliser of splitmix64 (Steele et al., 2014); products wrap around."""
    number = (number ^ _shifted(number, 30)) * FIRST_FACTOR
    number = (number ^ _shifted(number, 27)) * SECOND_FACTOR
    return number ^ _shifted(number, 31)


def _shifted(number: Tensor, places: int) -> Tensor:
    """Shift to the right with zeros; torch's own shift repeats the sign."""
    return (number >> places) & ((1 << (64 - places)) - 1)


def _poisson_steps() -> Tensor:
    """Return P(X <= x) of Poisson(1) for x = 0, 1, ..., up to a chance of 10^-19."""
    mass = [math.exp(-1) / math.factorial(count) for count in range(20)]
    return torch.tensor(mass, dtype=torch.float64).cumsum(0)


@dataclass
class Tally:
    """Sums of hits and chances over sentences, plain and for each replicate.

    Sums stay on the device where they are made. Hits may be any numbers, such as weights; they are
    rounded to multiples of `grain`, so that sums, and all that follows from them, do not depend on
    the order of adding: two halves merged equal one pass bit for bit.

    Args:
        bounded: hits lie between 0 and chances, as a share's do. Where all are hits every replicate
            is the same, and the interval would have no width; of n sentences with a chance, its
            lower end is never above 0.025^(1 / n), the exact one if each were hit or missed as a
            whole, and its upper end never below 1 less that.
        grain: 0 leaves hits as they are.

    >>> tally = Tally()
    >>> weights = bootstrap_weights(range(100))
    >>> tally.add(torch.ones(100, 1), torch.full((100, 1), 2.0), weights=weights)
    >>> tally.shares().columns("share")["share"]
    [0.5]
    """

    bounded: bool = True
    grain: float = GRAIN
    _hits: Tensor | None = None  # (1 + R, ...), the plain sum first
    _chances: Tensor | None = None  # (1 + R + 1, ...), last how many sentences had a chance
    _weights: Tensor | None = None  # of the latest sentences
    _counted: Tensor | None = None  # (B, ...), which of them have been counted

    def add(
        self,
        hits: Float[Tensor, "B ..."],
        chances: Float[Tensor, "B ..."],
        *,
        weights: Float[Tensor, "B R"],
    ) -> None:
        """Count some sentences, or more of the latest ones, which have the same weights tensor.

        Args:
            hits: summed over each sentence, any further axes (heads, say).
            chances: the same, broadcastable to hits.
            weights: from `bootstrap_weights`, on the same device.
        """
        whole_BR = torch.cat([torch.ones_like(weights[:, :1]), weights], dim=1)
        hits = hits.double()
        if self.grain:
            hits = (hits / self.grain).round() * self.grain
        fresh_B = self._newly_counted(chances > 0, weights).sum(dim=0, keepdim=True)
        sums = _weighted(whole_BR, chances.double())
        self._add_sums(_weighted(whole_BR, hits), torch.cat([sums, fresh_B.double()]))

    def merge(self, other: "Tally") -> None:
        """Add the sums of another tally, of other sentences."""
        if other._hits is not None and other._chances is not None:
            self._add_sums(other._hits, other._chances)

    def shares(self) -> Shares:
        """Return hits by chances, with the 2.5 and 97.5 percentiles of the replicates.

        Where fewer than `FEWEST_SENTENCES` sentences had a chance there are no ends.
        """
        if self._hits is None or self._chances is None:
            return Shares(*(torch.zeros(0, dtype=torch.float64),) * 3)
        sums, sentences = self._chances[:-1].cpu(), self._chances[-1].cpu()
        hits, chances = torch.broadcast_tensors(self._hits.cpu(), sums)
        share = hits / chances  # nan where there was no chance
        value, replicates = share[0], share[1:].masked_fill(chances[1:] == 0, math.nan)
        if not len(replicates):
            return Shares(value, value, value)
        low, high = torch.nanquantile(replicates, torch.tensor([TAIL, 1 - TAIL]).double(), dim=0)
        if self.bounded:
            doubt = TAIL ** (1 / sentences)
            low, high = torch.minimum(low, doubt), torch.maximum(high, 1 - doubt)
        few = (sentences < FEWEST_SENTENCES).expand_as(value)
        low, high = (end.masked_fill(few, math.nan) for end in (low, high))
        return Shares(value.masked_fill(chances[0] == 0, math.nan), low, high)

    def state(self) -> dict[str, Tensor]:
        """Return all sums on the CPU; nothing before the first `add`."""
        if self._hits is None or self._chances is None:
            return {}
        return {"hits": self._hits.cpu(), "chances": self._chances.cpu()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace the sums by those of a `state()`."""
        hits, chances = state.get("hits"), state.get("chances")
        if hits is not None and chances is not None and len(chances) != len(hits) + 1:
            raise ValueError(
                f"Sums of {len(hits)} rows need {len(hits) + 1} rows of chances, got "
                f"{len(chances)}; count again from the start."
            )
        self._hits, self._chances = hits, chances
        self._weights = self._counted = None

    @property
    def hits(self) -> Tensor:
        """Plain sums of hits."""
        return torch.zeros(0).double() if self._hits is None else self._hits[0]

    @property
    def chances(self) -> Tensor:
        """Plain sums of chances."""
        return torch.zeros(0).double() if self._chances is None else self._chances[0]

    @property
    def sentences(self) -> Tensor:
        """Number of sentences with a chance."""
        return torch.zeros(0).double() if self._chances is None else self._chances[-1]

    def _newly_counted(self, had: Tensor, weights: Tensor) -> Tensor:
        """Return which sentences had their first chance; decoding step by step repeats them."""
        if self._weights is not weights or self._counted is None:
            self._weights, self._counted = weights, torch.zeros_like(had)
        fresh = had & ~self._counted
        self._counted = self._counted | had
        return fresh

    def _add_sums(self, hits: Tensor, chances: Tensor) -> None:
        if self._hits is None or self._chances is None:
            self._hits, self._chances = hits.clone(), chances.clone()
            return
        if len(hits) != len(self._hits):
            raise ValueError(
                f"A tally of {len(self._hits) - 1} replicates was given {len(hits) - 1}; use the "
                "same number everywhere."
            )
        self._hits = self._hits.to(hits.device) + hits
        self._chances = self._chances.to(chances.device) + chances


@dataclass
class Tallies:
    """Tallies by measure and site, with one state for all; see `Tally` for the arguments."""

    bounded: bool = True
    grain: float = GRAIN
    by_key: dict[tuple[str, str], Tally] = field(default_factory=dict[tuple[str, str], Tally])

    def at(self, measure: str, site: str) -> Tally:
        """Return the tally of a measure at a site, made when missing."""
        return self.by_key.setdefault((measure, site), Tally(self.bounded, self.grain))

    def columns(self) -> dict[str, dict[str, list[float | None]]]:
        """Return {measure, and its ends: {site: one value per head}}, measures by name."""
        found: dict[str, dict[str, list[float | None]]] = {}
        # in a fixed order, since batches need not all have the same measures; sites stay as met
        for (measure, site), tally in sorted(self.by_key.items(), key=lambda item: item[0][0]):
            for column, values in tally.shares().columns(measure).items():
                found.setdefault(column, {})[site] = values
        return found

    def state(self) -> dict[str, Tensor]:
        """Return all sums, for `load`."""
        # numbered, since files keep their tensors in an order of their own
        return {
            f"{place:06d}/{site}/{measure}/{part}": tensor
            for place, ((measure, site), tally) in enumerate(self.by_key.items())
            for part, tensor in tally.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace all sums by those of a `state()`."""
        self.by_key.clear()
        for key in sorted({name.rpartition("/")[0] for name in state}):
            _, site, measure = key.split("/", 2)
            parts = {part: state[f"{key}/{part}"] for part in ("hits", "chances")}
            self.at(measure, site).load(parts)

    def merge(self, other: "Tallies") -> None:
        """Add the sums of others, of other sentences."""
        for key, tally in other.by_key.items():
            self.at(*key).merge(tally)


def _weighted(whole_BR: Tensor, sums: Tensor) -> Tensor:
    """Return (R, ...): sums of sentences, weighted by each replicate."""
    return (whole_BR.T @ sums.flatten(1)).view(-1, *sums.shape[1:])
