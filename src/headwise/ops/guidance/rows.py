"""Patterns of guided heads, and the guidance loss of each row.

The loss is computed by its definition, or in O(n) memory without targets.

With H a row's weights, M the target keys of which it sees m, and s = 1/m or 1 the target there:

    sum (H - P)^2 = sum H^2 - 2 s H(M) + s^2 m      if m > 0
                  = sum H^2 - (1 - 2 w) / n          if m = 0 and the target is uniform
                  = sum H^2                          if m = 0 and the target is zero

where n is the number of keys a row sees, and w the weight of its sink, 0 without one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.ops._impl import Number
from headwise.ops.checks import check_whole_number
from headwise.ops.rows import Block, in_blocks, row_weights, softmax_rows
from headwise.ops.scores import Scores

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


def defined_rows(
    scores: Scores, patterns: tuple[Pattern, ...], key_sets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute each row's squared distance from its target, and how many keys it sees.

    The call's heads are the guided ones, one per pattern.
    """
    scores_BNQK = scores.rows()
    visible_BNQK = scores_BNQK > -math.inf
    target_BNQK = targets(scores, visible_BNQK, patterns, key_sets).to(scores.dtype)
    weights_BNQK, _ = row_weights(scores_BNQK, scores.sink_column(), softmax_rows)
    loss_BNQ = (weights_BNQK - target_BNQK).square().sum(dim=-1)
    return loss_BNQ, visible_BNQK.sum(dim=-1)


def targets(
    scores: Scores, visible_BNQK: Tensor, patterns: tuple[Pattern, ...], key_sets: Tensor | None
) -> Tensor:
    """Build the weights that guided heads should have, (B, N, Q, K)."""
    columns = [
        _target(_pattern_keys(scores, pattern, key_sets) & visible_BQK, visible_BQK, pattern)
        for pattern, visible_BQK in zip(patterns, visible_BNQK.unbind(dim=1), strict=True)
    ]
    return torch.stack(columns, dim=1)


def _pattern_keys(scores: Scores, pattern: Pattern, key_sets: Tensor | None) -> Tensor:
    """Mark the keys of a pattern, visible or not; broadcastable to (B, Q, K)."""
    if pattern.offset is not None:
        return scores.key_position() == scores.query_position() + pattern.offset
    if pattern.column is not None:
        return scores.key_position() == pattern.column
    assert key_sets is not None and pattern.key_set is not None
    return key_sets[pattern.key_set][:, None]


def _target(chosen_BQK: Tensor, visible_BQK: Tensor, pattern: Pattern) -> Tensor:
    found_BQ1 = chosen_BQK.any(dim=-1, keepdim=True)
    target_BQK = _spread(chosen_BQK) if pattern.normalised else chosen_BQK.double()
    elsewhere_BQK = _spread(visible_BQK) * (pattern.edges == "uniform")
    return torch.where(found_BQ1, target_BQK, elsewhere_BQK)


def _spread(chosen_BQK: Tensor) -> Tensor:
    """Spread a mass of 1 evenly on the chosen keys; zeros if there are none."""
    return chosen_BQK.double() / chosen_BQK.sum(dim=-1, keepdim=True).clamp(min=1)


def blocked_rows(scores: Scores, plan: Tensor, key_sets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute each row's squared distance from its target, and how many keys it sees, in blocks.

    The call's heads are the guided ones, one per row of the plan.
    """
    compute = partial(_block_rows, plan_N6=plan.long(), key_sets_CBK=key_sets)
    loss_BNQ, seen_BNQ = in_blocks(compute, scores, list(scores.parts()))
    return loss_BNQ, seen_BNQ


def guided_only(calls: Sequence[Scores], heads: Sequence[int]) -> Scores:
    """Build one call of these heads only, each with its own keys; calls differ in q and k alone."""
    scores = calls[0]
    group = scores.shape[1] // scores.k.shape[1]
    mask, bias = (
        x if x is None or x.dim() < 3 or x.shape[-3] == 1 else _taken([x] * len(calls), heads)
        for x in (scores.mask, scores.bias)
    )
    sink = scores.sink
    if sink is not None:
        sink = _taken([sink[:, None, None]] * len(calls), heads).flatten()
    q = _taken([call.q for call in calls], heads)
    k = _taken([call.k for call in calls], [head // group for head in heads])
    return replace(scores, q=q, k=k, mask=mask, bias=bias, sink=sink, first=scores.first_position)


def _taken(tensors: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    """Take places of the third last axis, numbered across tensors."""
    each = tensors[0].shape[-3]
    parts = [
        tensor[..., run, :, :]
        for number, tensor in enumerate(tensors)
        for run in _runs([place % each for place in places if place // each == number])
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-3)


def _runs(places: Sequence[int]) -> list[slice]:
    """Turn places into ranges: slices are views, while indices would be copied to the device.

    >>> _runs([0, 1, 4, 4])
    [slice(0, 2, None), slice(4, 5, None), slice(4, 5, None)]
    """
    runs: list[slice] = []
    for place in places:
        if runs and runs[-1].stop == place:
            runs[-1] = slice(runs[-1].start, place + 1)
        else:
            runs.append(slice(place, place + 1))
    return runs


def _block_rows(
    block: Block, *, plan_N6: Tensor, key_sets_CBK: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores = block.scores.up_to(block.scores.reach())
    scores_BNQK = scores.rows()
    weights_BNQK, sink_BNQ = row_weights(scores_BNQK, scores.sink_column(), softmax_rows)
    everything = scores.bias is None and scores.visible() is None
    visible_BNQK = None if everything else scores_BNQK.detach() > -math.inf
    _, slope, place, key_set, normalised, uniform = plan_N6[block.part.heads, :, None].unbind(1)
    place_NQ = slope * scores.query_position()[:, 0] + place
    hit_BNQ, found_BNQ = _at(weights_BNQK, visible_BNQK, place_NQ)
    if key_sets_CBK is not None:
        member_BNK = key_sets_CBK[key_set.clamp(min=0)[:, 0], block.part.batch].transpose(0, 1)
        member_BNK = member_BNK[..., : scores.shape[3]] & (key_set >= 0)
        on_BNQ, among_BNQ = _among(weights_BNQK, visible_BNQK, member_BNK)
        hit_BNQ, found_BNQ = hit_BNQ + on_BNQ, found_BNQ + among_BNQ
    seen_BNQ = _seen(scores_BNQK, visible_BNQK)
    found_BNQ, many_BNQ = (x.to(weights_BNQK.dtype) for x in (found_BNQ, seen_BNQ))
    share_BNQ = torch.where(normalised > 0, 1 / found_BNQ.clamp(min=1), 1.0) * (found_BNQ > 0)
    edge_BNQ = (found_BNQ == 0) & (many_BNQ > 0) & (uniform > 0)
    squares_BNQ = torch.linalg.vector_norm(weights_BNQK, dim=-1).square()
    short_BNQ = 1 if sink_BNQ is None else 1 - 2 * sink_BNQ
    known_BNQ = share_BNQ.square() * found_BNQ - edge_BNQ * short_BNQ / many_BNQ.clamp(min=1)
    loss_BNQ = squares_BNQ - 2 * share_BNQ * hit_BNQ + known_BNQ
    return loss_BNQ.to(weights_BNQK.dtype), seen_BNQ


def _at(
    weights_BNQK: Tensor, visible_BNQK: Tensor | None, place_NQ: Tensor
) -> tuple[Tensor, Tensor]:
    """Read the weight on the one key at each query's place, and whether it is visible."""
    n_keys = weights_BNQK.shape[-1]
    there_NQ = (place_NQ >= 0) & (place_NQ < n_keys)
    index_BNQ1 = place_NQ.clamp(0, n_keys - 1)[..., None].expand(*weights_BNQK.shape[:3], 1)
    hit_BNQ = weights_BNQK.gather(-1, index_BNQ1)[..., 0].masked_fill(~there_NQ, 0)
    found_BNQ = there_NQ.expand(hit_BNQ.shape)
    if visible_BNQK is not None:
        found_BNQ = found_BNQ & visible_BNQK.gather(-1, index_BNQ1)[..., 0]
    return hit_BNQ, found_BNQ.long()


def _among(
    weights_BNQK: Tensor, visible_BNQK: Tensor | None, member_BNK: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum the weight on a set of keys, and count how many of them each query sees."""
    member_BNK1 = member_BNK[..., None].to(weights_BNQK.dtype)
    on_BNQ = (weights_BNQK @ member_BNK1)[..., 0]
    if visible_BNQK is None:
        return on_BNQ, member_BNK.sum(dim=-1)[..., None].expand(on_BNQ.shape)
    return on_BNQ, (visible_BNQK & member_BNK[:, :, None]).sum(dim=-1)


def _seen(scores_BNQK: Tensor, visible_BNQK: Tensor | None) -> Tensor:
    if visible_BNQK is None:
        shape, n_keys = scores_BNQK.shape[:3], scores_BNQK.shape[3]
        return torch.full(shape, n_keys, device=scores_BNQK.device)
    return visible_BNQK.sum(dim=-1)
