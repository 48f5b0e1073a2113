"""Recorders of where heads attend: Profile over a corpus, Samples of single sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.attended import Attended
from headwise.recording.reading import Reading, WordRows, reading_of
from headwise.recording.tally import REPLICATES, Tallies
from headwise.sites import Site

MEANS, DISTANCES = "means", "distances"  # tallies of peak, entropy, special, first; of offsets
Sparse = list[list[list[list[int | float]]]]  # head, query, strongest keys, [key, weight]
Columns = dict[str, dict[str, list[float | int | None]]]


@dataclass
class Profile:
    """Recorder of where heads attend, in constant memory.

    All is in words: weight is summed over the tokens of a key word and averaged over those of a
    query word. Before each forward pass set `reading`. Positions that it does not name as words
    are neither queries nor keys, and the weight on them is `special_mass`. `drain()` returns one
    value per head for each measure. Those marked * are shares with a 95 % interval over sentences,
    from X_low to X_high.

        confidence *    mean over words of the largest weight on a word (Voita et al., 2019)
        entropy         mean entropy of a word's weights, in nats; a special token is one key
        offset          the commonest distance from a word to its strongest word
        offset_share *  how often that distance is chosen, among words that have a word there
        first_share *   how often the strongest word is the first
        special_mass *  mean weight on what is not a word

    Counts of parts of a corpus can be added: `merge` those of other processes, or `load` a saved
    `state`.
    """

    name: str = "profile"
    reach: int = 8  # distances beyond this are not distinguished
    replicates: int = REPLICATES  # of the bootstrap
    seed: int = 0  # of the bootstrap
    reading: Reading | None = None
    _tallies: Tallies = field(default_factory=Tallies)  # (4, H) and (H, offsets) of each site

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        reading = reading_of("Profile", self.reading)
        rows = reading.rows(site, attended)
        weights_BR = reading.weights(self.replicates, seed=self.seed, device=rows.peak.device)
        queries_BH = rows.seen.sum(dim=2, dtype=torch.float64)
        means = self._tallies.at(MEANS, site.name)
        means.add(_totals(rows), queries_BH[:, None], weights=weights_BR)
        hits_BHO = self._hits(rows)
        chances_BO = self._chances(rows, causal=is_causal(site, attended))
        distances = self._tallies.at(DISTANCES, site.name)
        distances.add(hits_BHO, chances_BO[:, None], weights=weights_BR)

    def drain(self) -> Columns:
        """Return {measure: {site: one value per head}} since the last drain; None without data."""
        columns: Columns = {}
        for site in dict.fromkeys(site for _, site in self._tallies.by_key):
            for measure, values in self._measures(site).items():
                columns.setdefault(measure, {})[site] = values
        self._tallies.by_key.clear()
        return columns

    def state(self) -> dict[str, Tensor]:
        """Return all counts, for `load`."""
        return self._tallies.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace all counts by those of a `state()`."""
        self._tallies.load(state)

    def merge(self, other: "Profile") -> None:
        """Add the counts of another profile, of other sentences."""
        self._tallies.merge(other._tallies)

    def _hits(self, rows: WordRows) -> Tensor:
        """Return (B, H, offsets): words whose strongest word is that far away."""
        number_W = torch.arange(rows.peak.shape[2], device=rows.peak.device)
        edge = self.reach + 1  # "further away", on either side
        bin_BHW = (rows.strongest - number_W).clamp(-edge, edge) + edge
        points_BHW = (rows.seen & (rows.strongest >= 0)).long()
        batch, heads = points_BHW.shape[:2]
        count_BHO = points_BHW.new_zeros(batch, heads, 2 * edge + 1)
        return count_BHO.scatter_add_(2, bin_BHW, points_BHW)[..., 1:-1].double()

    def _chances(self, rows: WordRows, *, causal: bool) -> Tensor:
        """Return (B, offsets): how many words have a word at each distance."""
        asks_BW, there_BW = rows.queries.present, rows.keys.present
        offset_O = torch.arange(-self.reach, self.reach + 1)
        wide_BW = pad(there_BW, (self.reach, self.reach + 1))  # the last stands for "beyond"
        place_WO = torch.arange(asks_BW.shape[1])[:, None] + offset_O + self.reach
        found_BWO = wide_BW[:, place_WO.clamp(max=wide_BW.shape[1] - 1)] & asks_BW[..., None]
        if causal:
            found_BWO = found_BWO & (offset_O <= 0)
        return found_BWO.sum(dim=1).double().to(rows.peak.device)

    def _measures(self, site: str) -> dict[str, list[float | int | None]]:
        means = self._tallies.at(MEANS, site).shares()
        return {
            **means.at(0).columns("confidence"),
            "entropy": means.at(1).columns("entropy")["entropy"],
            **self._offset(site),
            **means.at(3).columns("first_share"),
            **means.at(2).columns("special_mass"),
        }

    def _offset(self, site: str) -> dict[str, list[float | int | None]]:
        """Return the commonest distance and its share; None where no strongest word is in reach."""
        distances = self._tallies.at(DISTANCES, site)
        hits_HO = distances.hits.cpu()
        best_H = hits_HO.argmax(dim=1)
        shares = distances.shares().at(torch.arange(len(best_H)), best_H)
        columns = {"offset": (best_H - self.reach).tolist(), **shares.columns("offset_share")}
        found = (hits_HO.sum(dim=1) > 0).tolist()
        return {
            name: [
                value if is_found else None for value, is_found in zip(values, found, strict=True)
            ]
            for name, values in columns.items()
        }


def is_causal(site: Site, attended: Attended) -> bool:
    """Return whether no word can attend to a later one; so in a decoder, whatever the mask."""
    return attended.scores.causal or (site.name.endswith(".self") and site.queries == "decoder")


def _totals(rows: WordRows) -> Tensor:
    """Return (B, 4, H): sums over the words of each sentence."""
    first_B11 = rows.keys.first_word.to(rows.peak.device)[:, None, None]
    measures = (rows.peak, rows.entropy, rows.special, rows.strongest == first_B11)
    return torch.stack(
        [(value * rows.seen).sum(dim=2, dtype=torch.float64) for value in measures], dim=1
    )


@dataclass
class Samples:
    """Recorder of whole attention rows, for batches of ONE sentence each.

    Keeps, for each head and query, at most `most` keys whose weight reaches `least`. Call `start`
    before each forward pass; `drain()` returns what reports read from attention.json.
    """

    name: str = "attention"
    most: int = 8
    least: float = 0.02
    _sentences: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def start(self, tokens: dict[str, Sequence[str]]) -> None:
        """Begin a sentence; `tokens` are {stack: tokens as text}."""
        self._sentences.append({"tokens": {k: list(v) for k, v in tokens.items()}, "sites": {}})

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        if not self._sentences:
            raise ValueError("Call Samples.start(tokens) before the forward pass it is to record.")
        if len(attended.out) != 1:
            raise ValueError(
                f"Samples records one sentence a forward pass, got a batch of {len(attended.out)}; "
                "call start(tokens) and the model for each sentence."
            )
        self._sentences[-1]["sites"][site.name] = self._strongest(attended.weights[0])

    def drain(self) -> dict[str, Any]:
        """Return the sentences since the last drain, as plain lists."""
        sentences, self._sentences = self._sentences, []
        return {"sentences": sentences}

    def _strongest(self, weights_HQK: Tensor) -> Sparse:
        weight_HQR, key_HQR = weights_HQK.topk(min(self.most, weights_HQK.shape[-1]), dim=-1)
        return [
            [
                [
                    [key, round(weight, 3)]
                    for key, weight in zip(keys, weights, strict=True)
                    if weight >= self.least
                ]
                for keys, weights in zip(keys_QR, weights_QR, strict=True)
            ]
            for keys_QR, weights_QR in zip(key_HQR.tolist(), weight_HQR.tolist(), strict=True)
        ]
