"""The Hard Concrete distribution: gates that are exactly 0 or 1 with a learned probability.

    s = sigmoid((log u - log(1 - u) + log_alpha) / temperature),  u uniform on (0, 1)
    g = clip(s * (high - low) + low, 0, 1),                       low < 0 < 1 < high

(Louizos et al., 2018; constants of Voita et al., 2019, section 6.1.) The probability mass of the
stretched s below 0 and above 1 becomes that of exactly 0 and exactly 1.

`counted_uniform` is a counter-based RNG: its numbers are a function of a seed and a count. A
generator object cannot be part of a compiled graph, gives other numbers on a GPU than on a CPU, and
differs between processes. These numbers are the same in all of them, and after a checkpoint.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Mode = Literal["paper", "reference_code"]
EPSILON = 1e-6  # the distance of u from 0 and 1


@dataclass(frozen=True)
class HardConcrete:
    """Gates between 0 and 1, one for each `log_alpha`; a larger one is more probably open.

    Args:
        temperature: near 0, gates are rarely strictly between 0 and 1.
        limits: the interval to which s is stretched before it is clipped.

    >>> gate, log_alpha = HardConcrete(), torch.tensor([-2.0, 0.0, 2.5])
    >>> gate.prob_open(log_alpha)
    tensor([0.2299, 0.6881, 0.9641])
    >>> gate.deterministic(log_alpha)
    tensor([0., 1., 1.])
    """

    temperature: float = 0.33
    limits: tuple[float, float] = (-0.1, 1.1)

    def __post_init__(self) -> None:
        low, high = self.limits
        if not (low < 0 and high > 1):
            raise ValueError(
                f"limits must reach below 0 and above 1, or no gate is ever 0 or 1; got {low} and "
                f"{high}."
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}.")

    def sample(
        self, log_alpha: Float[Tensor, "*gates"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*gates"]:
        """Draw gates; gradients reach log_alpha, with u held fixed.

        Args:
            log_alpha: of each gate.
            generator: of the random numbers, on log_alpha's device; None is torch's own.
        """
        uniform = torch.rand(
            log_alpha.shape,
            generator=generator,
            dtype=log_alpha.dtype,
            device=log_alpha.device,
        )
        return self.with_noise(log_alpha, logistic(uniform))

    def with_noise(
        self, log_alpha: Float[Tensor, "*gates"], noise: Float[Tensor, "*gates"]
    ) -> Float[Tensor, "*gates"]:
        """Return the gates for given noise, log u - log(1 - u); see `logistic`."""
        low, high = self.limits
        open_by = torch.sigmoid((noise + log_alpha) / self.temperature)
        return (open_by * (high - low) + low).clamp(0, 1)

    def prob_open(self, log_alpha: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
        """Return P(g > 0) = sigmoid(log_alpha - temperature * log(-low / high))."""
        return torch.sigmoid(log_alpha - self._zero_at)

    def prob_zero(self, log_alpha: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
        """Return P(g = 0) = 1 - P(g > 0), accurate also if P(g > 0) is nearly 1."""
        return torch.sigmoid(self._zero_at - log_alpha)

    def prob_one(self, log_alpha: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
        """Return P(g = 1) = sigmoid(log_alpha - temperature * log((1 - low) / (high - 1)))."""
        return torch.sigmoid(log_alpha - self._one_at)

    def deterministic(
        self, log_alpha: Float[Tensor, "*gates"], mode: Mode = "paper"
    ) -> Float[Tensor, "*gates"]:
        """Return the gates without noise, as they are used after training.

        Args:
            log_alpha: of each gate.
            mode: "paper" gives 0 or 1, whichever is more probable (footnote 7), and 1 for a tie;
                "reference_code" gives clip(sigmoid(log_alpha) * (high - low) + low, 0, 1), which
                with the usual limits lies strictly between 0 and 1 for |log_alpha| < 2.398.
        """
        if mode == "paper":
            return (self.prob_one(log_alpha) >= self.prob_zero(log_alpha)).to(log_alpha)
        if mode != "reference_code":
            raise ValueError(f"mode must be 'paper' or 'reference_code', got {mode!r}.")
        low, high = self.limits
        return (torch.sigmoid(log_alpha) * (high - low) + low).clamp(0, 1)

    @property
    def _zero_at(self) -> float:
        low, high = self.limits
        return self.temperature * math.log(-low / high)

    @property
    def _one_at(self) -> float:
        low, high = self.limits
        return self.temperature * math.log((1 - low) / (high - 1))


def logistic(uniform: Float[Tensor, "*gates"]) -> Float[Tensor, "*gates"]:
    """Return log u - log(1 - u), with u from [0, 1] moved into [1e-6, 1 - 1e-6]."""
    inside = uniform * (1 - 2 * EPSILON) + EPSILON
    return inside.log() - (-inside).log1p()


_LOW = 0xFFFFFFFF  # numbers are kept to 32 bits, so that no product leaves an int64
_BITS = 23  # of the fraction of a float32


def counted_uniform(seed: int, draw: Int[Tensor, ""], count: int) -> Float[Tensor, " count"]:
    """Return `count` uniform numbers on (0, 1) in float32, a function of seed and draw alone.

    Args:
        seed: of the numbers, which are no good for secrets.
        draw: the number of the draw; a tensor, so that a compiled graph need not know its value.
        count: how many numbers.
    """
    place_N = torch.arange(count, device=draw.device, dtype=torch.int64)
    start = torch.full_like(place_N, seed & _LOW)
    mixed_N = _mixed(_mixed(_mixed(start) ^ (draw & _LOW)) ^ place_N)
    return ((mixed_N >> (32 - _BITS)).float() + 0.5) * 2.0**-_BITS


def _mixed(number: Tensor) -> Tensor:
    """Return a 32-bit hash in two rounds of shift and multiply; constants are below 2^31."""
    number = ((number ^ (number >> 16)) * 0x21F0AAAD) & _LOW
    number = ((number ^ (number >> 15)) * 0x735A2D97) & _LOW
    return number ^ (number >> 15)
