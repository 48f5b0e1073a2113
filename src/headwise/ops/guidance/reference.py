"""The definition every other implementation is tested against. Clear before fast."""

import math

import torch
from torch import Tensor

from headwise.ops.guidance.patterns import Pattern
from headwise.ops.rows import softmax_rows, weigh_rows
from headwise.ops.scores import Scores


def guidance_rows(
    scores: Scores, patterns: tuple[Pattern, ...], key_sets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Each row's squared distance from its target, and how many keys it sees.

    The call's heads are the guided ones, one a pattern.
    """
    scores_BNQK = scores.rows()
    visible_BNQK = scores_BNQK > -math.inf
    target_BNQK = targets(scores, visible_BNQK, patterns, key_sets).to(scores.dtype)
    weights_BNQK, _ = weigh_rows(scores_BNQK, scores.sink_column(), softmax_rows)
    loss_BNQ = (weights_BNQK - target_BNQK).square().sum(dim=-1)
    return loss_BNQ, visible_BNQK.sum(dim=-1)


def targets(
    scores: Scores, visible_BNQK: Tensor, patterns: tuple[Pattern, ...], key_sets: Tensor | None
) -> Tensor:
    """The weights that guided heads should have, (B, N, Q, K)."""
    columns = [
        _target(_aimed(scores, pattern, key_sets) & visible_BQK, visible_BQK, pattern)
        for pattern, visible_BQK in zip(patterns, visible_BNQK.unbind(dim=1), strict=True)
    ]
    return torch.stack(columns, dim=1)


def _aimed(scores: Scores, pattern: Pattern, key_sets: Tensor | None) -> Tensor:
    """True at the keys of the pattern, visible or not; broadcastable to (B, Q, K)."""
    if pattern.offset is not None:
        return scores.key_position() == scores.query_position() + pattern.offset
    if pattern.column is not None:
        return scores.key_position() == pattern.column
    assert key_sets is not None and pattern.key_set is not None
    return key_sets[pattern.key_set][:, None]


def _target(aimed_BQK: Tensor, visible_BQK: Tensor, pattern: Pattern) -> Tensor:
    found_BQ1 = aimed_BQK.any(dim=-1, keepdim=True)
    target_BQK = _spread(aimed_BQK) if pattern.normalised else aimed_BQK.double()
    elsewhere_BQK = _spread(visible_BQK) * (pattern.edges == "uniform")
    return torch.where(found_BQ1, target_BQK, elsewhere_BQK)


def _spread(chosen_BQK: Tensor) -> Tensor:
    """A mass of 1 evenly on the chosen keys; zeros where there is none."""
    return chosen_BQK.double() / chosen_BQK.sum(dim=-1, keepdim=True).clamp(min=1)
