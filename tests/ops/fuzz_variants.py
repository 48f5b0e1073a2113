"""Variants of the attention kernels that a run of `tests.ops.fuzz` compiles: 40 of them.

A kernel is compiled anew for other dtypes, widths and flags, and where a tile holds all keys, for
another power of two of these; for no other sizes. So cases differ in everything that is a run-time
argument, and share the constants of the variant they belong to. Of a few variants some kernels
have two sets of constants: top-k also lists keys, keeps one or two; a mask may have one row.
"""

from dataclasses import dataclass, fields
from typing import Literal

import torch

MOST_VARIANTS = 40
bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
ANY = (1, 300)  # how many keys


@dataclass(frozen=True)
class Variant:
    """Constants of one compiled set of kernels, and the sizes that lead to them."""

    dtype: torch.dtype
    width: int
    values: int = 64  # the width of v; not a multiple of 16, it would make more variants
    causal: bool = False
    mask: Literal["", "keys", "queries"] = ""  # the same for all queries, or not
    dropout: bool = False
    keys: tuple[int, int] = ANY
    long: bool = False  # another plan: top-k gathers, entmax streams
    keep: tuple[int, int] = (1, 8)  # top-k; of one class of `LEVELS`, and of slots where long
    ties: Literal["all", "first"] = "all"
    alpha: float | Literal["any", "learned"] = 1.5  # entmax; any: one number, not 1.5 and not 2
    sets: bool = False  # statistics and guidance: with sets of keys
    read: Literal["all", "some"] = "all"  # statistics whose gradient is asked for

    def __str__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        kind = str(given.pop("dtype")).removeprefix("torch.")
        return f"{kind} " + " ".join(
            f"{name}={value}" for name, value in given.items() if value != usual[name]
        )


SWEPT, LONG = (129, 1023), (1024, 3000)  # rows, by the plan of top-k; of 16 bits a number
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "topk": (
        Variant(bf16, 64, keys=SWEPT),
        Variant(fp16, 48, 32, causal=True, ties="first", keys=(65, 128)),
        Variant(fp32, 32, mask="queries", keep=(9, 16), keys=(33, 1023)),
        Variant(bf16, 128, 128, mask="keys", dropout=True, keep=(17, 32), ties="first", keys=SWEPT),
        Variant(fp16, 64, causal=True, mask="queries", keys=SWEPT),
        Variant(fp32, 64, keep=(33, 64), ties="first", keys=(33, 3000)),
        Variant(bf16, 32, 96, causal=True, keep=(33, 64), keys=(33, 64)),
        Variant(fp16, 48, 32, mask="keys", dropout=True, ties="first", keys=SWEPT),
        Variant(fp32, 48, 32, causal=True, keep=(9, 16), ties="first", keys=(17, 32)),
        Variant(bf16, 64, keys=LONG, long=True, keep=(7, 8)),
        Variant(fp16, 48, 48, causal=True, mask="queries", keys=LONG, long=True, keep=(3, 4),
                ties="first"),
        Variant(fp32, 32, 32, keys=(1024, 16384), long=True, keep=(15, 16), ties="first"),
        Variant(bf16, 128, 128, causal=True, dropout=True, keys=LONG, long=True, keep=(7, 8)),
        Variant(fp32, 128, 48, mask="queries", keys=(8192, 9500), long=True, keep=(5, 6)),
        Variant(fp16, 64, 96, causal=True, mask="keys", keys=LONG, long=True, keep=(1, 2),
                ties="first"),
        Variant(bf16, 64, 32, mask="keys", keys=(1, 16)),
    ),
    "entmax": (
        Variant(bf16, 64, keys=(129, 256)),
        Variant(bf16, 64, keys=(257, 3000), long=True),
        Variant(fp16, 48, 32, causal=True, keys=(65, 128), alpha=2.0),
        Variant(fp16, 48, 32, causal=True, keys=(257, 2000), long=True, alpha=2.0),
        Variant(bf16, 128, 128, mask="keys", keys=(257, 512), alpha=2.0),
        Variant(fp16, 128, 96, causal=True, mask="queries", keys=(513, 1500), long=True),
        Variant(fp32, 32, mask="queries", long=True, keys=(1, 1500)),
        Variant(fp32, 64, long=True, alpha="learned"),
        Variant(fp16, 64, dropout=True, keys=(257, 512), long=True, alpha="any"),
        Variant(bf16, 32, 32, causal=True, keys=(1, 64), alpha="learned"),
    ),
    "statistics": (
        Variant(bf16, 64, sets=True),
        Variant(bf16, 64, causal=True, keys=(1, 3000)),
        Variant(fp16, 48, causal=True, mask="queries", sets=True),
        Variant(fp32, 32, mask="keys"),
        Variant(fp32, 64, causal=True, sets=True),
        Variant(fp16, 128, sets=True, keys=(1, 3000)),
        Variant(bf16, 32, mask="keys", sets=True, read="some"),
    ),
    "guidance": (
        Variant(bf16, 64, sets=True),
        Variant(bf16, 64, causal=True, keys=(1, 3000)),
        Variant(fp16, 48, causal=True, mask="queries", sets=True),
        Variant(fp32, 32, mask="keys", sets=True),
        Variant(fp32, 64, causal=True),
        Variant(fp16, 128, sets=True, keys=(1, 3000)),
        Variant(bf16, 32, mask="keys", sets=True),
    ),
}  # fmt: skip


def variant_of(op: str, seed: int) -> tuple[int, Variant]:
    """Return the variant of a case, and its number among all."""
    number = seed % len(VARIANTS[op])
    before = list(VARIANTS)[: list(VARIANTS).index(op)]
    return sum(len(VARIANTS[other]) for other in before) + number, VARIANTS[op][number]
