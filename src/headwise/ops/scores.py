"""The scores of one attention call, computed in blocks of queries, never as a whole."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**22  # scores held at once: 16 MB in float32

Fixed = Callable[[Tensor, Tensor], Tensor]  # (query position, key position) -> score


@dataclass(frozen=True, eq=False)
class Scores:
    """What one call compares, and which keys each query may see.

    score = scale * q.k + bias, or `fixed(query position, key position)` for ops that do not look
    at content. A key that may not be attended scores -inf. Queries are the last `n_q` positions
    of the keys when `causal`, as in decoding with a cache; otherwise both start at position 0.
    """

    q: Tensor
    k: Tensor
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    lengths: Tensor | None = None
    scale: float | None = None
    fixed: Fixed | None = None

    def __post_init__(self) -> None:
        _check_queries_and_keys(self.q, self.k)
        _check_mask(self.mask, self.shape)
        _check_bias(self.bias, self.shape)
        _check_lengths(self.lengths, self.shape)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q, K)."""
        batch, heads, n_queries, _ = self.q.shape
        return batch, heads, n_queries, self.k.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """What scores and weights are computed in: float32, or float64 for float64 input."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def multiplier(self) -> float:
        """The scale, 1/sqrt(D) unless one was given."""
        return 1 / math.sqrt(self.q.shape[-1]) if self.scale is None else self.scale

    def query_position(self, rows: slice = slice(None)) -> Tensor:
        """Where each query stands among the keys, shape (q, 1)."""
        n_queries, n_keys = self.shape[2:]
        shift = n_keys - n_queries if self.causal else 0
        position_Q = torch.arange(shift, shift + n_queries, device=self.q.device)
        return position_Q[rows, None]

    def key_position(self) -> Tensor:
        """Shape (1, K)."""
        return torch.arange(self.shape[3], device=self.q.device)[None]

    def blocks(self) -> Iterator[slice]:
        """Ranges of queries whose scores fit a block; one empty range when there are no queries."""
        batch, heads, n_queries, n_keys = self.shape
        step = max(1, BLOCK_ELEMENTS // max(1, batch * heads * n_keys))
        for start in range(0, max(1, n_queries), step):
            yield slice(start, min(start + step, n_queries))

    def rows(self, rows: slice = slice(None)) -> Tensor:
        """Scores of some queries, (B, H, q, K), with -inf where a key may not be attended."""
        scores_BHQK = self._raw(rows)
        if self.bias is not None:
            scores_BHQK = scores_BHQK + cut(self.bias, rows).to(self.dtype)
        visible = self.visible(rows)
        return scores_BHQK if visible is None else scores_BHQK.masked_fill(~visible, -math.inf)

    def visible(self, rows: slice = slice(None)) -> Tensor | None:
        """Which keys may be attended, broadcastable to (B, H, q, K); None when all may."""
        parts: list[Tensor] = []
        if self.mask is not None:
            parts.append(cut(self.mask, rows))
        if self.lengths is not None:
            parts.append((self.key_position() < self.lengths[:, None])[:, None, None])
        if self.causal:
            parts.append((self.key_position() <= self.query_position(rows))[None, None])
        if not parts:
            return None
        visible = parts[0]
        for part in parts[1:]:
            visible = visible & part
        return visible

    def _raw(self, rows: slice) -> Tensor:
        q_BHQD = self.q[:, :, rows].to(self.dtype)
        if self.fixed is not None:
            score = self.fixed(self.query_position(rows), self.key_position()).to(self.dtype)
            return score.expand(*q_BHQD.shape[:3], self.shape[3])
        k_BHKD = spread_groups(self.k, self.shape[1]).to(self.dtype)
        return (q_BHQD * self.multiplier) @ k_BHKD.transpose(-1, -2)


def join_blocks(
    scores: Scores, compute: Callable[[slice], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Each result of `compute(rows)`, (B, H, q, ...), for all queries together.

    Results are copied into tensors made once. Kept as they are, small ones would be carved out of
    the memory a block has freed, the next block would not fit there, and memory would grow block
    by block until it equals that of the whole matrix.
    """
    whole: tuple[Tensor, ...] = ()
    for rows in scores.blocks():
        parts = compute(rows)
        if not whole:
            queries = scores.shape[2]
            whole = tuple(
                part.new_empty(*part.shape[:2], queries, *part.shape[3:]) for part in parts
            )
        for full, part in zip(whole, parts, strict=True):
            full[:, :, rows] = part
    return whole


def spread_groups(shared_BGKD: Tensor, num_heads: int) -> Tensor:
    """Repeat grouped key or value heads so that every query head has its own."""
    groups = shared_BGKD.shape[1]
    return (
        shared_BGKD
        if groups == num_heads
        else shared_BGKD.repeat_interleave(num_heads // groups, dim=1)
    )


def cut(broadcastable: Tensor, rows: slice) -> Tensor:
    """The queries `rows` of something broadcastable to (B, H, Q, K)."""
    has_queries = broadcastable.dim() >= 2 and broadcastable.shape[-2] > 1
    return broadcastable[..., rows, :] if has_queries else broadcastable


def _check_queries_and_keys(q: Tensor, k: Tensor) -> None:
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(
            "q, k and v must have the axes (batch, heads, positions, width), "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)}."
        )
    if not q.is_floating_point() or q.dtype != k.dtype:
        raise ValueError(
            f"q, k and v must share one floating-point dtype, got {q.dtype} and {k.dtype}."
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % max(1, k.shape[1]):
        raise ValueError(
            "q and k must agree in batch and width, and the heads of q be a multiple of those "
            f"of k; got q {tuple(q.shape)} and k {tuple(k.shape)}."
        )
    if k.shape[2] == 0:
        raise ValueError("There are no keys to attend to: k has 0 positions.")


def check_values(k: Tensor, v: Tensor) -> None:
    """Values must match the keys in all but width."""
    if v.dim() != 4 or v.shape[:3] != k.shape[:3] or v.dtype != k.dtype:
        raise ValueError(
            "k and v must agree in batch, heads, positions and dtype, "
            f"got k {tuple(k.shape)} {k.dtype} and v {tuple(v.shape)} {v.dtype}."
        )


def check_dropout(dropout: float) -> None:
    """A probability below one."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}.")


def _check_mask(mask: Tensor | None, shape: tuple[int, ...]) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean, True where a query may attend, got {mask.dtype}. "
            "Give an additive mask as bias=, or compare it: mask=(additive == 0)."
        )
    _check_broadcast("mask", mask, shape)


def _check_bias(bias: Tensor | None, shape: tuple[int, ...]) -> None:
    if bias is None:
        return
    if not bias.is_floating_point():
        raise ValueError(f"bias must be floating-point, got {bias.dtype}. A boolean is a mask=.")
    _check_broadcast("bias", bias, shape)


def _check_broadcast(name: str, given: Tensor, shape: tuple[int, ...]) -> None:
    sizes = (1,) * (4 - given.dim()) + tuple(given.shape)
    if given.dim() > 4 or any(
        size not in (1, full) for size, full in zip(sizes, shape, strict=True)
    ):
        raise ValueError(
            f"{name} must broadcast to (batch, heads, queries, keys) = {shape}, "
            f"got {tuple(given.shape)}."
        )


def _check_lengths(lengths: Tensor | None, shape: tuple[int, ...]) -> None:
    if lengths is None:
        return
    if lengths.shape != shape[:1] or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths must hold one integer a batch item, shape ({shape[0]},), "
            f"got {tuple(lengths.shape)} of {lengths.dtype}."
        )
