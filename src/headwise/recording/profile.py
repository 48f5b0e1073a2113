"""What each head does on a corpus: how sure it is, how far it looks, what it stops at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.attended import Attended
from headwise.recording.reading import Reading, reading_of
from headwise.recording.tally import REPLICATES, Tally
from headwise.recording.word_rows import WordRows
from headwise.sites import Site

Columns = dict[str, dict[str, list[float | int | None]]]


@dataclass
class _Seen:
    """What was counted at one site."""

    means: Tally = field(default_factory=Tally)  # (4, H): peak, entropy, special, first
    distances: Tally = field(default_factory=Tally)  # (H, offsets)


@dataclass
class Profile:
    """A recorder of where heads look, streaming: memory does not grow with the corpus.

    All is in words: weight is summed over the pieces of a key word and averaged over those of a
    query word. Before each forward pass set `reading`; positions it does not name as words are left
    out as queries and as keys, and weight that falls on them is `special_mass`. `drain()` gives,
    for each measure, one value a head. Those marked * are shares with a 95 % interval over
    sentences, from X_low to X_high.

        confidence *    mean over words of the largest weight on a word (Voita et al., 2019)
        entropy         mean entropy of a word's weights, in nats; a special token is one key
        offset          the commonest distance from a word to its strongest word
        offset_share *  how often that distance is chosen, among words that have a word there
        first_share *   how often the strongest word is the first
        special_mass *  mean weight on what is not a word

    Counts of any shares of a corpus can be added up: `merge` those of other processes, or `load`
    a `state` that was saved.
    """

    name: str = "profile"
    reach: int = 8  # distances beyond this are not told apart
    replicates: int = REPLICATES  # of the bootstrap
    seed: int = 0  # of the bootstrap
    reading: Reading | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict[str, _Seen])

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        reading = reading_of("Profile", self.reading)
        rows = reading.rows(site, attended)
        weights_BR = reading.weights(self.replicates, seed=self.seed, device=rows.peak.device)
        seen = self._seen.setdefault(site.name, _Seen())
        queries_BH = rows.seen.sum(dim=2, dtype=torch.float64)
        seen.means.add(_totals(rows), queries_BH[:, None], weights=weights_BR)
        looks_back = is_causal(site, attended)
        hits_BHO, chances_BO = self._hits(rows), self._chances(rows, looks_back=looks_back)
        seen.distances.add(hits_BHO, chances_BO[:, None], weights=weights_BR)

    def drain(self) -> Columns:
        """{measure: {site: one value a head}} since the last drain; None where nothing was seen."""
        columns: Columns = {}
        for site, seen in self._seen.items():
            for measure, values in self._measures(seen).items():
                columns.setdefault(measure, {})[site] = values
        self._seen.clear()
        return columns

    def state(self) -> dict[str, Tensor]:
        """All counts, for `load`."""
        # numbered, since files keep their tensors in an order of their own
        return {
            f"{place:06d}/{site}/{name}/{part}": tensor
            for place, (site, seen) in enumerate(self._seen.items())
            for name, tally in vars(seen).items()
            for part, tensor in tally.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave; what was counted since is forgotten."""
        self._seen.clear()
        for mark in sorted({key.rsplit("/", 2)[0] for key in state}):
            seen = self._seen.setdefault(mark.partition("/")[2], _Seen())
            for name, tally in vars(seen).items():
                tally.load({part: state[f"{mark}/{name}/{part}"] for part in ("hits", "chances")})

    def merge(self, other: "Profile") -> None:
        """Add the counts of another profile, of other sentences."""
        for site, theirs in other._seen.items():
            ours = self._seen.setdefault(site, _Seen())
            ours.means.merge(theirs.means)
            ours.distances.merge(theirs.distances)

    def _hits(self, rows: WordRows) -> Tensor:
        """(B, H, offsets): words whose strongest word lies that far away."""
        number_W = torch.arange(rows.peak.shape[2], device=rows.peak.device)
        edge = self.reach + 1  # "further away", on either side
        bin_BHW = (rows.strongest - number_W).clamp(-edge, edge) + edge
        points_BHW = (rows.seen & (rows.strongest >= 0)).long()
        batch, heads = points_BHW.shape[:2]
        count_BHO = points_BHW.new_zeros(batch, heads, 2 * edge + 1)
        return count_BHO.scatter_add_(2, bin_BHW, points_BHW)[..., 1:-1].double()

    def _chances(self, rows: WordRows, *, looks_back: bool) -> Tensor:
        """(B, offsets): how many words have a word at each distance."""
        asks_BW, there_BW = rows.queries.present, rows.keys.present
        offset_O = torch.arange(-self.reach, self.reach + 1)
        wide_BW = pad(there_BW, (self.reach, self.reach + 1))  # the last stands for "beyond"
        place_WO = torch.arange(asks_BW.shape[1])[:, None] + offset_O + self.reach
        found_BWO = wide_BW[:, place_WO.clamp(max=wide_BW.shape[1] - 1)] & asks_BW[..., None]
        if looks_back:
            found_BWO = found_BWO & (offset_O <= 0)
        return found_BWO.sum(dim=1).double().to(rows.peak.device)

    def _measures(self, seen: _Seen) -> dict[str, list[float | int | None]]:
        means = seen.means.shares()
        return {
            **means.at(0).columns("confidence"),
            "entropy": means.at(1).columns("entropy")["entropy"],
            **self._offset(seen),
            **means.at(3).columns("first_share"),
            **means.at(2).columns("special_mass"),
        }

    def _offset(self, seen: _Seen) -> dict[str, list[float | int | None]]:
        """The commonest distance and its share; None where no strongest word is within reach."""
        hits_HO = seen.distances.hits.cpu()
        best_H = hits_HO.argmax(dim=1)
        shares = seen.distances.shares().at(torch.arange(len(best_H)), best_H)
        columns = {"offset": (best_H - self.reach).tolist(), **shares.columns("offset_share")}
        found = (hits_HO.sum(dim=1) > 0).tolist()
        return {
            name: [
                value if is_found else None for value, is_found in zip(values, found, strict=True)
            ]
            for name, values in columns.items()
        }


def is_causal(site: Site, attended: Attended) -> bool:
    """Whether no word can look at a later one; decoders say so by their name, whatever the mask."""
    return attended.scores.causal or (site.name.endswith(".self") and site.queries == "decoder")


def _totals(rows: WordRows) -> Tensor:
    """(B, 4, H): sums over the words of each sentence."""
    first_B11 = rows.keys.first_word.to(rows.peak.device)[:, None, None]
    measures = (rows.peak, rows.entropy, rows.special, rows.strongest == first_B11)
    return torch.stack(
        [(value * rows.seen).sum(dim=2, dtype=torch.float64) for value in measures], dim=1
    )
