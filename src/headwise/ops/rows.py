"""What every op shares: rows of weights from rows of scores, and the sum of values under them."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from headwise.ops._impl import Number, readable
from headwise.ops.blocks import Block, in_blocks
from headwise.ops.checks import check_rows
from headwise.ops.scores import Scores, finite, may_hold_infinities, multiply_groups

PLAIN_ELEMENTS = (
    2**22
)  # weights that autograd may keep, 16 MB in float32: computing again is slower

# (scores, -inf where masked; the op's own tensors) -> weights, one row at a time
Weigh = Callable[..., Tensor]


def softmax_rows(scores_XK: Tensor) -> Tensor:
    """Softmax over keys; a row of nothing but -inf gives zeros and zero gradient."""
    if readable(scores_XK):
        # A row that sees nothing comes out as NaN, and so does a row with a NaN score. Looking is
        # cheap, and nearly always there is none.
        weights_XK = scores_XK.softmax(dim=-1)
        if not bool(weights_XK.detach()[..., 0].isnan().any()):
            return weights_XK
    empty_X1 = scores_XK.amax(dim=-1, keepdim=True) == -math.inf
    return scores_XK.masked_fill(empty_X1, 0).softmax(dim=-1).masked_fill(empty_X1, 0)


def weights_of(scores: Scores, weigh: Weigh, *parameters: Tensor) -> Tensor:
    """Weights over the keys, (B, H, Q, K), of all queries of a call."""
    return weigh_rows(scores.rows(), scores.sink_column(), weigh, *parameters)[0]


def weigh_rows(
    scores_BHQK: Tensor, sink_BHQ1: Tensor | None, weigh: Weigh, *parameters: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Weights over the keys, (B, H, Q, K), and of the sink, (B, H, Q).

    With a sink, `weigh` gets its score as the last one of each row.
    """
    if sink_BHQ1 is None:
        return weigh(scores_BHQK, *parameters), None
    weights_BHQK = weigh(torch.cat([scores_BHQK, sink_BHQ1], dim=-1), *parameters)
    return weights_BHQK[..., :-1], weights_BHQK[..., -1]


def hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores, at least float32, with -inf where the boolean mask says a key may not be attended."""
    check_rows(scores, mask)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def weighted_values(
    scores: Scores, weigh: Weigh, v: Tensor, *parameters: Tensor, dropout: Number
) -> Tensor:
    """The definition of attention: weigh every row, drop some weights, sum the values."""
    weights_BHQK = drop(weights_of(scores, weigh, *parameters), p=dropout)
    return sum_values(scores, weights_BHQK, v)


def sum_values(scores: Scores, weights_BHQK: Tensor, v: Tensor) -> Tensor:
    """Values summed under weights, (B, H, Q, E), in the dtype of v.

    A value that a query may not attend never matters to it, also where it is infinite or NaN: then
    only queries with weight on it get NaN. It has to be looked for, as 0 times infinity is not 0.
    """
    v_BGKE = v.to(weights_BHQK.dtype)
    if not scores.hides_keys or not may_hold_infinities(v_BGKE):
        return multiply_groups(weights_BHQK, v_BGKE).to(v.dtype)
    bad_BGK1 = (~v_BGKE.isfinite()).any(dim=-1, keepdim=True).to(weights_BHQK.dtype)
    on_bad_BHQ1 = multiply_groups(weights_BHQK.detach(), bad_BGK1)
    out_BHQE = multiply_groups(weights_BHQK, finite(v_BGKE))
    return (out_BHQE + torch.where(on_bad_BHQ1 != 0, math.nan, 0.0)).to(v.dtype)


def weighted_values_in_blocks(
    scores: Scores, weigh: Weigh, v: Tensor, *parameters: Tensor, dropout: Number
) -> Tensor:
    """The same in O(n) memory: parts of the call, computed again in the backward pass."""
    parts = list(scores.parts())
    if len(parts) <= 1 or math.prod(scores.shape) <= PLAIN_ELEMENTS:
        return weighted_values(scores, weigh, v, *parameters, dropout=dropout)
    if dropout and v.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "A CUDA graph would drop the same weights for ever in attention that is computed in "
            f"blocks, here to {math.prod(scores.shape):,} weights; train with graphs=False, or "
            "without dropout of attention weights."
        )
    # One seed a call, from which every part draws the same in both passes.
    seed = int(torch.randint(2**62, ())) if dropout else 0
    compute = partial(_weighted_rows, weigh=weigh, dropout=dropout, seed=seed)
    return in_blocks(compute, scores, parts, v=v, parameters=parameters)[0]


def _weighted_rows(block: Block, *, weigh: Weigh, dropout: Number, seed: int) -> tuple[Tensor]:
    assert block.v is not None
    n_keys = block.scores.reach()
    weights_BHQK = weights_of(block.scores.up_to(n_keys), weigh, *block.parameters)
    if dropout:
        seed = hash((seed, *(chosen.start for chosen in block.part))) % 2**63
        rng = torch.Generator(weights_BHQK.device).manual_seed(seed)
        kept_BHQK = torch.empty_like(weights_BHQK).bernoulli_(1 - dropout, generator=rng)
        weights_BHQK = weights_BHQK * kept_BHQK.div_(1 - dropout)
    return (sum_values(block.scores, weights_BHQK, block.v[:, :, :n_keys]),)
