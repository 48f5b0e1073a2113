"""Looking at attention: how many keys carry weight, and how well cross-attention aligns words."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops.attended import Attended
from headwise.sites import Site, observe
from headwise_papers.data.batches import ParallelBatch
from headwise_papers.data.vocabulary import PAD
from headwise_papers.recipes.translator import Translator

__all__ = ["KINDS", "Alignments", "Keys", "alignment_error", "count_keys", "cross_weights"]

CARRIES = 0.01  # of the weight: from here on a key counts as carrying some
KINDS = {
    "encoder": "encoder.*.self",
    "decoder": "decoder.*.self",
    "cross": "decoder.*.cross",
}


class Keys(NamedTuple):
    """Means over queries, a row a layer and a column a head."""

    weighted: Tensor  # keys with any weight
    carrying: Tensor  # keys with 1 % of the weight or more
    effective: Tensor  # exp of the entropy: as many keys of equal weight are as uncertain
    most: int  # the largest number of keys with any weight


@dataclass
class Counting:
    """A watcher that counts keys; say with `start` which queries are words."""

    real: dict[str, Tensor] = field(default_factory=dict[str, Tensor])  # (B, Q) by stack
    sums: dict[str, Tensor] = field(default_factory=dict[str, Tensor])  # (3, H) by site
    queries: dict[str, int] = field(default_factory=dict[str, int])
    most: dict[str, int] = field(default_factory=dict[str, int])

    def start(self, batch: ParallelBatch) -> None:
        """Before a batch is read."""
        self.real = {"encoder": batch.source != PAD, "decoder": batch.target_in != PAD}

    def __call__(self, site: Site, attended: Attended) -> None:
        def counted(weights_BHQK: Tensor, _: slice) -> tuple[Tensor, ...]:
            logs_BHQK = torch.special.entr(weights_BHQK.float())
            return (
                (weights_BHQK > 0).sum(-1).float(),
                (weights_BHQK >= CARRIES).sum(-1).float(),
                logs_BHQK.sum(-1).exp(),
            )

        found_3BHQ = torch.stack(attended.sweep(counted))
        real_B1Q = self.real[site.queries][:, None]
        found_3BHQ = found_3BHQ.masked_fill(~real_B1Q, 0)
        sums_3H = found_3BHQ.sum(dim=(1, 3)).double().cpu()
        self.sums[site.name] = self.sums.get(site.name, torch.zeros_like(sums_3H)) + sums_3H
        self.queries[site.name] = self.queries.get(site.name, 0) + int(real_B1Q.sum())
        self.most[site.name] = max(self.most.get(site.name, 0), int(found_3BHQ[0].max()))

    def keys(self, kind: str) -> Keys:
        """What was counted at the encoder's, the decoder's or the cross-attention sites."""
        stack, end = ("decoder", "cross") if kind == "cross" else (kind, "self")
        names = [n for n in self.sums if n.startswith(f"{stack}.") and n.endswith(f".{end}")]
        means_L3H = torch.stack([self.sums[name] / self.queries[name] for name in names])
        return Keys(*means_L3H.unbind(1), most=max(self.most[name] for name in names))


@torch.no_grad()
def count_keys(translator: Translator, batches: Sequence[ParallelBatch]) -> dict[str, Keys]:
    """Keys by kind of attention, while a translator reads sentence pairs."""
    translator.model.eval()
    counting = Counting()
    with observe(translator.model, counting):
        for batch in batches:
            counting.start(batch)
            translator.model(batch.source, batch.source_lengths, batch.target_in)
    return {kind: counting.keys(kind) for kind in KINDS}


@torch.no_grad()
def cross_weights(translator: Translator, batch: ParallelBatch) -> Tensor:
    """Cross-attention of a batch as (layers, B, H, T, K), on the CPU."""
    translator.model.eval()
    with _weights_of(translator) as found:
        translator.model(batch.source, batch.source_lengths, batch.target_in)
    return torch.stack(found)


@contextmanager
def _weights_of(translator: Translator) -> Generator[list[Tensor]]:
    found: list[Tensor] = []

    def watch(site: Site, attended: Attended) -> None:
        found.append(attended.weights.float().cpu())

    with observe(translator.model, watch, where=KINDS["cross"]):
        yield found


class Alignments(NamedTuple):
    """What cross-attention says about which word translates which."""

    layer_error: Tensor  # (L,) of the mean over heads
    head_error: Tensor  # (L, H)
    layer_mass: Tensor  # (L,) weight on the aligned word, the mean over heads


def alignment_error(
    weights: Tensor, gold: Sequence[Mapping[int, int]], source_words: Sequence[int]
) -> Alignments:
    """The alignment error rate of links from each target word to the source word it looks at most.

        AER = 1 - 2 |A and S| / (|A| + |S|)

    A is the set of links found and S that of the gold ones, all of them sure. A word that looks at
    the end mark most has no link.

    Args:
        weights: (L, B, H, T, K) from `cross_weights`.
        gold: for each sentence the source position of each target position.
        source_words: how many words each source has, without its end mark.
    """
    rows = [(b, t, s) for b, links in enumerate(gold) for t, s in sorted(links.items())]
    item_N, target_N, source_N = torch.tensor(rows).unbind(1)
    inside_N = torch.tensor(source_words)[item_N]
    asked_NLHK = weights.permute(1, 3, 0, 2, 4)[item_N, target_N]
    mean_NLK = asked_NLHK.mean(2)
    place_NL1 = source_N[:, None, None].expand(-1, mean_NLK.shape[1], 1)
    return Alignments(
        _error(mean_NLK.argmax(-1), source_N, inside_N),
        _error(asked_NLHK.argmax(-1), source_N, inside_N),
        mean_NLK.gather(2, place_NL1)[..., 0].mean(0),
    )


def _error(looked_NX: Tensor, source_N: Tensor, inside_N: Tensor) -> Tensor:
    shape = (-1, *[1] * (looked_NX.dim() - 1))
    right_X = (looked_NX == source_N.view(shape)).sum(0)
    links_X = (looked_NX < inside_N.view(shape)).sum(0)
    return 1 - 2 * right_X / (links_X + len(source_N))
