"""How often a head's strongest word is a right one, against annotation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.recording.profile import is_causal
from headwise.recording.reading import Gold, Reading, reading_of
from headwise.recording.tally import REPLICATES, Tally
from headwise.recording.word_rows import WordRows
from headwise.sites import Site

__all__ = ["Gold", "Pointing", "kind_of"]

Tallies = dict[tuple[str, str], Tally]  # by (label, site)


@dataclass
class Pointing:
    """A recorder of agreement between heads and annotation, in words.

    Before each forward pass set `reading`, with its `gold`. An annotated word is a hit if its
    strongest word is one of the right ones. What cannot be found is not asked: words that were
    cut off, and, in a decoder, right words that come later. The baseline of a label is the best
    that one fixed distance could do (Voita et al., 2019, section 5.2). `drain()` gives each label
    as a share with a 95 % interval over sentences; `merge`, `state` and `load` are as in `Profile`.
    """

    name: str = "pointing"
    replicates: int = REPLICATES  # of the bootstrap
    seed: int = 0  # of the bootstrap
    reading: Reading | None = None
    _tallies: Tallies = field(default_factory=dict[tuple[str, str], Tally])
    _offsets: dict[str, Counter[int]] = field(default_factory=dict[str, Counter[int]])
    _annotated: Counter[str] = field(default_factory=Counter[str])
    _asked: "dict[tuple[object, ...], _Asked]" = field(
        default_factory=dict[tuple[object, ...], "_Asked"]
    )
    _counting: dict[str, str] = field(default_factory=dict[str, str])  # kind -> site
    _asked_of: Reading | None = None

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        reading, kind = reading_of("Pointing", self.reading), kind_of(site.name)
        if not any(gold.kind == kind for gold in reading.gold):
            return
        rows = reading.rows(site, attended)
        asked = self._ask(kind, rows, looks_back=is_causal(site, attended))
        if self._counting.setdefault(kind, site.name) == site.name:
            self._count_offsets(asked)
        hits_LBH = asked.hits(rows.strongest)
        weights_BR = reading.weights(self.replicates, seed=self.seed, device=hits_LBH.device)
        for place, label in enumerate(asked.labels):
            if asked.annotated[place]:
                tally = self._tallies.setdefault((label, site.name), Tally())
                tally.add(hits_LBH[place], asked.chances[place, :, None], weights=weights_BR)

    def drain(self) -> dict[str, dict[str, list[float | None]]]:
        """{label, and its ends: {site: share of hits, one value a head}}, and start afresh."""
        columns: dict[str, dict[str, list[float | None]]] = {}
        for (label, site), tally in self._tallies.items():
            for column, values in tally.shares().columns(label).items():
                columns.setdefault(column, {})[site] = values
        self._tallies.clear()
        return columns

    def baselines(self) -> dict[str, float]:
        """{label: share of annotated words that the commonest distance gets right}."""
        return {
            label: max(offsets.values()) / self._annotated[label]
            for label, offsets in self._offsets.items()
            if offsets
        }

    def offsets(self) -> dict[str, dict[int, int]]:
        """{label: {distance to a right word: how many annotated words have one there}}."""
        return {label: dict(sorted(offsets.items())) for label, offsets in self._offsets.items()}

    def state(self) -> dict[str, Tensor]:
        """All counts, for `load`."""
        tallies = {
            f"tally/{site}/{label}/{part}": tensor
            for (label, site), tally in self._tallies.items()
            for part, tensor in tally.state().items()
        }
        offsets = {
            f"offsets/{label}": torch.tensor(
                [(0, self._annotated[label]), *sorted(counts.items())], dtype=torch.long
            )
            for label, counts in self._offsets.items()
        }
        return tallies | offsets

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave; what was counted since is forgotten."""
        self._tallies.clear()
        self._offsets.clear()
        self._annotated.clear()
        for key, tensor in state.items():
            sort, _, rest = key.partition("/")
            if sort == "offsets":
                (_, annotated), *counts = tensor.tolist()
                self._annotated[rest], self._offsets[rest] = annotated, Counter(dict(counts))
            elif rest.endswith("/hits"):
                site, _, label = rest.removesuffix("/hits").partition("/")
                tally = self._tallies.setdefault((label, site), Tally())
                chances = state[key.removesuffix("hits") + "chances"]
                tally.load({"hits": tensor, "chances": chances})

    def merge(self, other: "Pointing") -> None:
        """Add the counts of another, of other sentences."""
        for key, tally in other._tallies.items():
            self._tallies.setdefault(key, Tally()).merge(tally)
        for label, counts in other._offsets.items():
            self._offsets.setdefault(label, Counter()).update(counts)
        self._annotated.update(other._annotated)

    def _ask(self, kind: str, rows: WordRows, *, looks_back: bool) -> "_Asked":
        """What is asked of sites of a kind, worked out once a batch."""
        if self._asked_of is not self.reading:
            self._asked.clear()
            self._counting.clear()
            self._asked_of = self.reading
        assert self.reading is not None
        # layers of a kind share these very words; so do calls of cached decoding at one position
        key = (kind, id(rows.queries), id(rows.keys), looks_back)
        if key not in self._asked:
            gold = [gold for gold in self.reading.gold if gold.kind == kind]
            self._asked[key] = _asked(gold, rows, looks_back=looks_back)
        return self._asked[key]

    def _count_offsets(self, asked: "_Asked") -> None:
        for place, label in enumerate(asked.labels):
            counts = self._offsets.setdefault(label, Counter())
            counts.update(asked.offsets[place])
            self._annotated[label] += asked.annotated[place]


@dataclass(frozen=True, eq=False)
class _Asked:
    """The gold of one kind of site, ready to be compared with where heads look.

    N right keys belong to R annotated words; each word's (label, item) is its cell.
    """

    labels: list[str]
    right: tuple[Tensor, Tensor, Tensor]  # item, query and key, (N,) each
    word: Tensor  # (N,), to which of the R words a right key belongs
    cell: Tensor  # (R,)
    chances: Tensor  # (L, B), annotated words
    annotated: list[int]  # of each label
    offsets: list[dict[int, int]]  # of each label

    def hits(self, strongest_BHW: Tensor) -> Tensor:
        """(L, B, H), how many annotated words of each sentence each head gets right."""
        item_N, query_N, key_N = self.right
        heads = strongest_BHW.shape[1]
        match_NH = (strongest_BHW[item_N, :, query_N] == key_N[:, None]).double()
        none_RH = match_NH.new_zeros(len(self.cell), heads)
        hit_RH = none_RH.index_add(0, self.word, match_NH).clamp(max=1)
        none_XH = match_NH.new_zeros(self.chances.numel(), heads)
        return none_XH.index_add(0, self.cell, hit_RH).view(*self.chances.shape, heads)


def _asked(gold: Sequence[Gold], rows: WordRows, *, looks_back: bool) -> _Asked:
    labels = list(dict.fromkeys(one.label for one in gold))
    batch, most = rows.queries.present.shape
    label_N = torch.cat([torch.full((len(g.right),), labels.index(g.label)) for g in gold])
    right_N3 = torch.cat([one.right.cpu() for one in gold])
    can_N = _can_be_found(right_N3, rows, looks_back=looks_back)
    label_N, (item_N, query_N, key_N) = label_N[can_N], right_N3[can_N].unbind(dim=1)
    code_N = (label_N * batch + item_N) * most + query_N
    code_R, word_N = code_N.unique(return_inverse=True)
    cell_R = code_R // max(1, most)
    chances_LB = torch.bincount(cell_R, minlength=len(labels) * batch).view(len(labels), batch)
    device = rows.peak.device
    return _Asked(
        labels,
        right=(item_N.to(device), query_N.to(device), key_N.to(device)),
        word=word_N.to(device),
        cell=cell_R.to(device),
        chances=chances_LB.double().to(device),
        annotated=chances_LB.sum(dim=1).tolist(),
        offsets=_distances(cell_R // batch, word_N, key_N - query_N, labels=len(labels)),
    )


def _can_be_found(right_N3: Tensor, rows: WordRows, *, looks_back: bool) -> Tensor:
    """Which right keys are words of this call, and not later than a causal query."""
    item_N, query_N, key_N = right_N3.unbind(dim=1)
    asks_BW, there_BW = rows.queries.present, rows.keys.present
    if len(item_N) and int(item_N.max()) >= len(asks_BW):
        raise ValueError(
            f"Gold speaks of batch item {int(item_N.max())}, but the batch has {len(asks_BW)}; "
            "count items from 0 in each batch."
        )
    can_N = _is_word(asks_BW, item_N, query_N) & _is_word(there_BW, item_N, key_N)
    return can_N & (key_N <= query_N) if looks_back else can_N


def _is_word(present_BW: Tensor, item_N: Tensor, number_N: Tensor) -> Tensor:
    most = present_BW.shape[1]
    if not most:
        return torch.zeros_like(number_N, dtype=torch.bool)
    inside_N = (number_N >= 0) & (number_N < most)
    return inside_N & present_BW[item_N, number_N.clamp(0, most - 1)]


def _distances(
    label_R: Tensor, word_N: Tensor, offset_N: Tensor, *, labels: int
) -> list[dict[int, int]]:
    """Of each label, in how many words each distance is right; one word counts it once."""
    found: list[dict[int, int]] = [{} for _ in range(labels)]
    if len(offset_N):
        furthest = int(offset_N.abs().max())
        span = 2 * furthest + 1
        once_M = (word_N * span + offset_N + furthest).unique()
        place_M = label_R[once_M // span] * span + once_M % span
        for place, count in zip(
            *(x.tolist() for x in place_M.unique(return_counts=True)), strict=True
        ):
            found[place // span][place % span - furthest] = count
    return found


def kind_of(site: str) -> str:
    """A site's name without its layer.

    >>> kind_of("decoder.3.cross")
    'decoder.cross'
    """
    *front, _, last = site.split(".")
    return ".".join([*front, last])
