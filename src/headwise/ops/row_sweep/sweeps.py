# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""Sweeps over the keys: calls, target keys, tile sizes, and functions shared by the kernels.

A head may have one target key per query, at slope * position + place (a slope of 1 is an offset, a
slope of 0 a column), and a set of target keys. Either all heads have the same targets, or a plan
lists some heads, one row of FIELDS integers each, and only those are computed.

Several calls that differ in q and k alone, such as the layers of a model, are swept by one launch
without copying them into one tensor. Heads are numbered across calls.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.tiles import MASK_STRIDES, SIZES, Call, Tile, padded, with_rows

LOG2_E = 1.4426950408889634  # kernels use powers of two, which the device computes directly
# The score of a key that may not be attended: its weight is 0, and 0 times its log is 0, not NaN.
HIDDEN = tl.constexpr(-1e38)
LEAST_SCALE = 1e-20  # LEAST_SCALE * HIDDEN is still far below any score
FAR = 2**30  # an offset that leads to no key
# Kernels are not specialised for these, which would only compile more variants.
ANY = [*SIZES, *MASK_STRIDES, "offset", "n_heads", "set_number", "set_batch", "set_key"]
FIELDS = ("head", "slope", "place", "key set", "normalised", "uniform")  # columns of a plan


# By pass; then by the bytes per number of q and k, and their width padded to a power of two.
TILES: dict[str, dict[tuple[int, int], Tile]] = {
    "forward": {
        (2, 64): Tile(128, 64, 4, 3),
        (2, 128): Tile(128, 64, 8, 3),
        (4, 128): Tile(32, 32, 4, 1),
    },
    "queries": {
        (2, 64): Tile(128, 64, 4, 3),
        (2, 128): Tile(64, 64, 4, 2),
        (4, 128): Tile(32, 32, 4, 1),
    },
    "keys": {
        (2, 64): Tile(128, 64, 4, 3),
        (2, 128): Tile(32, 64, 4, 2),
        (4, 128): Tile(32, 32, 4, 1),
    },
}
# The larger tiles above need too many registers for masks, for causal calls and for float16, whose
# gradients are multiplied in tf32.
TIGHT = {"queries": Tile(64, 64, 4, 3), "keys": Tile(64, 64, 4, 2)}


class Calls(NamedTuple):
    """Calls that differ in q and k alone. All q have the same strides, and all k."""

    first: Call
    q: tuple[Tensor, ...]
    k: tuple[Tensor, ...]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel; `heads` and `groups` are those of one call."""
        scale = self.first.scale * LOG2_E
        return self.first.arguments() | {"q": self.q, "k": self.k, "scale": scale}


class Aims(NamedTuple):
    """Heads to compute, and their target keys."""

    plan: Tensor | None = None  # (N, FIELDS) int32; None: all heads, with the offset and set
    numbers: Tensor | None = None  # int32: row in the plan of each head of all calls, or -1
    offset: int = FAR
    key_sets: Tensor | None = None  # (C, B, K) boolean; without a plan C is 1 or H

    def arguments(self, heads: int) -> dict[str, Any]:
        """Return the arguments of a kernel."""
        sets = self.key_sets
        strides = (0, 0, 0) if sets is None else sets.stride()
        shared = sets is not None and self.plan is None and sets.shape[0] == 1
        return {
            "plan": self.plan,
            "offset": self.offset,
            "n_heads": heads if self.plan is None else self.plan.shape[0],
            "key_sets": None if sets is None else sets.view(torch.uint8),
            "set_number": 0 if shared else strides[0],
            "set_batch": strides[1],
            "set_key": strides[2],
        }


def settings(calls: Calls, which: str) -> dict[str, Any]:
    """Return the tile sizes of one pass as arguments of its kernel."""
    width = padded(calls.first.q.shape[3])
    sizes = TILES[which]
    wanted = calls.first.q.element_size(), width
    tile = sizes[min((size for size in sizes if size >= wanted), default=max(sizes))]
    first = calls.first
    needy = first.masked or first.causal or first.q.dtype == torch.float16
    if needy and which in TIGHT and tile.rows > TIGHT[which].rows:
        tile = TIGHT[which]
    if first.masked == 1 and which == "forward" and tile.rows > 64:
        tile = Tile(32, 64, 8, 2)  # or registers would not suffice either
    return {"PADDED": width} | tile.arguments()


def parts_of(calls: Calls) -> int:
    """Return the number of threads that hold a row of scores; each sums its own part.

    Products of 16-bit numbers leave a row with four. A mask of queries and keys is read in another
    order, which makes the compiler move scores: parts are then whole rows.
    """
    return 4 if calls.first.q.element_size() == 2 and calls.first.masked != 1 else 1


def calls_of(
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    mask: Tensor | None,
    lengths: Tensor | None,
    scale: float,
    first: int,
    causal: bool,
) -> Calls:
    """Build the calls from the arguments that a custom op can take."""
    q, k = alike(q), alike(k)
    return Calls(Call.rebuilt(q[0], k[0], mask, lengths, scale, first, causal), q, k)


def with_least_scale(calls: Calls) -> Calls:
    """Raise the scale to at least LEAST_SCALE; the rest of it is multiplied into copies of q.

    Kernels may then search the largest products instead of the largest scores.
    """
    if calls.first.scale >= LEAST_SCALE:
        return calls
    part, factor = _split_scale(calls.first.scale)
    q = alike([x * factor for x in calls.q])
    return Calls(calls.first._replace(q=q[0], scale=part or 1.0), q, calls.k)


def scale_back(calls: Calls) -> float:
    """Return the factor from products of the rescaled calls to those of the original calls."""
    _, factor = _split_scale(calls.first.scale)
    return 1 / factor if factor else 0.0


def _split_scale(scale: float) -> tuple[float, float]:
    """Split a scale into a number of at least LEAST_SCALE, or 0, and a signed power of two."""
    if scale >= LEAST_SCALE:
        return scale, 1.0
    part, power = (scale, 0) if abs(scale) >= LEAST_SCALE else math.frexp(scale)
    return abs(part), math.copysign(2.0**power, part) if part else 0.0


def alike(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Give all tensors the same strides and contiguous rows; copy only if needed."""
    rows = [with_rows(x) for x in tensors]
    if any(x.stride() != rows[0].stride() for x in rows):
        return tuple(x.contiguous() for x in rows)
    return tuple(rows)


@triton.jit
@no_type_check
def placed(n_blocks, n_heads):
    """Return the block, batch item and head number of this program."""
    program = tl.program_id(0)
    above = program // n_blocks
    return program % n_blocks, (above // n_heads).to(tl.int64), above % n_heads


@triton.jit
@no_type_check
def aim(plan, number, offset):
    """Return head, slope, place and key set of a row of the plan; key set -1 is none."""
    if plan is None:
        head = number
        slope = number * 0 + 1
        spot = number * 0 + offset
        key_set = number
    else:
        head = tl.load(plan + number * 6)
        slope = tl.load(plan + number * 6 + 1)
        spot = tl.load(plan + number * 6 + 2)
        key_set = tl.load(plan + number * 6 + 3)
    return head.to(tl.int64), slope, spot, key_set.to(tl.int64)


@triton.jit
@no_type_check
def one_of(tensors, number):
    """Return the start of the tensor with this number."""
    start = tensors[0]
    for other in tl.static_range(1, len(tensors)):
        start = tl.where(number == other, tensors[other], start)
    return start


@triton.jit
@no_type_check
def end_of_keys(length, last_row, first, CAUSAL: tl.constexpr):
    """Return the end of the keys that rows up to `last_row` may see."""
    end = length
    if CAUSAL:
        end = tl.minimum(length, last_row + first + 1)
    return end


@triton.jit
@no_type_check
def apart(x, PARTS: tl.constexpr):
    """Reshape (Q, K) to (Q, K / 8, 4, 2) for 4 parts, or to (Q, K, 1, 1) if a part is a whole row.

    A thread holds one of 4 parts: sums over the second and the last axis stay within a thread.
    """
    NEXT: tl.constexpr = 2 if PARTS > 1 else 1  # adjacent keys of one part
    return tl.reshape(x, [x.shape[0], x.shape[1] // (NEXT * PARTS), PARTS, NEXT])


@triton.jit
@no_type_check
def part_sums(x):
    """Sum the parts of each row, (Q, PARTS), of a tile from `apart`."""
    return tl.sum(tl.sum(x, axis=1), axis=2)


@triton.jit
@no_type_check
def row_maxima(x):
    """Return the largest number of each row of a tile from `apart`."""
    return tl.max(tl.max(tl.max(x, axis=1), axis=2), axis=1)


@triton.jit
@no_type_check
def unseen(scale):
    """Return the product q k of a hidden key; scaled, it is about HIDDEN.

    It is finite for any scale, and far below all others because the scale is not too small.
    """
    return HIDDEN / tl.maximum(scale, 1.0)


@triton.jit
@no_type_check
def in_set(start, keys, key_set, length, set_key):
    """Return 1.0 for keys in the set that starts at `start`, else 0.0; set -1 is empty."""
    at = start + keys.to(tl.int64) * set_key
    member = tl.load(at, mask=(keys < length) & (key_set >= 0), other=0)
    return (member != 0).to(tl.float32)


@triton.jit
@no_type_check
def hidden(
    s, nowhere, rows, keys, length, n_queries, first, mask, mask_row, mask_key,
    ragged, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Set scores of hidden keys to `nowhere`; either axis may be the keys.

    A test of every score takes as long as its exponential. So only tiles that are `ragged`, that
    is, that reach beyond the length or over the diagonal, are tested.
    """
    if MASKED == 2:  # equal for all queries: read once per tile
        seen = tl.load(mask + keys.to(tl.int64) * mask_key, keys < length, other=0) != 0
        if CAUSAL:
            seen = seen & (keys <= rows + first)
        s = tl.where(seen, s, nowhere)
    elif MASKED == 1:
        seen = (keys < length) & (rows < n_queries)
        if CAUSAL:
            seen = seen & (keys <= rows + first)
        at = mask + rows.to(tl.int64) * mask_row + keys.to(tl.int64) * mask_key
        seen = seen & (tl.load(at, mask=seen, other=0) != 0)
        s = tl.where(seen, s, nowhere)
    else:
        if ragged:
            end = length
            if CAUSAL:
                end = tl.minimum(length, rows + first + 1)
            s = tl.where(keys < end, s, nowhere)
    return s


@triton.jit
@no_type_check
def is_seen(
    target, rows, length, n_queries, first, mask, mask_row, mask_key,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return whether each query may attend to its target key."""
    seen = (target >= 0) & (target < length) & (rows < n_queries)
    if CAUSAL:
        seen = seen & (target <= rows + first)
    if MASKED:
        at = mask + rows.to(tl.int64) * mask_row + target.to(tl.int64) * mask_key
        seen = seen & (tl.load(at, mask=seen, other=0) != 0)
    return seen
