"""What every op shares: rows of weights from rows of scores, and the sum of values under them."""

import math

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.utils.checkpoint import checkpoint

from headwise.ops.attended import Weigh
from headwise.ops.scores import Scores, spread_groups


def softmax_rows(scores_XK: Tensor) -> Tensor:
    """Softmax over keys; a row of nothing but -inf gives zeros and zero gradient."""
    empty_X1 = scores_XK.amax(dim=-1, keepdim=True) == -math.inf
    return scores_XK.masked_fill(empty_X1, 0).softmax(dim=-1).masked_fill(empty_X1, 0)


def hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores, at least float32, with -inf where the boolean mask says a key may not be attended."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True where a query may attend, got {mask.dtype}.")
    return scores.masked_fill(~mask, -math.inf)


def weighted_values(scores: Scores, weigh: Weigh, v: Tensor, *, dropout: float) -> Tensor:
    """The definition of attention: weigh every row, drop some weights, sum the values."""
    return _weighted_rows(scores, weigh, v, dropout, slice(None))


def weighted_values_in_blocks(scores: Scores, weigh: Weigh, v: Tensor, *, dropout: float) -> Tensor:
    """The same in O(n) memory: blocks of queries, recomputed one at a time in the backward pass."""
    blocks = list(scores.blocks())
    if len(blocks) <= 1:
        return weighted_values(scores, weigh, v, dropout=dropout)
    outs = [
        checkpoint(
            _weighted_rows,
            scores,
            weigh,
            v,
            dropout,
            rows,
            use_reentrant=False,
            preserve_rng_state=dropout > 0,
        )
        for rows in blocks
    ]
    return torch.cat(outs, dim=2)


def _weighted_rows(scores: Scores, weigh: Weigh, v: Tensor, dropout: float, rows: slice) -> Tensor:
    weights_BHQK = weigh(scores.rows(rows))
    if dropout:
        weights_BHQK = drop(weights_BHQK, p=dropout)
    v_BHKE = spread_groups(v, scores.shape[1]).to(weights_BHQK.dtype)
    return (weights_BHQK @ v_BHKE).to(v.dtype)
