"""The two synthetic tasks of the output relevance paper: SynClf and copying."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["IMPORTANT", "CopyTask", "Copying", "SynClf", "copying", "synclf"]

IMPORTANT = 1  # the token that makes a SynClf sequence positive

CopyTask = Literal["permutation", "iid"]


class SynClf(NamedTuple):
    """Sequences with labels."""

    tokens: Int[Tensor, "N T"]  # 1 to types; 0 is left for padding
    labels: Int[Tensor, " N"]  # 1 where the important token occurs


class Copying(NamedTuple):
    """Sequences to copy, with the marks a sequence-to-sequence model wants."""

    source: Int[Tensor, "N K"]  # the tokens 0 to types - 1, then the end mark, `types`
    target_in: Int[Tensor, "N K"]  # the beginning mark, `types + 1`, then the tokens
    target_out: Int[Tensor, "N K"]  # the tokens, then the end mark


def synclf(count: int, *, length: int = 40, types: int = 40, generator: torch.Generator) -> SynClf:
    """Tokens drawn uniformly; positive if and only if the important one occurs (Section 3.1).

    >>> drawn = synclf(5000, generator=torch.Generator().manual_seed(0))
    >>> drawn.tokens.shape, round(drawn.labels.double().mean().item(), 2)  # 1 - (39 / 40)^40
    (torch.Size([5000, 40]), 0.64)
    """
    if min(count, length) < 1 or types < 2:
        raise ValueError(
            f"count and length must be at least 1 and types at least 2, got {count}, {length} "
            f"and {types}."
        )
    tokens_NT = torch.randint(1, types + 1, (count, length), generator=generator)
    return SynClf(tokens_NT, (tokens_NT == IMPORTANT).any(1).long())


def copying(
    task: CopyTask,
    count: int,
    *,
    types: int = 40,
    length: int | None = None,
    generator: torch.Generator,
) -> Copying:
    """Sequences whose output is the input (Section 4.2).

    Args:
        task: "permutation" orders all types anew each time, so that all sequences are the same bag
            of words; "iid" draws every token by itself.
        count: how many.
        types: different tokens; a vocabulary has two more, the marks.
        length: tokens of a sequence, `types` unless given; fewer are a part of a permutation.
        generator: on the device where the sequences shall be.

    >>> copying("permutation", 1, types=3, generator=torch.Generator().manual_seed(0)).target_in
    tensor([[4, 2, 0, 1]])
    """
    length = types if length is None else length
    if task not in ("permutation", "iid"):
        raise ValueError(f"task must be 'permutation' or 'iid', got {task!r}.")
    if min(count, types, length) < 1 or (task == "permutation" and length > types):
        raise ValueError(
            f"A {task} of {length} out of {types} tokens, {count} times, is not possible."
        )
    device = generator.device
    if task == "iid":
        tokens_NT = torch.randint(types, (count, length), generator=generator, device=device)
    else:
        lot_NV = torch.rand(count, types, generator=generator, device=device)
        tokens_NT = lot_NV.argsort(1)[:, :length]
    end_N1, begin_N1 = (tokens_NT.new_full((count, 1), types + mark) for mark in (0, 1))
    source_NK = torch.cat([tokens_NT, end_N1], dim=1)
    return Copying(source_NK, torch.cat([begin_N1, tokens_NT], dim=1), source_NK)
