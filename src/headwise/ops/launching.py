"""What launches of attention kernels share: tiles, and arguments that are not compiled for."""

from typing import NamedTuple

# Arguments that may have any value without another variant of a kernel being compiled.
SIZES = ["first", "heads", "groups", "n_queries", "n_keys", "n_blocks"]
MASK_STRIDES = ["mask_batch", "mask_head", "mask_row"]


class Tile(NamedTuple):
    """How many queries and keys a program takes at a time, and how it is compiled."""

    rows: int
    keys: int
    warps: int
    stages: int

    def arguments(self) -> dict[str, int]:
        """For a kernel with constants ROWS and KEYS."""
        rows, keys, warps, stages = self
        return {"ROWS": rows, "KEYS": keys, "num_warps": warps, "num_stages": stages}


def padded(width: int) -> int:
    """The width of a tile that holds rows of this width: a power of two, for products at least 16.

    >>> [padded(width) for width in (1, 16, 48)]
    [16, 16, 64]
    """
    return max(16, 1 << (width - 1).bit_length())
