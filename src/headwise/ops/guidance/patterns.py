"""Patterns that guided heads should follow, and the choice of these heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.ops._impl import Number
from headwise.ops.checks import check_whole_number

Edges = Literal["uniform", "nothing"]


@dataclass(frozen=True)
class Pattern:
    """Target of one head: one key per query, or a set of keys.

    Give exactly one of offset, column and key_set. Only keys that a query may see count. So a last
    token has no next one: neither at the end of a text, nor before padding, nor at the end of one
    of several texts packed together.
    """

    offset: int | None = None  # the key at the query's position + offset
    column: int | None = None  # this key, for every query
    key_set: int | None = None  # the keys of the set of this number, such as all full stops
    normalised: bool = True  # a row's target mass is 1, spread evenly; else 1 at every such key
    edges: Edges = "uniform"  # target of rows that see no such key: uniform, or zeros

    def __post_init__(self) -> None:
        given = {"offset": self.offset, "column": self.column, "key_set": self.key_set}
        given = {name: number for name, number in given.items() if number is not None}
        if len(given) != 1:
            raise ValueError(
                "A pattern needs exactly one of offset, column and key_set, "
                f"got {', '.join(given) or 'none'}."
            )
        for name, number in given.items():
            check_whole_number(name, number)
            if name != "offset" and number < 0:
                raise ValueError(f"{name} must be at least 0, got {number}.")
            if abs(number) >= 2**29:
                raise ValueError(f"{name} must be less than {2**29}, got {number}.")
        if self.edges not in get_args(Edges):
            raise ValueError(f"edges must be 'uniform' or 'nothing', got {self.edges!r}.")


NEXT = Pattern(offset=1)
PREVIOUS = Pattern(offset=-1)
FIRST = Pattern(column=0)


@dataclass(frozen=True, eq=False)
class GuidedHeads:
    """Guided heads of a site, with their patterns and loss weights; see `guided_heads`.

    The tensors are all that a kernel needs. They can be reused for every call and every site with
    the same number of heads.
    """

    heads: tuple[int, ...]
    patterns: tuple[Pattern, ...]
    plan: Int[Tensor, "N 6"]  # head, slope, place, key set, normalised, uniform edges
    numbers: Int[Tensor, " H"]  # row of each head in the plan, or -1
    weights: Float[Tensor, " N"]

    def to(self, device: torch.device | str) -> "GuidedHeads":
        """Move the tensors to a device."""
        tensors = (x.to(device) for x in (self.plan, self.numbers, self.weights))
        return GuidedHeads(self.heads, self.patterns, *tensors)


def guided_heads(
    patterns: Mapping[int, Pattern],
    *,
    num_heads: int,
    weights: Number | Sequence[Number] = 1.0,
    device: torch.device | str | None = None,
) -> GuidedHeads:
    """Choose the heads to guide among the `num_heads` of a site.

    Args:
        patterns: Pattern of each guided head, by the head's index.
        num_heads: Number of query heads, guided or not.
        weights: Factor of each head's loss: one number, or one per guided head.
        device: Device of q and k.

    >>> guided_heads({0: NEXT, 3: FIRST}, num_heads=4).numbers
    tensor([ 0, -1, -1,  1], dtype=torch.int32)
    """
    heads = tuple(sorted(patterns))
    for head in heads:
        check_whole_number("A head's index", head)
        if not 0 <= head < num_heads:
            raise ValueError(f"A head's index must be from 0 to {num_heads - 1}, got {head}.")
    if not heads:
        raise ValueError("patterns must name at least one head to guide, got none.")
    each = [weights] * len(heads) if isinstance(weights, int | float) else list(weights)
    if len(each) != len(heads):
        raise ValueError(
            f"weights must hold one number per guided head, {len(heads)}, got {len(each)}."
        )
    if not isinstance(weights, int | float):  # given in the order of patterns
        each = [each[list(patterns).index(head)] for head in heads]
    numbers = [heads.index(head) if head in heads else -1 for head in range(num_heads)]
    rows = [_plan_row(head, patterns[head]) for head in heads]
    return GuidedHeads(
        heads=heads,
        patterns=tuple(patterns[head] for head in heads),
        plan=torch.tensor(rows, dtype=torch.int32, device=device),
        numbers=torch.tensor(numbers, dtype=torch.int32, device=device),
        weights=torch.tensor(each, dtype=torch.float32, device=device),
    )


def _plan_row(head: int, pattern: Pattern) -> list[int]:
    """Encode a pattern; its one key per query is slope * position + place, -1 with slope 0 none."""
    slope = 1 if pattern.offset is not None else 0
    place = next((x for x in (pattern.offset, pattern.column) if x is not None), -1)
    key_set = -1 if pattern.key_set is None else pattern.key_set
    return [head, slope, place, key_set, int(pattern.normalised), int(pattern.edges == "uniform")]
