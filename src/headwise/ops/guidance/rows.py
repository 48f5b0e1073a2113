"""The guidance loss of each row: by its definition, and in O(n) memory without targets.

With H a row's weights, M the target keys of which it sees m, and s = 1/m or 1 the target there:

    sum (H - P)^2 = sum H^2 - 2 s H(M) + s^2 m      if m > 0
                  = sum H^2 - (1 - 2 w) / n          if m = 0 and the target is uniform
                  = sum H^2                          if m = 0 and the target is zero

where n is the number of keys a row sees, and w the weight of its sink, 0 without one.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from headwise.ops.guidance.patterns import Pattern
from headwise.ops.rows import Block, in_blocks, row_weights, softmax_rows
from headwise.ops.scores import Scores


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
