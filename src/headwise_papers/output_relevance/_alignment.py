"""Alignments of IBM Model 1 on the rows that translators were recorded on."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from headwise_papers.data.batches import parallel_batch
from headwise_papers.data.translation import Pair
from headwise_papers.data.vocabulary import EOS
from headwise_papers.measures.ibm import IbmModel1
from headwise_papers.ops.relevance import holds, packed, peak_positions, top_positions

CHUNK = 64  # pairs aligned together


class Aligned(NamedTuple):
    """What IBM Model 1 says of the target tokens of some pairs, in the order of recorded rows."""

    peak: Int[Tensor, " N"]  # the likeliest source position
    top: UInt8[Tensor, "N P"]  # highly ranked ones, packed
    known: Bool[Tensor, " N"]  # whether any training pair has the target piece
    lengths: Int[Tensor, " N"]


class Both(NamedTuple):
    """Two iterations on the same rows."""

    first: Aligned
    later: Aligned

    @property
    def differing(self) -> Tensor:
        """Known rows whose peaks differ."""
        return self.first.known & (self.first.peak != self.later.peak)

    @property
    def inside(self) -> Tensor:
        """Of these, rows where neither peak is the source's end mark."""
        last_N = torch.maximum(self.first.peak, self.later.peak)
        return self.differing & (last_N < self.first.lengths - 1)


def align(model: IbmModel1, pairs: Sequence[Pair], train: Sequence[Pair]) -> Aligned:
    """Alignments in the order in which `looking_at_pairs` looks.

    Args:
        model: trained with marks of the end on both sides.
        pairs: without marks.
        train: what the model was trained on, likewise.
    """
    ordered = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))
    batch = parallel_batch([source for source, _ in ordered], [target for _, target in ordered])
    real_BT = torch.arange(batch.target_out.shape[1]) < batch.target_lengths[:, None]
    length_N = batch.source_lengths[:, None].expand_as(real_BT)[real_BT]
    peaks: list[Tensor] = []
    tops: list[Tensor] = []
    for rows in torch.arange(len(ordered)).split(CHUNK):
        score_NK = model.scores(batch.source[rows], batch.target_out[rows])[real_BT[rows]]
        lengths = batch.source_lengths[rows, None].expand_as(real_BT[rows])[real_BT[rows]]
        peaks.append(peak_positions(score_NK, lengths))
        tops.append(packed(top_positions(score_NK, lengths)))
    met = torch.tensor(sorted({EOS, *(word for _, target in train for word in target)}))
    known_N = torch.isin(batch.target_out[real_BT], met)
    return Aligned(torch.cat(peaks), torch.cat(tops), known_N, length_N)


def known_rows(both: Both, recorded: Mapping[str, Tensor]) -> Tensor:
    """Rows to compare, once it is sure that they are the recorded ones."""
    if not torch.equal(both.first.lengths, recorded["lengths"].long()):
        raise ValueError(
            "The recorded rows are not those of the validation pairs; read the translators from "
            "a folder that was made with the same data."
        )
    return both.first.known


def controls(aligned: Aligned, untrained: UInt8[Tensor, "R N P"]) -> dict[str, Tensor]:
    """hr of IBM Model 1's peaks in orders of positions that know nothing of the words, (R,) each.

    On known rows: in the output relevance of models before they are trained; in the end mark alone;
    and in the places that its peaks are at most often, from the start or from the end, whichever
    suits it better.

    Args:
        aligned: of IBM Model 1.
        untrained: packed highly ranked positions of R models.
    """
    known = aligned.known
    peak_N, length_N = aligned.peak[known], aligned.lengths[known]
    from_end_N = length_N - 1 - peak_N
    fixed = {
        "the end mark": (from_end_N == 0).double().mean(),
        "the most frequent places": torch.maximum(
            _frequent(peak_N, length_N), _frequent(from_end_N, length_N)
        ),
    }
    return {
        "untrained beta": holds(untrained[:, known], peak_N).double().mean(-1),
        **{name: share.expand(len(untrained)) for name, share in fixed.items()},
    }


def _frequent(place_N: Tensor, length_N: Tensor) -> Tensor:
    """How often a place is among the most frequent ones, as many as a row has highly ranked."""
    count_K = place_N.bincount(minlength=int(length_N.max()))
    rank_K = count_K.argsort(descending=True, stable=True).argsort()
    top_NK = top_positions(-rank_K.double().expand(len(place_N), -1), length_N)
    return top_NK.gather(1, place_N[:, None]).double().mean()
