# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Tiles and arguments that all Triton kernels of attention share.

A program handles a block of queries (or of keys) of one head. Programs are numbered along one axis,
blocks of a head next to each other, so that its keys stay in the cache; B * H may be large.

Only kernel modules import this one, because it imports Triton. Kernels are no_type_check because a
wrapper that checks types would hide a module's names from Triton.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.scores import Scores

# Arguments for whose values kernels are not specialised.
SIZES = ["first", "heads", "groups", "n_queries", "n_keys", "n_blocks"]
MASK_STRIDES = ["mask_batch", "mask_head", "mask_row"]


class Tile(NamedTuple):
    """Queries and keys that a program takes at a time, and how it is compiled."""

    rows: int
    keys: int
    warps: int
    stages: int

    def arguments(self) -> dict[str, int]:
        """Return the arguments of a kernel with constants ROWS and KEYS."""
        rows, keys, warps, stages = self
        return {"ROWS": rows, "KEYS": keys, "num_warps": warps, "num_stages": stages}


def padded(width: int) -> int:
    """Return the width of a tile for rows of this width: a power of two, at least 16.

    >>> [padded(width) for width in (1, 16, 48)]
    [16, 16, 64]
    """
    return max(16, 1 << (width - 1).bit_length())


class Call(NamedTuple):
    """Attention call in the form that kernels take; launch them with `**call.arguments()`."""

    q: Tensor  # (B, H, Q, D), width contiguous
    k: Tensor  # (B, G, K, D)
    lengths: Tensor  # (B,) int32: number of real keys
    mask: Tensor  # (B, H, Q, K) bytes with any strides, 0 on missing axes; or q, unused
    scale: float
    first: int  # position of the first query among the keys
    causal: bool
    masked: int  # 0: no mask; 1: of queries and keys; 2: of keys, the same for all queries

    @staticmethod
    def of(scores: Scores) -> "Call":
        """Convert a call; only tensors that are not contiguous in their width are copied."""
        batch, _, _, n_keys = scores.shape
        lengths = scores.lengths
        if lengths is None:
            lengths = torch.full((batch,), n_keys, device=scores.q.device, dtype=torch.int32)
        mask = scores.q if scores.mask is None else scores.mask.expand(scores.shape)
        return Call(
            q=with_rows(scores.q),
            k=with_rows(scores.k),
            lengths=lengths.clamp(max=n_keys).to(torch.int32).contiguous(),
            mask=mask if scores.mask is None else mask.view(torch.uint8),
            scale=float(scores.multiplier),
            first=scores.first_position,
            causal=scores.causal,
            masked=0 if scores.mask is None else 2 if mask.stride(2) == 0 else 1,
        )

    @staticmethod
    def rebuilt(
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        lengths: Tensor | None,
        scale: float,
        first: int,
        causal: bool,
    ) -> "Call":
        """Build a call from arguments that a custom op can take."""
        return Call.of(Scores(q, k, mask, None, causal, lengths, scale, first=first))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel, constants in capitals."""
        heads, n_queries = self.q.shape[1:3]
        groups, n_keys = self.k.shape[1:3]
        q_strides, k_strides, mask_strides = (
            x.stride() if x.dim() == 4 else (0, 0, 0, 0) for x in (self.q, self.k, self.mask)
        )
        return {
            "q": self.q,
            "k": self.k,
            "lengths": self.lengths,
            "mask": self.mask,
            "scale": self.scale,
            "first": self.first,
            "heads": heads,
            "groups": groups,
            "n_queries": n_queries,
            "n_keys": n_keys,
            "q_batch": q_strides[0],
            "q_head": q_strides[1],
            "q_row": q_strides[2],
            "k_batch": k_strides[0],
            "k_head": k_strides[1],
            "k_row": k_strides[2],
            "mask_batch": mask_strides[0],
            "mask_head": mask_strides[1],
            "mask_row": mask_strides[2],
            "mask_key": mask_strides[3],
            "WIDTH": self.q.shape[3],
            "CAUSAL": self.causal,
            "MASKED": self.masked,
        }


def strides(name: str, x: Tensor) -> dict[str, int]:
    """Return the strides of batch, heads and rows as arguments of a kernel."""
    return dict(zip((f"{name}_batch", f"{name}_head", f"{name}_row"), x.stride(), strict=False))


def with_rows(x: Tensor) -> Tensor:
    """Return the tensor itself if its last axis is contiguous, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


@triton.jit
@no_type_check
def place(n_blocks, heads, groups):
    """Return the block, batch item, head and key/value head of this program."""
    number = tl.program_id(0)
    block = number % n_blocks
    number = number // n_blocks
    head = number % heads
    group = head // (heads // groups)
    return block, (number // heads).to(tl.int64), head.to(tl.int64), group.to(tl.int64)


@triton.jit
@no_type_check
def load_rows(start, rows, stride, n_rows, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows of a (n_rows, WIDTH) matrix as (len(rows), PADDED), zeros outside."""
    column = tl.arange(0, PADDED)
    inside = rows[:, None] < n_rows
    if WIDTH < PADDED:
        inside = inside & (column[None, :] < WIDTH)
    at = start + rows[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
@no_type_check
def load_shown(
    start, keys, stride, end, mask, mask_key,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load keys or values like `load_rows`, with zeros for those that no query may attend.

    A weight of 0 does not cancel an infinite value. Args: end: one past the last key that may be
    attended; mask: start of this head's part of the mask; MASKED: see `Call.masked`.
    """
    shown = keys < end
    if MASKED == 2:
        shown = shown & (tl.load(mask + keys.to(tl.int64) * mask_key, mask=shown, other=0) != 0)
    column = tl.arange(0, PADDED)
    inside = shown[:, None] & (column[None, :] < WIDTH)
    return tl.load(
        start + keys[:, None].to(tl.int64) * stride + column[None, :], mask=inside, other=0.0
    )


@triton.jit
@no_type_check
def finite(x):
    """Replace infinite numbers and NaN by 0."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0).to(x.dtype)


@triton.jit
@no_type_check
def score_tile(
    q_QD,
    k_KD,
    rows,
    keys,
    length,
    n_queries,
    scale,
    first,
    mask,
    mask_row,
    mask_key,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    KEYS_FIRST: tl.constexpr = False,
):
    """Compute scale * q k^T in float32, with -inf at hidden keys; k q^T with KEYS_FIRST.

    A result in the layout of k q^T can be multiplied with q from registers; a transposed tile would
    pass through shared memory.

    Args: tiles of q and k; indices of their rows; length: real keys of this batch item; mask: start
    of this head's part of the mask, and its strides.
    """
    if KEYS_FIRST:
        score = tl.dot(k_KD, tl.trans(q_QD), input_precision="ieee") * scale
        row, key = rows[None, :], keys[:, None]
    else:
        score = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee") * scale
        row, key = rows[:, None], keys[None, :]
    if MASKED == 2:  # equal for all queries: read once per tile
        kept = tl.load(mask + key.to(tl.int64) * mask_key, mask=key < length, other=0) != 0
        score = tl.where(kept, score, float("-inf"))
    seen = (key < length) & (row < n_queries)
    if CAUSAL:
        seen = seen & (key <= row + first)
    if MASKED == 1:
        at = mask + row.to(tl.int64) * mask_row + key.to(tl.int64) * mask_key
        kept = tl.load(at, mask=seen, other=0) != 0
        # Both give the same: with keys first `&` spills registers, in `topk.selection` its absence.
        seen = kept if KEYS_FIRST else seen & kept
    return tl.where(seen, score, float("-inf"))
