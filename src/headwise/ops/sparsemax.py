"""Sparsemax: like softmax, but weights may be exactly zero (Martins & Astudillo, 2016).

sparsemax(s) = argmin_p ||p - s||^2   with p >= 0 and sum(p) = 1
"""

from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, Number, choose
from headwise.ops.attended import Attended
from headwise.ops.checks import check_dropout, check_values
from headwise.ops.entmax.fused import fused_values, obstacle
from headwise.ops.rows import hide, weighted_values, weighted_values_in_blocks
from headwise.ops.scores import Scores
from headwise.ops.sparse_rows import sparse_rows
from headwise.ops.threshold import solve


def sparsemax(
    scores: Float[Tensor, "*rows K"], *, mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*rows K"]:
    """Project each row of scores onto the probability simplex.

    Args:
        scores: any rows of scores; -inf gets no weight, a row of nothing else gives zeros.
        mask: True where a key may get weight, broadcastable to scores.

    >>> sparsemax(torch.tensor([0.6, 0.2, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    return sparse_rows(hide(scores, mask), 2, solve=_project).to(scores.dtype)


def sparsemax_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    lengths: Int[Tensor, " B"] | None = None,
    scale: Number | None = None,
    cap: Number | None = None,
    sink: Float[Tensor, " H"] | None = None,
    dropout: Number = 0.0,
    impl: Impl = "auto",
) -> Attended:
    """Attend with sparsemax weights. See `headwise.ops` for the arguments all ops share."""
    scores = Scores(q, k, mask, bias, causal, lengths, scale, cap=cap, sink=sink)
    check_values(k, v)
    check_dropout(dropout)
    chosen = choose(impl, triton_obstacle=obstacle(scores, v, 2, impl))
    weigh = partial(
        sparse_rows, alpha=2, solve=_project_sorted if chosen == "reference" else _project
    )
    if chosen == "triton":
        out = fused_values(scores, v, 2, dropout=dropout)
    else:
        attend = weighted_values if chosen == "reference" else weighted_values_in_blocks
        out = attend(scores, weigh, v, dropout=dropout)
    return Attended(out, scores, weigh, exponential=False)


def _project(scores_XK: Tensor, alpha: Number | Tensor) -> Tensor:
    return solve(scores_XK, 1)


def _project_sorted(scores_XK: Tensor, alpha: Number | Tensor) -> Tensor:
    """The definition: a key is in the support if those above it leave room for it."""
    top_X1 = scores_XK.amax(dim=-1, keepdim=True)
    empty_X1 = top_X1 == -torch.inf
    # Relative to the largest score, so that large scores cost no precision.
    scores_XK = (scores_XK - top_X1).masked_fill(empty_X1, 0)
    sorted_XK = scores_XK.sort(dim=-1, descending=True).values
    rank_K = torch.arange(1, scores_XK.shape[-1] + 1, device=scores_XK.device)
    excess_XK = sorted_XK.cumsum(dim=-1) - 1
    in_support_XK = rank_K * sorted_XK > excess_XK
    # no key is in the support of a row with a NaN or an infinite score, which comes out as NaN
    size_X1 = in_support_XK.sum(dim=-1, keepdim=True).clamp(min=1)
    threshold_X1 = excess_XK.gather(-1, size_X1 - 1) / size_X1
    return (scores_XK - threshold_X1).clamp(min=0).masked_fill(empty_X1, 0)
