# Arguments of kernels have no types that a type checker would know.
# pyright: basic
"""What the sweeping kernels share: which keys a head is asked about, and how large tiles are.

A head may be asked about one key a query, the one at slope * position + place (a slope of 1 is an
offset, a slope of 0 a column), and about a set of keys. Either every head is asked the same, or a
plan lists some heads, a row of FIELDS integers each, and only those are computed.

Several calls that differ in q and k alone, such as the layers of a model, are swept by one launch:
nothing is copied to put them side by side. Their heads are numbered on from call to call.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from headwise.ops.scores import Scores
from headwise.ops.tiles import MASK_STRIDES, SIZES, Call, Tile, padded, with_rows

LOG2_E = 1.4426950408889634  # kernels work with powers of two, which the device computes directly
# The score of a key that may not be attended: its weight is 0, and 0 times its log is 0, not NaN.
HIDDEN = tl.constexpr(-1e38)
LEAST_SCALE = 1e-20  # times HIDDEN it is still far below any score
FAR = 2**30  # an offset that leads to no key
# Kernels are not compiled for these: it would only make more variants of them.
ANY = [*SIZES, *MASK_STRIDES, "offset", "n_heads", "set_number", "set_batch", "set_key"]
FIELDS = ("head", "slope", "place", "key set", "normalised", "uniform")  # columns of a plan


# By pass; and by the bytes of a number of q and k, and their width padded to a power of two.
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
# Of float16, whose gradients are multiplied in tf32, of masks and of causal calls the larger tiles
# above take more registers than there are.
TIGHT = {"queries": Tile(64, 64, 4, 3), "keys": Tile(64, 64, 4, 2)}


class Calls(NamedTuple):
    """Calls that differ in q and k alone. All q have the same strides, and all k."""

    first: Call
    q: tuple[Tensor, ...]
    k: tuple[Tensor, ...]

    def arguments(self) -> dict[str, Any]:
        """For a kernel with parameters of these names; `heads` and `groups` are those of a call."""
        scale = self.first.scale * LOG2_E
        return self.first.arguments() | {"q": self.q, "k": self.k, "scale": scale}


class Aims(NamedTuple):
    """Which heads are asked, and about which keys."""

    plan: Tensor | None = None  # (N, FIELDS) int32; None: every head, about the offset and its set
    numbers: Tensor | None = None  # int32: the row in the plan of each head of all calls, or -1
    offset: int = FAR
    key_sets: Tensor | None = None  # (C, B, K) boolean; without a plan C is 1 or H

    def arguments(self, heads: int) -> dict[str, Any]:
        """For a kernel with parameters of these names."""
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
    """Tile sizes and the like of one pass, as arguments of its kernel."""
    width = padded(calls.first.q.shape[3])
    sizes = TILES[which]
    wanted = calls.first.q.element_size(), width
    tile = sizes[min((size for size in sizes if size >= wanted), default=max(sizes))]
    first = calls.first
    needy = first.masked or first.causal or first.q.dtype == torch.float16
    if needy and which in TIGHT and tile.rows > TIGHT[which].rows:
        tile = TIGHT[which]
    if first.masked == 1 and which == "forward" and tile.rows > 64:
        tile = Tile(32, 64, 8, 2)  # or they would not fit either
    return {"PADDED": width} | tile.arguments()


def parts_of(calls: Calls) -> int:
    """Among how many threads a row of scores is divided, of which each adds up its own part.

    Products of 16-bit numbers leave a row with four. A mask of queries and keys, which is read in
    another order, makes the compiler move scores, and there is no such order: parts are then whole
    rows.
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
    """The calls again, from the arguments a custom op can have."""
    q, k = alike(q), alike(k)
    call = Call.of(Scores(q[0], k[0], mask, None, causal, lengths, scale, first=first))
    return Calls(call, q, k)


def upright(calls: Calls) -> Calls:
    """The calls with a scale of at least LEAST_SCALE, the rest of it multiplied into copies of q.

    Kernels may then look for the largest products instead of the largest scores.
    """
    if calls.first.scale >= LEAST_SCALE:
        return calls
    part, factor = _parted(calls.first.scale)
    q = alike([x * factor for x in calls.q])
    return Calls(calls.first._replace(q=q[0], scale=part or 1.0), q, calls.k)


def downright(calls: Calls) -> float:
    """What turns a product of the calls made `upright` into that of the calls as they are."""
    _, factor = _parted(calls.first.scale)
    return 1 / factor if factor else 0.0


def _parted(scale: float) -> tuple[float, float]:
    """A scale as a number of at least LEAST_SCALE, or 0, and a power of two with its sign."""
    if scale >= LEAST_SCALE:
        return scale, 1.0
    part, power = (scale, 0) if abs(scale) >= LEAST_SCALE else math.frexp(scale)
    return abs(part), math.copysign(2.0**power, part) if part else 0.0


def alike(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors themselves where their strides are the same and rows contiguous, else copies."""
    rows = [with_rows(x) for x in tensors]
    if any(x.stride() != rows[0].stride() for x in rows):
        return tuple(x.contiguous() for x in rows)
    return tuple(rows)


@triton.jit
@no_type_check
def placed(n_blocks, n_heads):
    """Block, batch item and number of a head, of this program."""
    program = tl.program_id(0)
    above = program // n_blocks
    return program % n_blocks, (above // n_heads).to(tl.int64), above % n_heads


@triton.jit
@no_type_check
def aim(plan, number, offset):
    """Head, slope, place and key set of the head of this number; key set -1 is none."""
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
    """Where the tensor of this number starts."""
    start = tensors[0]
    for other in tl.static_range(1, len(tensors)):
        start = tl.where(number == other, tensors[other], start)
    return start


@triton.jit
@no_type_check
def end_of_keys(length, last_row, first, CAUSAL: tl.constexpr):
    """One past the last key that rows up to the last may see."""
    end = length
    if CAUSAL:
        end = tl.minimum(length, last_row + first + 1)
    return end


@triton.jit
@no_type_check
def apart(x, PARTS: tl.constexpr):
    """(Q, K) as (Q, K / 8, 4, 2) where there are 4 parts; (Q, K, 1, 1) where a part is a whole row.

    A thread holds one of 4 parts: sums over the second and the last axis pass between no threads.
    """
    NEXT: tl.constexpr = 2 if PARTS > 1 else 1  # so many keys next to each other are of one part
    return tl.reshape(x, [x.shape[0], x.shape[1] // (NEXT * PARTS), PARTS, NEXT])


@triton.jit
@no_type_check
def part_sums(x):
    """The sums of the parts of each row, (Q, PARTS), of a tile that was taken apart."""
    return tl.sum(tl.sum(x, axis=1), axis=2)


@triton.jit
@no_type_check
def row_maxima(x):
    """The largest of each row, of a tile that was taken apart."""
    return tl.max(tl.max(tl.max(x, axis=1), axis=2), axis=1)


@triton.jit
@no_type_check
def unseen(scale):
    """The product q k that stands for a key that may not be attended: scaled, about HIDDEN.

    It is finite however large the scale, and far below all others as the scale is not too small.
    """
    return HIDDEN / tl.maximum(scale, 1.0)


@triton.jit
@no_type_check
def in_set(start, keys, key_set, length, set_key):
    """1.0 where a key belongs to the set that starts there, else 0.0; none for set -1."""
    at = start + keys.to(tl.int64) * set_key
    member = tl.load(at, mask=(keys < length) & (key_set >= 0), other=0)
    return (member != 0).to(tl.float32)


@triton.jit
@no_type_check
def hidden(
    s, nowhere, rows, keys, length, n_queries, first, mask, mask_row, mask_key,
    ragged, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """A tile of scores, `nowhere` where a key may not be attended; either axis may be the keys.

    Looking at every score takes as long as its exponential: it is done where the tile is `ragged`,
    that is, where it reaches beyond the length or over the diagonal.
    """
    if MASKED == 2:  # the same for all queries: read once a tile
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
    """Whether each query may attend to the one key it is asked about."""
    seen = (target >= 0) & (target < length) & (rows < n_queries)
    if CAUSAL:
        seen = seen & (target <= rows + first)
    if MASKED:
        at = mask + rows.to(tl.int64) * mask_row + target.to(tl.int64) * mask_key
        seen = seen & (tl.load(at, mask=seen, other=0) != 0)
    return seen
