"""Sparsemax: like softmax, but weights may be exactly zero (Martins & Astudillo, 2016).

sparsemax(s) = argmin_p ||p - s||^2   with p >= 0 and sum(p) = 1
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, choose
from headwise.ops.attended import Attended
from headwise.ops.entmax import entmax_gradient
from headwise.ops.rows import hide, weighted_values, weighted_values_in_blocks
from headwise.ops.scores import Scores, check_dropout, check_values


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
    return _sparsemax_rows(hide(scores, mask)).to(scores.dtype)


def sparsemax_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    lengths: Int[Tensor, " B"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Attended:
    """Attend with sparsemax weights. See `headwise.ops` for the arguments all ops share."""
    scores = Scores(q, k, mask, bias, causal, lengths, scale)
    check_values(k, v)
    check_dropout(dropout)
    chosen = choose(impl, triton_obstacle="sparsemax_attention has no Triton kernel")
    attend = weighted_values if chosen == "reference" else weighted_values_in_blocks
    out = attend(scores, _sparsemax_rows, v, dropout=dropout)
    return Attended(out, scores, _sparsemax_rows, exponential=False)


def _sparsemax_rows(scores_XK: Tensor) -> Tensor:
    return _Sparsemax.apply(scores_XK)  # pyright: ignore[reportReturnType]


class _Sparsemax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores_XK: Tensor) -> Tensor:  # pyright: ignore
        weights_XK = _project(scores_XK)
        ctx.save_for_backward(weights_XK)
        return weights_XK

    @staticmethod
    def backward(ctx, grad_XK: Tensor) -> Tensor:  # pyright: ignore
        (weights_XK,) = ctx.saved_tensors
        return entmax_gradient(grad_XK, (weights_XK > 0).to(grad_XK.dtype))


def _project(scores_XK: Tensor) -> Tensor:
    top_X1 = scores_XK.amax(dim=-1, keepdim=True)
    empty_X1 = top_X1 == -torch.inf
    # Relative to the largest score, so that large scores cost no precision.
    scores_XK = (scores_XK - top_X1).masked_fill(empty_X1, 0)
    sorted_XK = scores_XK.sort(dim=-1, descending=True).values
    rank_K = torch.arange(1, scores_XK.shape[-1] + 1, device=scores_XK.device)
    excess_XK = sorted_XK.cumsum(dim=-1) - 1
    in_support_XK = rank_K * sorted_XK > excess_XK
    size_X1 = in_support_XK.sum(dim=-1, keepdim=True)
    threshold_X1 = excess_XK.gather(-1, size_X1 - 1) / size_X1
    return (scores_XK - threshold_X1).clamp(min=0).masked_fill(empty_X1, 0)
