"""Pointing: how often a head's strongest word is a right one, by annotation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.recording.profile import is_causal
from headwise.recording.reading import Gold, Reading, WordRows, reading_of
from headwise.recording.tally import REPLICATES, Tallies
from headwise.sites import Site

Asked = tuple[str, str]  # of a kind of site, under a label


@dataclass
class Pointing:
    """Recorder of agreement between heads and annotation, in words.

    Before each forward pass set `reading`, with its `gold`. An annotated word is a hit if its
    strongest word is one of the right ones. Words that were cut off do not count, nor, in a
    decoder, right words that come later. The baseline of a label is the best that one fixed
    distance could do (Voita et al., 2019, section 5.2), for each kind of site, as an encoder and a
    decoder read other words. `drain()` returns each label as a share with a 95 % interval over
    sentences, in alphabetical order; `merge`, `state` and `load` are as in `Profile`.
    """

    name: str = "pointing"
    replicates: int = REPLICATES  # of the bootstrap
    seed: int = 0  # of the bootstrap
    reading: Reading | None = None
    _tallies: Tallies = field(default_factory=Tallies)
    _offsets: dict[Asked, Counter[int]] = field(default_factory=dict[Asked, Counter[int]])
    _annotated: Counter[Asked] = field(default_factory=Counter[Asked])
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
        asked = self._ask(kind, rows, causal=is_causal(site, attended))
        if self._counting.setdefault(kind, site.name) == site.name:
            self._count_offsets(kind, asked)
        hits_LBH = asked.hits(rows.strongest)
        weights_BR = reading.weights(self.replicates, seed=self.seed, device=hits_LBH.device)
        for place, label in enumerate(asked.labels):
            if asked.annotated[place]:
                tally = self._tallies.at(label, site.name)
                tally.add(hits_LBH[place], asked.chances[place, :, None], weights=weights_BR)

    def drain(self) -> dict[str, dict[str, list[float | None]]]:
        """Return {label, and its ends: {site: share of hits per head}}, and start again."""
        columns = self._tallies.columns()
        self._tallies.by_key.clear()
        return columns

    def baselines(self) -> dict[str, float]:
        """Return {label: share of annotated words that the commonest distance gets right}.

        A label that was recorded at several kinds of sites has one entry for each, as
        "encoder.self: previous" and "decoder.self: previous"; see `baselines_at`.
        """
        return {
            name: max(self._offsets[asked].values()) / self._annotated[asked]
            for name, asked in self._names()
            if self._offsets[asked]
        }

    def offsets(self) -> dict[str, dict[int, int]]:
        """Return {label: {distance to a right word: how many annotated words have one there}}.

        Labels are written as in `baselines()`.
        """
        return {name: dict(sorted(self._offsets[asked].items())) for name, asked in self._names()}

    def state(self) -> dict[str, Tensor]:
        """Return all counts, for `load`."""
        offsets = {
            f"offsets/{kind}/{label}": torch.tensor(
                [(0, self._annotated[kind, label]), *sorted(counts.items())], dtype=torch.long
            )
            for (kind, label), counts in self._offsets.items()
        }
        return {f"tally/{key}": x for key, x in self._tallies.state().items()} | offsets

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace all counts by those of a `state()`."""
        parts = {key.partition("/")[::2]: tensor for key, tensor in sorted(state.items())}
        self._tallies.load({key: x for (part, key), x in parts.items() if part == "tally"})
        self._offsets.clear()
        self._annotated.clear()
        for (part, key), counted in parts.items():
            if part == "offsets":
                kind, _, label = key.partition("/")
                (_, self._annotated[kind, label]), *counts = counted.tolist()
                self._offsets[kind, label] = Counter(dict(counts))

    def merge(self, other: "Pointing") -> None:
        """Add the counts of another, of other sentences."""
        self._tallies.merge(other._tallies)
        for asked, counts in other._offsets.items():
            self._offsets.setdefault(asked, Counter()).update(counts)
        self._annotated.update(other._annotated)

    def _names(self) -> list[tuple[str, Asked]]:
        """Return the names of labels, with their kind where there are several, by label."""
        kinds = Counter(label for _, label in self._offsets)
        in_order = sorted(self._offsets, key=lambda asked: asked[::-1])
        return [
            (_of_kind(kind, label) if kinds[label] > 1 else label, (kind, label))
            for kind, label in in_order
        ]

    def _ask(self, kind: str, rows: WordRows, *, causal: bool) -> "_Asked":
        """Return the gold of a kind of site, computed once per batch."""
        if self._asked_of is not self.reading:
            self._asked.clear()
            self._counting.clear()
            self._asked_of = self.reading
        assert self.reading is not None
        # layers of a kind share these very words; so do calls of cached decoding at one position
        key = (kind, id(rows.queries), id(rows.keys), causal)
        if key not in self._asked:
            gold = [gold for gold in self.reading.gold if gold.kind == kind]
            self._asked[key] = _asked(gold, rows, causal=causal)
        return self._asked[key]

    def _count_offsets(self, kind: str, asked: "_Asked") -> None:
        for place, label in enumerate(asked.labels):
            counts = self._offsets.setdefault((kind, label), Counter())
            counts.update(asked.offsets[place])
            self._annotated[kind, label] += asked.annotated[place]


@dataclass(frozen=True, eq=False)
class _Asked:
    """Gold of one kind of site, ready to be compared with what heads attend to.

    R words are annotated; each word's (label, item) is its cell. A right key of a word has the code
    word * span + key + 1.
    """

    labels: list[str]
    item: Tensor  # (R,)
    query: Tensor  # (R,)
    cell: Tensor  # (R,)
    right: Tensor  # codes of all right keys, in order
    span: int
    chances: Tensor  # (L, B), annotated words
    annotated: list[int]  # of each label
    offsets: list[dict[int, int]]  # of each label

    def hits(self, strongest_BHW: Tensor) -> Tensor:
        """Return (L, B, H), how many annotated words of each sentence each head gets right."""
        key_RH = strongest_BHW[self.item, :, self.query]
        words = torch.arange(len(key_RH), device=key_RH.device)
        code_RH = words[:, None] * self.span + key_RH + 1
        place_RH = torch.searchsorted(self.right, code_RH).clamp(max=len(self.right) - 1)
        hit_RH = (self.right[place_RH] == code_RH).double()
        none_XH = hit_RH.new_zeros(self.chances.numel(), hit_RH.shape[1])
        return none_XH.index_add(0, self.cell, hit_RH).view(*self.chances.shape, hit_RH.shape[1])


def _asked(gold: Sequence[Gold], rows: WordRows, *, causal: bool) -> _Asked:
    labels = list(dict.fromkeys(one.label for one in gold))
    batch, most = rows.queries.present.shape
    label_N = torch.cat([torch.full((len(g.right),), labels.index(g.label)) for g in gold])
    right_N3 = torch.cat([one.right.cpu() for one in gold])
    can_N = _can_be_found(right_N3, rows, causal=causal)
    label_N, (item_N, query_N, key_N) = label_N[can_N], right_N3[can_N].unbind(dim=1)
    code_N = (label_N * batch + item_N) * most + query_N
    code_R, word_N = code_N.unique(return_inverse=True)
    cell_R = code_R // max(1, most)
    span = rows.keys.present.shape[1] + 1
    chances_LB = torch.bincount(cell_R, minlength=len(labels) * batch).view(len(labels), batch)
    device = rows.peak.device
    return _Asked(
        labels,
        item=(cell_R % batch).to(device),
        query=(code_R % max(1, most)).to(device),
        cell=cell_R.to(device),
        right=(word_N * span + key_N + 1).unique().to(device),
        span=span,
        chances=chances_LB.double().to(device),
        annotated=chances_LB.sum(dim=1).tolist(),
        offsets=_distances(cell_R // batch, word_N, key_N - query_N, labels=len(labels)),
    )


def _can_be_found(right_N3: Tensor, rows: WordRows, *, causal: bool) -> Tensor:
    """Return which right keys are words of this call, and not later than a causal query."""
    item_N, query_N, key_N = right_N3.unbind(dim=1)
    asks_BW, there_BW = rows.queries.present, rows.keys.present
    if len(item_N) and int(item_N.max()) >= len(asks_BW):
        raise ValueError(
            f"Gold speaks of batch item {int(item_N.max())}, but the batch has {len(asks_BW)}; "
            "count items from 0 in each batch."
        )
    can_N = _is_word(asks_BW, item_N, query_N) & _is_word(there_BW, item_N, key_N)
    return can_N & (key_N <= query_N) if causal else can_N


def _is_word(present_BW: Tensor, item_N: Tensor, number_N: Tensor) -> Tensor:
    most = present_BW.shape[1]
    if not most:
        return torch.zeros_like(number_N, dtype=torch.bool)
    inside_N = (number_N >= 0) & (number_N < most)
    return inside_N & present_BW[item_N, number_N.clamp(0, most - 1)]


def _distances(
    label_R: Tensor, word_N: Tensor, offset_N: Tensor, *, labels: int
) -> list[dict[int, int]]:
    """Count, for each label, the words for which each distance is right."""
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
    """Return a site's name without its layer.

    >>> kind_of("decoder.3.cross")
    'decoder.cross'
    """
    *front, _, last = site.split(".")
    return ".".join([*front, last])


def baselines_at(baselines: Mapping[str, float], kind: str) -> dict[str, float]:
    """Return {label: share} for sites of one kind, from `Pointing.baselines()`.

    Args:
        baselines: labels, with the kind before them where there are several.
        kind: of the sites, e.g. "encoder.self".

    >>> baselines_at({"amod": 0.5, "decoder.self: next": 0.2}, "decoder.self")
    {'amod': 0.5, 'next': 0.2}
    """
    mark = _of_kind(kind, "")
    return {name.removeprefix(mark): share for name, share in baselines.items()}


def _of_kind(kind: str, label: str) -> str:
    return f"{kind}: {label}"
