"""Scores of one attention call, computed for parts of it, never as a whole."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops._impl import Impl, Number, kernel_obstacle, readable
from headwise.ops.checks import (
    check_bias,
    check_cap,
    check_lengths,
    check_mask,
    check_queries_and_keys,
    check_sink,
)

BLOCK_ELEMENTS = 2**20  # scores held at once: 4 MB in float32; larger falls out of the caches
BLOCKS_ON_GPU = 16  # factor on a GPU, where smaller blocks leave most of the device idle
BLOCK_ROWS = 128  # queries of a head per block if possible: with fewer, keys are read more often

Fixed = Callable[[Tensor, Tensor], Tensor]  # (query position, key position) -> score

WIDEST_HEAD = 128  # that Triton kernels take


class Part(NamedTuple):
    """Ranges of batch items, heads and queries."""

    batch: slice
    heads: slice
    rows: slice

    def of(self, broadcastable: Tensor) -> Tensor:
        """Slice a tensor that is broadcastable to (B, H, Q, ...)."""
        for axis, chosen in ((-4, self.batch), (-3, self.heads), (-2, self.rows)):
            if broadcastable.dim() >= -axis and broadcastable.shape[axis] > 1:
                broadcastable = broadcastable[(..., chosen, *[slice(None)] * (-axis - 1))]
        return broadcastable

    def of_keys(self, shared_BGKD: Tensor, num_heads: int) -> Tensor:
        """Slice the keys or values that these heads, of `num_heads`, attend to."""
        group = num_heads // shared_BGKD.shape[1]
        return shared_BGKD[self.batch, self.heads.start // group : -(-self.heads.stop // group)]


@dataclass(frozen=True, eq=False)
class Scores:
    """Queries and keys of one call, and which keys each query may see.

    score = scale * q.k + bias, or `fixed(query position, key position)` for ops that ignore
    content. With a cap, score = cap * tanh(scale * q.k / cap) + bias. A key that may not be
    attended scores -inf. Queries are the last `n_q` positions of the keys when `causal`, as in
    decoding with a cache; otherwise both start at position 0.

    A sink is one more score per head. It takes part in the normalisation of every row, also of
    rows without visible keys, and has no value: weights over keys sum to 1 - the sink's weight.
    """

    q: Tensor
    k: Tensor
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    lengths: Tensor | None = None
    scale: Number | None = None
    fixed: Fixed | None = None
    first: int | None = None  # position of the first query, if not as described above
    cap: Number | None = None
    sink: Tensor | None = None  # (H,)

    def __post_init__(self) -> None:
        check_queries_and_keys(self.q, self.k)
        check_mask(self.mask, self.shape)
        check_bias(self.bias, self.shape)
        check_lengths(self.lengths, self.shape)
        check_cap(self.cap)
        check_sink(self.sink, self.shape[1])
        if self.fixed is not None and (self.cap is not None or self.sink is not None):
            raise ValueError("Fixed scores take no cap= and no sink=, got one; leave it out.")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the scores, (B, H, Q, K)."""
        batch, heads, n_queries, _ = self.q.shape
        return batch, heads, n_queries, self.k.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of scores and weights: float32, or float64 for float64 input."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def multiplier(self) -> Number:
        """Scale of q.k, 1/sqrt(D) by default."""
        return 1 / math.sqrt(self.q.shape[-1]) if self.scale is None else self.scale

    @property
    def first_position(self) -> int:
        """Position of the first query among the keys."""
        if self.first is not None:
            return self.first
        n_queries, n_keys = self.shape[2:]
        return n_keys - n_queries if self.causal else 0

    def query_position(self, rows: slice = slice(None)) -> Tensor:
        """Return the position of each query among the keys, (q, 1)."""
        first, n_queries = self.first_position, self.shape[2]
        return torch.arange(first, first + n_queries, device=self.q.device)[rows, None]

    def key_position(self) -> Tensor:
        """Return the position of each key, (1, K)."""
        return torch.arange(self.shape[3], device=self.q.device)[None]

    @property
    def block_elements(self) -> int:
        """Number of scores held at once."""
        return BLOCK_ELEMENTS * (BLOCKS_ON_GPU if self.q.is_cuda else 1)

    def blocks(self) -> Iterator[slice]:
        """Yield ranges of queries whose scores fit a block; one empty range if there are none."""
        batch, heads, n_queries, n_keys = self.shape
        yield from _ranges(n_queries, self.block_elements // max(1, batch * heads * n_keys))

    def parts(self) -> Iterator[Part]:
        """Yield parts whose scores fit a block; few heads with many queries are preferred."""
        batch, heads, n_queries, n_keys = self.shape
        least = max(1, min(n_queries, BLOCK_ROWS) * n_keys)
        items = max(1, min(batch, self.block_elements // (heads * least)))
        group = heads // self.k.shape[1]
        together = heads
        if items == 1 and self.fixed is None:  # fixed scores are computed for all heads together
            together = min(heads, max(1, self.block_elements // (least * group)) * group)
        rows = self.block_elements // max(1, items * together * n_keys)
        ranges = _ranges(batch, items), _ranges(heads, together), _ranges(n_queries, rows)
        yield from (Part(*part) for part in product(*ranges))

    def all_heads(self, rows: slice = slice(None)) -> Part:
        """Return the part with these queries of every head."""
        batch, heads, n_queries, _ = self.shape
        return Part(slice(0, batch), slice(0, heads), slice(*rows.indices(n_queries)))

    def part(self, part: Part) -> "Scores":
        """Restrict the call to one part."""
        return replace(
            self,
            q=self.q[part],
            k=part.of_keys(self.k, self.shape[1]),
            mask=None if self.mask is None else part.of(self.mask),
            bias=None if self.bias is None else part.of(self.bias),
            lengths=None if self.lengths is None else self.lengths[part.batch],
            first=self.first_position + part.rows.start,
            sink=None if self.sink is None else self.sink[part.heads],
        )

    def widened(self) -> "Scores":
        """Convert q and k to the dtype of the scores."""
        return replace(self, q=self.q.to(self.dtype), k=self.k.to(self.dtype))

    def reach(self) -> int:
        """Count the keys, from the first, that any query may see; at least one."""
        n_queries, n_keys = self.shape[2:]
        seen = self.first_position + n_queries if self.causal else n_keys
        return max(1, min(seen, n_keys))

    def up_to(self, n_keys: int) -> "Scores":
        """Restrict the call to the first keys; queries keep their positions."""
        if n_keys == self.shape[3]:
            return self
        mask, bias = (
            x if x is None or x.shape[-1] == 1 else x[..., :n_keys] for x in (self.mask, self.bias)
        )
        lengths = None if self.lengths is None else self.lengths.clamp(max=n_keys)
        k, first = self.k[:, :, :n_keys], self.first_position
        return replace(self, k=k, mask=mask, bias=bias, lengths=lengths, first=first)

    def rows(self, rows: slice = slice(None)) -> Tensor:
        """Compute the scores of some queries, (B, H, q, K), with -inf at hidden keys."""
        if rows != slice(None):
            return self.part(self.all_heads(rows)).rows()
        scores_BHQK = self._raw()
        if self.bias is not None:
            scores_BHQK = scores_BHQK + self.bias.to(self.dtype)
        visible = self.visible()
        return scores_BHQK if visible is None else scores_BHQK.masked_fill(~visible, -math.inf)

    def sink_column(self) -> Tensor | None:
        """Return the score of the sink for every query, (B, H, Q, 1); None without a sink."""
        if self.sink is None:
            return None
        return self.sink.to(self.dtype)[:, None, None].expand(*self.shape[:3], 1)

    @property
    def hides_keys(self) -> bool:
        """True if a key may be hidden from a query."""
        return self.mask is not None or self.lengths is not None or self.causal

    def visible(self) -> Tensor | None:
        """Mark the keys that may be attended, broadcastable to (B, H, Q, K); None if all may."""
        parts: list[Tensor] = []
        if self.mask is not None:
            parts.append(self.mask)
        if self.lengths is not None:
            parts.append((self.key_position() < self.lengths[:, None])[:, None, None])
        if self.causal:
            parts.append((self.key_position() <= self.query_position())[None, None])
        if not parts:
            return None
        visible = parts[0]
        for part in parts[1:]:
            visible = visible & part
        return visible

    def _raw(self) -> Tensor:
        if self.fixed is not None:
            score = self.fixed(self.query_position(), self.key_position()).to(self.dtype)
            return score.expand(self.shape)
        q_BHQD, k_BGKD = self.q.to(self.dtype), self.k.to(self.dtype)
        if not self.hides_keys or not may_hold_infinities(q_BHQD, k_BGKD):
            return self._products(q_BHQD, k_BGKD)
        # A hidden key gets a gradient of 0, but 0 times infinity is not 0. So products leave out
        # numbers that are not finite, and scores show them as NaN, which the mask then hides.
        scores_BHQK = self._products(finite(q_BHQD), finite(k_BGKD))
        scores_BHQK = scores_BHQK + _nan_where_bad(q_BHQD)[..., None]
        return scores_BHQK + spread_groups(_nan_where_bad(k_BGKD), self.shape[1])[:, :, None]

    def _products(self, q_BHQD: Tensor, k_BGKD: Tensor) -> Tensor:
        multiplier = self.multiplier if self.cap is None else self.multiplier / self.cap
        scores_BHQK = multiply_groups(q_BHQD * multiplier, k_BGKD.transpose(-1, -2))
        return scores_BHQK if self.cap is None else scores_BHQK.tanh() * self.cap


def finite(x: Tensor) -> Tensor:
    """Replace infinite numbers and NaN by 0."""
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _nan_where_bad(x_XD: Tensor) -> Tensor:
    """Return NaN for vectors with a number that is not finite, 0 for others, (X,)."""
    bad_X = ~x_XD.isfinite().all(dim=-1)
    return torch.zeros_like(bad_X, dtype=x_XD.dtype).masked_fill(bad_X, math.nan)


def may_hold_infinities(*tensors: Tensor) -> bool:
    """Return whether a number may be infinite or NaN; True if numbers cannot be read."""
    if not readable(*tensors):
        return True
    sums = [x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32)) for x in tensors]
    return not all(math.isfinite(total.item()) for total in sums)


def attention_obstacle(scores: Scores, impl: Impl, value_width: int = 0) -> str | None:
    """Return why no Triton kernel of attention can run a call, or None."""
    if scores.fixed is not None or scores.bias is not None:
        return "its scores are q.k alone, without a bias or fixed scores"
    if scores.cap is not None or scores.sink is not None:
        return "its kernels take no cap and no sink"
    if max(scores.q.shape[3], value_width) > WIDEST_HEAD:
        return f"its kernels take heads up to {WIDEST_HEAD} wide"
    return kernel_obstacle(scores.q, impl)


def multiply_groups(rows_BHQX: Tensor, shared_BGXY: Tensor) -> Tensor:
    """Multiply matrices, (B, H, Q, Y), where consecutive heads share a right-hand side.

    The result has the dtype of the arguments, also under autocast.
    """
    batch, heads, n_rows, width = rows_BHQX.shape
    groups = shared_BGXY.shape[1]
    with full_precision(rows_BHQX):
        if groups == heads:
            return rows_BHQX @ shared_BGXY
        stacked = rows_BHQX.reshape(batch, groups, heads // groups * n_rows, width)
        return (stacked @ shared_BGXY).view(batch, heads, n_rows, shared_BGXY.shape[-1])


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Disable autocast on the tensor's device: bfloat16 scores would select other keys."""
    kind = tensor.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def spread_groups(shared_BGKD: Tensor, num_heads: int) -> Tensor:
    """Repeat grouped key or value heads so that every query head has its own."""
    groups = shared_BGKD.shape[1]
    return (
        shared_BGKD
        if groups == num_heads
        else shared_BGKD.repeat_interleave(num_heads // groups, dim=1)
    )


def _ranges(total: int, step: int) -> list[slice]:
    """Split 0 to total into ranges of at least 1; one empty range if total is 0."""
    step = max(1, step)
    return [slice(i, min(i + step, total)) for i in range(0, max(1, total), step)]
