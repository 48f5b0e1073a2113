"""What each head does on a corpus: how sure it is, how far it looks, what it stops at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import one_hot, pad

from headwise.ops.attended import Attended
from headwise.sites import Site


@dataclass
class _Sums:
    """Running sums of one site over all queries seen, one row a head."""

    queries: Tensor  # (H,)
    peak: Tensor
    entropy: Tensor
    first: Tensor
    special: Tensor
    hits: Tensor  # (H, offsets): queries whose strongest key lies that far away
    chances: Tensor  # (offsets,): queries that have a word that far away

    def add(self, other: "_Sums") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Profile:
    """A recorder of where heads look, streaming: memory does not grow with the corpus.

    Before each forward pass set `words`: for each stack ("encoder", "decoder") a boolean (B, T),
    True at real words. Padding and special tokens (end of sentence, separators) are then left out
    as queries and as keys; weight that falls on them is `special_mass`. A stack that is not named
    counts whole. `drain()` gives, for each measure, one value a head.

        confidence    mean over queries of the largest weight on a word (Voita et al., 2019)
        entropy       mean entropy of a query's weights, in nats
        offset        the commonest distance from a query to its strongest key
        offset_share  how often that distance is chosen, among queries that have a word there
        first_share   how often the strongest key is the first word
        special_mass  mean weight on what is not a word
    """

    name: str = "profile"
    reach: int = 8  # distances beyond this are not told apart
    words: Mapping[str, Bool[Tensor, "B T"]] = field(default_factory=dict[str, Tensor])
    _sums: dict[str, _Sums] = field(default_factory=dict[str, _Sums])

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        found = self._count(site, attended)
        if site.name in self._sums:
            self._sums[site.name].add(found)
        else:
            self._sums[site.name] = found

    def drain(self) -> dict[str, dict[str, list[float | int | None]]]:
        """{measure: {site: one value a head}} since the last drain; None where nothing was seen."""
        columns: dict[str, dict[str, list[float | int | None]]] = {}
        for site, sums in self._sums.items():
            for measure, values in self._measures(sums).items():
                columns.setdefault(measure, {})[site] = values
        self._sums.clear()
        return columns

    def _count(self, site: Site, attended: Attended) -> _Sums:
        n_queries, n_keys = attended.scores.shape[2:]
        batch, device = attended.out.shape[0], attended.out.device
        query_BQ = self._words_of(site.queries, batch, n_queries, device)
        key_BK = self._words_of(site.keys, batch, n_keys, device)

        def look(weights_BHQK: Tensor, rows: slice) -> tuple[Tensor, ...]:
            on_words_BHQK = weights_BHQK.masked_fill(~key_BK[:, None, None], 0)
            peak_BHQ, key_BHQ = on_words_BHQK.max(dim=-1)
            entropy_BHQ = torch.special.entr(weights_BHQK).sum(-1)
            special_BHQ = (weights_BHQK - on_words_BHQK).sum(-1)
            return peak_BHQ, key_BHQ, entropy_BHQ, special_BHQ

        peak_BHQ, key_BHQ, entropy_BHQ, special_BHQ = attended.sweep(look)
        counts_BHQ = query_BQ[:, None] & (peak_BHQ + special_BHQ > 0)
        # a query may give words no weight at all: it counts, but points nowhere
        points_BHQ = counts_BHQ & (peak_BHQ > 0)
        position_Q = attended.scores.query_position()[:, 0]
        first_B = key_BK.to(torch.int8).argmax(dim=1)

        def total_H(value_BHQ: Tensor) -> Tensor:
            return (value_BHQ * counts_BHQ).sum(dim=(0, 2), dtype=torch.float64).cpu()

        return _Sums(
            queries=counts_BHQ.sum(dim=(0, 2)).cpu(),
            peak=total_H(peak_BHQ),
            entropy=total_H(entropy_BHQ),
            first=total_H((key_BHQ == first_B[:, None, None]) & points_BHQ),
            special=total_H(special_BHQ),
            hits=self._hits(key_BHQ - position_Q, points_BHQ).cpu(),
            chances=self._chances(query_BQ, key_BK, position_Q, attended).cpu(),
        )

    def _words_of(self, stack: str, batch: int, length: int, device: torch.device) -> Tensor:
        words_BT = self.words.get(stack)
        if words_BT is None:
            return torch.ones(batch, length, dtype=torch.bool, device=device)
        if words_BT.shape != (batch, length):
            raise ValueError(
                f"Profile.words[{stack!r}] must have shape ({batch}, {length}) for this batch, "
                f"got {tuple(words_BT.shape)}. Set it before each forward pass."
            )
        return words_BT.to(device)

    def _hits(self, offset_BHQ: Tensor, points_BHQ: Tensor) -> Tensor:
        bin_BHQ = offset_BHQ.clamp(-self.reach - 1, self.reach + 1) + self.reach + 1
        hit_BHQO = one_hot(bin_BHQ, 2 * self.reach + 3) * points_BHQ[..., None]
        return hit_BHQO.sum(dim=(0, 2))[:, 1:-1]  # both ends are "further away"

    def _chances(
        self, query_BQ: Tensor, key_BK: Tensor, position_Q: Tensor, attended: Attended
    ) -> Tensor:
        """How many queries have a word at each distance."""
        wide_BK = pad(key_BK, (self.reach, self.reach + 1))  # the last stands for "beyond"
        furthest = 0 if attended.scores.causal else self.reach
        counts = [
            (
                wide_BK[:, (position_Q + offset + self.reach).clamp(0, wide_BK.shape[1] - 1)]
                & query_BQ
            ).sum()
            if offset <= furthest
            else query_BQ.new_zeros((), dtype=torch.long)
            for offset in range(-self.reach, self.reach + 1)
        ]
        return torch.stack(counts)

    def _measures(self, sums: _Sums) -> dict[str, list[float | int | None]]:
        best_H = sums.hits.argmax(dim=1)
        best_hits_H = sums.hits.gather(1, best_H[:, None])[:, 0]
        share_H = best_hits_H.double() / sums.chances[best_H].clamp(min=1)
        empty = (sums.queries == 0).tolist()
        columns = {
            "confidence": (sums.peak / sums.queries).tolist(),
            "entropy": (sums.entropy / sums.queries).tolist(),
            "offset": (best_H - self.reach).tolist(),
            "offset_share": share_H.tolist(),
            "first_share": (sums.first / sums.queries).tolist(),
            "special_mass": (sums.special / sums.queries).tolist(),
        }
        return {
            name: [None if none else value for value, none in zip(values, empty, strict=True)]
            for name, values in columns.items()
        }
