"""Random numbers that are a function of a seed and of how many draws there were.

A generator object cannot be part of a compiled graph, gives other numbers on a GPU than on a CPU,
and stands elsewhere in each process. These numbers are the same in all of these, and go on after a
checkpoint when the count of draws is in it. They decide gates; they are no good for secrets.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_LOW = 0xFFFFFFFF  # numbers are kept to 32 bits, so that no product leaves an int64
_BITS = 23  # of the fraction of a float32


def counted_uniform(seed: int, draw: Int[Tensor, ""], count: int) -> Float[Tensor, " count"]:
    """`count` numbers uniform on (0, 1) in float32, the same whenever seed and draw are.

    Args:
        seed: another seed, other numbers.
        draw: which draw, a tensor so that a compiled graph need not know its value.
        count: how many numbers.
    """
    place_N = torch.arange(count, device=draw.device, dtype=torch.int64)
    start = torch.full_like(place_N, seed & _LOW)
    mixed_N = _mixed(_mixed(_mixed(start) ^ (draw & _LOW)) ^ place_N)
    return ((mixed_N >> (32 - _BITS)).float() + 0.5) * 2.0**-_BITS


def _mixed(number: Tensor) -> Tensor:
    """A 32-bit hash in two rounds of shift and multiply; the constants are below 2^31."""
    number = ((number ^ (number >> 16)) * 0x21F0AAAD) & _LOW
    number = ((number ^ (number >> 15)) * 0x735A2D97) & _LOW
    return number ^ (number >> 15)
