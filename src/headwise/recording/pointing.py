"""How often a head's strongest key is a right one, against gold annotation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.sites import Site


@dataclass(frozen=True, eq=False)
class Gold:
    """What heads might point at in one batch, under one label.

    Args:
        label: the column's name, e.g. "nsubj_to_head".
        kind: the sites it speaks of, e.g. "encoder.self" or "decoder.cross".
        right: (N, 3) of (batch item, query, right key). A query may have several right keys.
    """

    label: str
    kind: str
    right: Int[Tensor, "N 3"]


@dataclass
class Pointing:
    """A recorder of agreement between heads and annotation. Set `gold` before each forward pass.

    A query with annotation is a hit if its strongest key is one of its right keys. The baseline
    of a label is the best that one fixed distance could do (Voita et al., 2019, section 5.2).
    """

    name: str = "pointing"
    gold: Sequence[Gold] = ()
    _hits: dict[str, dict[str, Tensor]] = field(default_factory=dict[str, dict[str, Tensor]])
    _queries: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _offsets: dict[str, Counter[int]] = field(default_factory=dict[str, Counter[int]])
    _annotated: Counter[str] = field(default_factory=Counter[str])

    @torch.no_grad()
    def __call__(self, site: Site, attended: Attended) -> None:
        for gold in self.gold:
            if kind_of(site.name) == gold.kind and len(gold.right):
                hit_RH, queries = _hits(attended.peak_key, gold.right.to(attended.out.device))
                per_site = self._hits.setdefault(gold.label, {})
                per_site[site.name] = per_site.get(site.name, 0) + hit_RH.sum(dim=0).cpu()
                self._queries[gold.label, site.name] += queries

    def count_offsets(self) -> None:
        """Note the distances in the present `gold`, once a batch, for the baselines."""
        for gold in self.gold:
            rows = {(item, query) for item, query, _ in gold.right.tolist()}
            offsets = {(i, q, key - q) for i, q, key in gold.right.tolist()}
            self._annotated[gold.label] += len(rows)
            self._offsets.setdefault(gold.label, Counter()).update(o for _, _, o in offsets)

    def drain(self) -> dict[str, dict[str, list[float]]]:
        """{label: {site: share of hits, one value a head}}, and start afresh."""
        shares = {
            label: {
                site: (hits_H.double() / self._queries[label, site]).tolist()
                for site, hits_H in per_site.items()
            }
            for label, per_site in self._hits.items()
        }
        self._hits.clear()
        self._queries.clear()
        return shares

    def baselines(self) -> dict[str, float]:
        """{label: share of annotated queries that the commonest distance gets right}."""
        return {
            label: offsets.most_common(1)[0][1] / self._annotated[label]
            for label, offsets in self._offsets.items()
            if offsets
        }


def kind_of(site: str) -> str:
    """A site's name without its layer.

    >>> kind_of("decoder.3.cross")
    'decoder.cross'
    """
    *front, _, last = site.split(".")
    return ".".join([*front, last])


def _hits(peak_key_BHQ: Tensor, right_N3: Tensor) -> tuple[Tensor, int]:
    """Hits (queries, H) and the number of annotated queries."""
    item_N, query_N, key_N = right_N3.unbind(dim=1)
    match_NH = peak_key_BHQ[item_N, :, query_N] == key_N[:, None]
    row_N = item_N * peak_key_BHQ.shape[2] + query_N
    rows_R, place_N = row_N.unique(return_inverse=True)
    none_RH = torch.zeros(len(rows_R), match_NH.shape[1], dtype=torch.long, device=row_N.device)
    hit_RH = none_RH.index_add(0, place_N, match_NH.long()) > 0
    return hit_RH, len(rows_R)
