"""Attended: the record of one attention call, with row statistics on demand."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.ops.scores import Scores, cut, join_blocks

T = TypeVar("T")
Reduce = Callable[[Tensor, slice], tuple[Tensor, ...]]
Weigh = Callable[[Tensor], Tensor]  # scores, -inf where masked -> weights, one row at a time


class _Rows(NamedTuple):
    """Statistics of some queries, each (B, H, q)."""

    lse: Tensor
    peak: Tensor
    peak_key: Tensor
    entropy: Tensor
    sum_squares: Tensor


@dataclass(eq=False)
class Attended:
    """One attention call: its output, and what its weights look like.

    `out` is there at once. Every statistic is computed when first read, in blocks of queries, so
    it costs O(B·H·Q) memory and one block; `weights` alone builds the (B, H, Q, K) tensor.
    Statistics are those of the weights before dropout, and carry gradients to q, k and bias.
    A query with nothing to attend has weights, peak, entropy and sum_squares 0, lse -inf and
    peak_key -1.
    """

    out: Float[Tensor, "B H Q E"]
    scores: Scores
    weigh: Weigh
    exponential: bool = True  # weights are exp(score - lse) on their support

    @property
    def lse(self) -> Float[Tensor, "B H Q"]:
        """Log of the sum of exp(score) over the keys the op kept."""
        if not self.exponential:
            raise ValueError(
                "This op does not normalise by a sum of exponentials, so it has no lse. "
                "Read peak, entropy, sum_squares, mass(...) or weights instead."
            )
        return self._rows.lse

    @property
    def peak(self) -> Float[Tensor, "B H Q"]:
        """The largest weight of each query."""
        return self._rows.peak

    @property
    def peak_key(self) -> Int[Tensor, "B H Q"]:
        """The key with the largest weight, the first on ties."""
        return self._rows.peak_key

    @property
    def entropy(self) -> Float[Tensor, "B H Q"]:
        """-sum w log w, in nats."""
        return self._rows.entropy

    @property
    def sum_squares(self) -> Float[Tensor, "B H Q"]:
        """sum w^2: 1 for a one-hot row, 1/n for a uniform one."""
        return self._rows.sum_squares

    @cached_property
    def weights(self) -> Float[Tensor, "B H Q K"]:
        """The whole attention matrix. The only thing here that needs O(Q·K) memory."""
        return self._block(slice(None))

    def mass(
        self, *, keys: Bool[Tensor, "..."] | None = None, offset: int | None = None
    ) -> Float[Tensor, "B H Q"]:
        """Weight that falls on chosen keys.

        Args:
            keys: boolean, (B, K) or broadcastable to (B, H, Q, K).
            offset: the one key at the query's position + offset; 0 where there is none.
        """
        if (keys is None) == (offset is None):
            raise ValueError("mass() takes either keys= or offset=, and exactly one of them.")
        if keys is not None and keys.dtype != torch.bool:
            raise ValueError(f"keys must be boolean, True where weight counts, got {keys.dtype}.")

        def on_chosen(weights_BHQK: Tensor, rows: slice) -> tuple[Tensor]:
            return ((weights_BHQK * self._chosen(rows, keys, offset)).sum(-1),)

        return self.sweep(on_chosen)[0]

    def sweep(self, reduce: Reduce) -> tuple[Float[Tensor, "B H Q"], ...]:
        """Your own row statistics in one pass, never the whole matrix.

        Args:
            reduce: (weights (B, H, q, K), the range of queries) -> tensors of shape (B, H, q).
        """

        def of_rows(rows: slice) -> tuple[Tensor, ...]:
            return reduce(self._block(rows), rows)

        return self._join(of_rows)

    @cached_property
    def _rows(self) -> _Rows:
        return _Rows(*self._join(self._rows_of))

    def _block(self, rows: slice) -> Tensor:
        return self.weigh(self.scores.rows(rows))

    def _join(self, of_rows: Callable[[slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        return join_blocks(self.scores, lambda rows: self._remember_little(of_rows, rows))

    def _remember_little(self, of_rows: Callable[[slice], T], rows: slice) -> T:
        """Run on one block; for the backward pass recompute the block, do not keep it."""
        if not torch.is_grad_enabled():
            return of_rows(rows)
        return checkpoint(of_rows, rows, use_reentrant=False, preserve_rng_state=False)

    def _rows_of(self, rows: slice) -> _Rows:
        scores_BHQK = self.scores.rows(rows)
        weights_BHQK = self.weigh(scores_BHQK)
        peak_BHQ, peak_key_BHQ = weights_BHQK.max(dim=-1)
        empty_BHQ = peak_BHQ == 0
        top_score_BHQ = scores_BHQK.gather(-1, peak_key_BHQ[..., None])[..., 0]
        lse_BHQ = top_score_BHQ - peak_BHQ.masked_fill(empty_BHQ, 1).log()
        positive_BHQK = weights_BHQK.masked_fill(weights_BHQK == 0, 1)
        return _Rows(
            lse=lse_BHQ.masked_fill(empty_BHQ, -math.inf),
            peak=peak_BHQ,
            peak_key=peak_key_BHQ.masked_fill(empty_BHQ, -1),
            entropy=-(positive_BHQK * positive_BHQK.log()).sum(-1),
            sum_squares=weights_BHQK.square().sum(-1),
        )

    def _chosen(self, rows: slice, keys: Tensor | None, offset: int | None) -> Tensor:
        """The keys whose weight is asked for, broadcastable to (B, H, q, K)."""
        if keys is None:
            assert offset is not None
            return self.scores.key_position() == self.scores.query_position(rows) + offset
        return keys[:, None, None] if keys.dim() == 2 else cut(keys, rows)
