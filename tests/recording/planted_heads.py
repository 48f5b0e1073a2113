"""Attention calls whose strongest keys are set by hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.ops import Attended, softmax_attention
from headwise.sites import Site

SURE = 1000.0  # a score that leaves nothing to the other keys


def site_of(name: str, heads: int = 1) -> Site:
    """A site that only lends its name."""
    return Site(name, heads, softmax_attention)


def attended_by(scores_BHQK: Tensor, **options: Any) -> Attended:
    """A softmax attention call with these scores."""
    batch, heads, n_queries, n_keys = scores_BHQK.shape
    q_BHQD, k_BHKD = torch.zeros(batch, heads, n_queries, 1), torch.zeros(batch, heads, n_keys, 1)
    return softmax_attention(q_BHQD, k_BHKD, k_BHKD, bias=scores_BHQK, **options)


def pointing_at(keys_BHQ: Sequence[Sequence[Sequence[int]]], n_keys: int) -> Attended:
    """Each query gives all its weight to one key."""
    return attended_by(SURE * torch.nn.functional.one_hot(torch.tensor(keys_BHQ), n_keys).float())


def with_weights(weights_BHQK: Tensor, **options: Any) -> Attended:
    """These very weights; rows sum to one and are positive."""
    return attended_by(weights_BHQK.log(), **options)
