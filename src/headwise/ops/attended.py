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

from headwise.ops.scores import Scores, cut

T = TypeVar("T")
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
        return self._sweep(lambda rows: self._mass_rows(rows, keys, offset))

    def only(self, keys: Bool[Tensor, "B K"]) -> "Attended":
        """The same call with the weight on all other keys left out, and not renormalised."""

        def weigh(scores_BHQK: Tensor) -> Tensor:
            return self.weigh(scores_BHQK).masked_fill(~keys[:, None, None], 0)

        return Attended(self.out, self.scores, weigh, exponential=False)

    @cached_property
    def _rows(self) -> _Rows:
        blocks = [self._remember_little(self._rows_of, rows) for rows in self.scores.blocks()]
        return _Rows(*(torch.cat(parts, dim=2) for parts in zip(*blocks, strict=True)))

    def _block(self, rows: slice) -> Tensor:
        return self.weigh(self.scores.rows(rows))

    def _sweep(self, of_rows: Callable[[slice], Tensor]) -> Tensor:
        parts = [self._remember_little(of_rows, rows) for rows in self.scores.blocks()]
        return torch.cat(parts, dim=2)

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

    def _mass_rows(self, rows: slice, keys: Tensor | None, offset: int | None) -> Tensor:
        weights_BHQK = self._block(rows)
        if keys is None:
            assert offset is not None
            position_QK = self.scores.query_position(rows) + offset
            chosen = self.scores.key_position() == position_QK
        elif keys.dim() == 2:
            chosen = keys[:, None, None]
        else:
            chosen = cut(keys, rows)
        return (weights_BHQK * chosen).sum(-1)
