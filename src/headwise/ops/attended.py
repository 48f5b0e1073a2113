"""Attended: the record of one attention call, with row statistics on demand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from headwise.ops._impl import choose
from headwise.ops.checks import check_chosen_keys, check_whole_number
from headwise.ops.row_sweep import (
    Rows,
    mass_at,
    mass_on,
    row_statistics,
    sweep_obstacle,
    swept_by_triton,
)
from headwise.ops.rows import Block, Compute, RowFunction, in_blocks, softmax_rows, weights_of
from headwise.ops.scores import Scores

T = TypeVar("T")
Reduce = Callable[[Tensor, slice], tuple[Tensor, ...]]


def _nothing() -> dict[str, Any]:
    """Return an empty dict; torch.compile cannot trace `dict[str, Any]` as a factory."""
    return {}


@dataclass(eq=False)
class Attended:
    """Record of one attention call: its output, and statistics of its weights on demand.

    Every statistic is computed when first read, in blocks of queries. It and its gradient need
    O(B·H·Q) memory and one block; only `weights` builds the (B, H, Q, K) tensor. Statistics are
    those of the weights before dropout. They carry gradients to q, k, bias, sink and the op's own
    tensors, such as a learned alpha.

    A query with nothing to attend has weights, peak, entropy and sum_squares 0, lse -inf and
    peak_key -1.

    With a sink, `peak`, `entropy`, `sum_squares` and `mass` are still those of the weights over
    keys, which then sum to 1 - `sink_weight`. A query with nothing to attend gives all its weight
    to the sink: its sink_weight is 1 and its lse the sink's score. A query with all its weight on
    the sink also has peak_key -1.
    """

    out: Float[Tensor, "B H Q E"]
    scores: Scores
    row_function: RowFunction
    exponential: bool = True  # weights are exp(score - lse) on their support
    # the op's own tensors: weights = row_function(scores, *parameters)
    parameters: tuple[Tensor, ...] = ()
    statistics_impl: Literal["auto", "torch", "triton"] = "auto"  # blocks, or one fused sweep
    _read: dict[str, Any] = field(default_factory=_nothing, init=False, repr=False)

    @property
    def lse(self) -> Float[Tensor, "B H Q"]:
        """Log of the sum of exp(score) over the keys that the op kept, and over the sink.

        Weights are exp(score - lse) on the kept keys, and sink_weight is exp(sink - lse).
        """
        if not self.exponential:
            raise ValueError(
                "This op does not normalise by a sum of exponentials, so it has no lse. "
                "Read peak, entropy, sum_squares, mass(...) or weights instead."
            )
        return self._rows.lse

    @property
    def peak(self) -> Float[Tensor, "B H Q"]:
        """Largest weight of each query over its keys."""
        return self._rows.peak

    @property
    def peak_key(self) -> Int[Tensor, "B H Q"]:
        """Key with the largest weight, the first on ties; -1 where no key has weight."""
        return self._rows.peak_key

    @property
    def entropy(self) -> Float[Tensor, "B H Q"]:
        """Entropy of the weights over the keys, -sum w log w, in nats."""
        return self._rows.entropy

    @property
    def sum_squares(self) -> Float[Tensor, "B H Q"]:
        """Sum of w^2 over the keys: 1 for a one-hot row, 1/n for a uniform one."""
        return self._rows.sum_squares

    @property
    def sink_weight(self) -> Float[Tensor, "B H Q"]:
        """Weight of the sink in each query; 0 without a sink."""
        return self._rows.sink_weight

    @property
    def weights(self) -> Float[Tensor, "B H Q K"]:
        """Whole attention matrix; the only property that needs O(Q·K) memory."""
        return self._once(
            "weights", lambda: weights_of(self.scores, self.row_function, *self.parameters)
        )

    def mass(
        self, *, keys: Bool[Tensor, "..."] | None = None, offset: int | None = None
    ) -> Float[Tensor, "B H Q"]:
        """Sum the weight on chosen keys.

        Args:
            keys: Boolean, (B, K) or broadcastable to (B, H, Q, K); two axes are always (B, K).
            offset: Choose the one key at the query's position + offset; 0 if there is none.
        """
        if (keys is None) == (offset is None):
            given = "none" if keys is None else "both"
            raise ValueError(f"mass() takes exactly one of keys= and offset=, got {given}.")
        if keys is not None:
            check_chosen_keys(keys, self.scores.shape)
            keys = keys[:, None, None] if keys.dim() == 2 else keys
            if self._is_fused(keys):
                return self._fused_mass(keys=keys)
            keys = keys.expand(torch.broadcast_shapes(keys.shape, self.scores.shape[3:]))
            return self._in_parts(partial(mass_on, row_function=self.row_function, keys=keys))[0]
        assert offset is not None
        check_whole_number("offset", offset)
        if self._is_fused():
            return self._fused_mass(offset=offset)
        return self._in_parts(partial(mass_at, row_function=self.row_function, offset=offset))[0]

    def sweep(self, reduce: Reduce) -> tuple[Shaped[Tensor, "B H Q"], ...]:
        """Compute your own row statistics in one pass, without the whole matrix.

        Gradients go through the weights only. The backward pass calls `reduce` once more for every
        range.

        Args:
            reduce: (weights (B, H, q, K), the range of queries) -> tensors of shape (B, H, q).
        """
        _refuse_captured_gradients(reduce)
        row_function = self.row_function

        def compute(block: Block) -> tuple[Tensor, ...]:
            weights_BHQK = weights_of(block.scores, row_function, *block.parameters)
            return reduce(weights_BHQK, block.part.rows)

        parts = [self.scores.all_heads(rows) for rows in self.scores.blocks()]
        return in_blocks(compute, self.scores, parts, parameters=self.parameters)

    @property
    def _rows(self) -> Rows:
        return self._once("rows", self._compute_rows)

    def _compute_rows(self) -> Rows:
        if self._is_fused():
            swept = swept_by_triton(self.scores, offset=None, keys=None, statistics=True)
            return Rows(*swept[:5], sink_weight=torch.zeros_like(swept[0]))
        return Rows(*self._in_parts(partial(row_statistics, row_function=self.row_function)))

    def _is_fused(self, keys: Tensor | None = None) -> bool:
        """Return whether a Triton kernel computes the statistics."""
        obstacle = "it knows softmax weights only"
        if self.row_function is softmax_rows:
            obstacle = sweep_obstacle(self.scores, keys, self.statistics_impl)
        return choose(self.statistics_impl, triton_obstacle=obstacle) == "triton"

    def _fused_mass(self, *, offset: int | None = None, keys: Tensor | None = None) -> Tensor:
        swept = swept_by_triton(self.scores, offset=offset, keys=keys, statistics=False)
        return swept[5] if keys is None else swept[6]

    def _in_parts(self, compute: Compute) -> tuple[Tensor, ...]:
        parts = list(self.scores.parts())
        return in_blocks(compute, self.scores, parts, parameters=self.parameters)

    def _once(self, name: str, compute: Callable[[], T]) -> T:
        """Compute once, and again if first read without gradients and now with them."""
        cached, with_gradients = self._read.get(name, (None, False))
        if cached is None or (torch.is_grad_enabled() and not with_gradients):
            cached = compute()
            self._read[name] = cached, torch.is_grad_enabled()
        return cached


def _refuse_captured_gradients(reduce: Reduce) -> None:
    """Raise if `reduce` captures a tensor whose gradient would be lost."""
    if not torch.is_grad_enabled():
        return
    for cell in getattr(reduce, "__closure__", None) or ():
        captured = cell.cell_contents
        if isinstance(captured, Tensor) and captured.requires_grad:
            raise ValueError(
                "reduce must send gradients through the weights only, got a captured tensor of "
                f"shape {tuple(captured.shape)} that needs one; detach it, or multiply "
                "after the sweep."
            )
