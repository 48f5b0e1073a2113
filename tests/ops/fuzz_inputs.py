"""Random cases for `tests.ops.fuzz`: sizes, scores of every kind, masks. All follow from a seed."""

from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.ops.scores import Scores
from tests.ops.fuzz_variants import Variant, variant_of

ODD_SIZES = (1, 7, 63, 64, 65, 129)
SMALL_SIZES = (1, 7, 15, 16, 17, 33)
SMALL_KEYS = 40  # and not more, in the interpreter
MOST_SCORES = 2**22  # of a case; the definition in float64 takes some of that size
# Scores of the last kinds are the same numbers in every dtype and however they are summed.
ROUNDED = ("random", "random", "random", "flat", "sharp")
EXACT = ("ties", "equal", "ascending", "descending", "shuffled", "period of a tile", "one column",
         "two values", "huge", "tiny")  # fmt: skip


class Sizes(NamedTuple):
    """Sizes of one call."""

    batch: int
    heads: int
    groups: int
    n_queries: int
    n_keys: int


@dataclass(frozen=True)
class Case:
    """Random call, with a generator for more inputs."""

    op: str
    seed: int
    variant: Variant
    sizes: Sizes
    kind: str  # of scores
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]  # mask, causal, lengths, scale
    rng: Random
    generator: torch.Generator

    @property
    def scale(self) -> float:
        """Factor of q.k."""
        given = self.options["scale"]
        return self.variant.width**-0.5 if given is None else given

    @property
    def exact(self) -> bool:
        """True if rounding cannot change any score."""
        return self.kind in EXACT

    def scores(self, *, first: int | None = None) -> Scores:
        """Compute the scores of the call in float64."""
        return Scores(self.q.double(), self.k.double(), **self.options, first=first)

    def randn(self, *shape: int) -> Tensor:
        """Draw normal numbers on the case's device."""
        return torch.randn(shape, generator=self.generator, device=self.q.device)

    def rand(self, *shape: int) -> Tensor:
        """Draw numbers between 0 and 1."""
        return torch.rand(shape, generator=self.generator, device=self.q.device)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes._asdict().items())
        lengths = self.options["lengths"]
        lengths = "" if lengths is None else f"; lengths {lengths.tolist()}"
        return f"{self.variant}; {sizes}; {self.kind} scores, scale {self.scale}{lengths}"


def draw_case(op: str, seed: int, device: str) -> Case:
    """Generate the case of a seed; small and without bfloat16 on a CPU, for the interpreter."""
    rng = Random(f"{op} {seed}")
    generator = torch.Generator(device).manual_seed(seed)
    _, variant = variant_of(op, seed)
    sizes = _draw_sizes(rng, op, variant, small=device == "cpu")
    kind = rng.choice(ROUNDED if rng.random() < 0.5 else EXACT)
    dtype = torch.float16 if (device, variant.dtype) == ("cpu", torch.bfloat16) else variant.dtype
    q, k, scale = _Inputs(generator, sizes, variant.width, dtype).scores(kind, rng)
    v = _randn(generator, sizes.batch, sizes.groups, sizes.n_keys, variant.values)
    tensors = [_laid_out(x.to(dtype), rng) for x in (q, k, v)]
    options = {"causal": variant.causal, "scale": scale, "mask": None, "lengths": None}
    if variant.mask:
        options["mask"] = _draw_mask(generator, rng, op, variant, sizes)
    if rng.random() < 0.5:
        options["lengths"] = _randint(generator, sizes.n_keys + 1, (sizes.batch,))
    return Case(op, seed, variant, sizes, kind, *tensors, options, rng, generator)


def _draw_sizes(rng: Random, op: str, variant: Variant, *, small: bool) -> Sizes:
    low, high = (1, SMALL_KEYS) if small else variant.keys
    if op == "topk" and variant.keep[0] > 8 and not small:  # a row of 8 keys keeps at most 8
        low = max(low, variant.keep[0])
    odd = SMALL_SIZES if small else ODD_SIZES
    n_keys = _one_of(rng, [n for n in odd if low <= n <= high], low, high)
    few = SMALL_KEYS if small else 130 if n_keys > 600 else 300
    n_queries = _one_of(rng, [n for n in (*odd, min(n_keys, few)) if n <= few], 1, few)
    if rng.random() < 0.02:
        n_queries = 0
    batch, groups, members = (rng.randint(1, 2 if small else 3) for _ in range(3))
    while batch * groups * members * n_queries * n_keys > MOST_SCORES:
        n_queries //= 2
    return Sizes(batch, groups * members, groups, n_queries, n_keys)


def _one_of(rng: Random, odd: list[int], low: int, high: int) -> int:
    if odd and rng.random() < 0.4:
        return rng.choice(odd)
    return rng.randint(low, low + min(high - low, 300) if rng.random() < 0.7 else high)


def _randn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _randint(generator: torch.Generator, end: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(end, shape, generator=generator, device=generator.device)


def _laid_out(x: Tensor, rng: Random) -> Tensor:
    """Lay out heads before rows in memory, or the reverse, as models do."""
    return x if rng.random() < 0.5 else x.transpose(1, 2).contiguous().transpose(1, 2)


def _draw_mask(
    generator: torch.Generator, rng: Random, op: str, variant: Variant, sizes: Sizes
) -> Tensor:
    """Draw a mask with or without each axis; some queries, or a whole batch item, see nothing."""
    batch, heads, _, n_queries, n_keys = sizes
    rows = 1 if variant.mask == "keys" else n_queries
    shape = [rng.choice((1, batch)), rng.choice((1, heads)), rows, n_keys]
    mask = torch.rand(shape, generator=generator, device=generator.device)
    mask = mask > rng.choice((0.1, 0.4, 0.9))
    if rows > 1:
        mask[:, :, rng.randrange(rows)] = False
    if rng.random() < 0.1:
        mask[-1] = False
    if op == "topk":  # other kernels are compiled anew if neighbouring keys are not adjacent
        return mask.mT.contiguous().mT if rng.random() < 0.3 else mask
    return mask


@dataclass(frozen=True)
class _Inputs:
    """Queries and keys of given sizes, in float32 and exact in the dtype they will have."""

    generator: torch.Generator
    sizes: Sizes
    width: int
    dtype: torch.dtype

    def scores(self, kind: str, rng: Random) -> tuple[Tensor, Tensor, float | None]:
        """Draw q, k and the scale."""
        batch, heads, groups, n_queries, n_keys = self.sizes
        q = _randn(self.generator, batch, heads, n_queries, self.width)
        k = _randn(self.generator, batch, groups, n_keys, self.width)
        if kind in ROUNDED:
            return q * {"random": 2.0, "flat": 0.1, "sharp": 6.0}[kind], k, None
        if kind == "ties":
            return q.round().clamp(-2, 2), k.round().clamp(-1, 1), 0.25
        level = self._levels(kind, rng).float()
        sign = _randint(self.generator, 9, (batch, heads, n_queries)).sub(4).sign()
        # The score is the level, the reverse, or nothing: 64 a + b with small whole numbers.
        q[:] = 0
        q[..., 0], q[..., 1] = 64.0 * sign, sign
        k[..., 0], k[..., 1] = level.div(64, rounding_mode="floor"), level % 64
        return q, k, self._scale(kind, rng)

    def _levels(self, kind: str, rng: Random) -> Tensor:
        """Draw whole numbers below 4096, (B, G, K)."""
        batch, _, groups, _, n_keys = self.sizes
        shape = batch, groups, n_keys
        position = torch.arange(n_keys, device=self.generator.device).expand(shape)
        if kind == "equal":
            return torch.full_like(position, 3)
        if kind == "ascending":
            return position
        if kind == "descending":
            return position.flip(-1)
        if kind == "period of a tile":
            period = rng.choice([n for n in (16, 32, 64, 128) if n <= max(16, n_keys // 2)])
            high = position % period == rng.randrange(period)
            return _randint(self.generator, 64, shape) + 1000 * high
        if kind == "one column":
            return 1000 * (position == rng.randrange(n_keys))
        if kind == "two values":
            return 5 * _randint(self.generator, 2, shape)
        order = torch.rand(shape, generator=self.generator, device=self.generator.device)
        return order.argsort(dim=-1)  # shuffled, huge and tiny

    def _scale(self, kind: str, rng: Random) -> float:
        if kind == "huge":  # gradients must stay within the range of the dtype
            return 8.0 if self.dtype == torch.float16 else 1024.0
        return 2.0**-20 if kind == "tiny" else rng.choice((1 / 64, 1 / 8, 1.0))
