"""Softmax attention, the dense op every other one is compared with (Vaswani et al., 2017).

out = softmax(scale * q k^T + bias) v
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.ops._impl import Impl, Number, choose, readable
from headwise.ops.attended import Attended
from headwise.ops.checks import check_dropout, check_values
from headwise.ops.rows import softmax_rows, weighted_values, weighted_values_in_blocks
from headwise.ops.scores import Scores, may_hold_infinities, spread_groups


def softmax_attention(
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
    """Attend with softmax weights. See `headwise.ops` for the arguments all ops share.

    "torch" is PyTorch's fused attention, or blocks with a cap or sink; "reference" the formula,
    written out. On a GPU, in graphs and under torch.func, the fused attention lets an infinite or
    NaN key or value reach queries that may not attend it; elsewhere what is hidden never matters.

    >>> q = torch.zeros(1, 1, 2, 4)
    >>> softmax_attention(q, q, torch.eye(2)[None, None]).out
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """
    scores = Scores(q, k, mask, bias, causal, lengths, scale, cap=cap, sink=sink)
    check_values(k, v)
    check_dropout(dropout)
    chosen = choose(impl, triton_obstacle="softmax_attention has no Triton kernel")
    if chosen == "reference":
        out = weighted_values(scores, softmax_rows, v, dropout=dropout)
    elif _fused_obstacle(scores, v):
        out = weighted_values_in_blocks(scores, softmax_rows, v, dropout=dropout)
    else:
        out = _fused(scores, v, dropout)
    return Attended(out, scores, softmax_rows)


def _fused_obstacle(scores: Scores, v: Tensor) -> str | None:
    """Why PyTorch's fused kernel would compute something else, or None."""
    if scores.cap is not None or scores.sink is not None:
        return "it takes no cap and no sink"
    if scores.bias is not None and scores.bias.dtype != scores.q.dtype:
        return "it would round the bias to the dtype of q"
    if scores.hides_keys and readable(scores.k, v) and may_hold_infinities(scores.k, v):
        return "an infinite key or value would reach queries that may not attend it"
    return None


def _fused(scores: Scores, v: Tensor, dropout: Number) -> Tensor:
    """PyTorch's kernel, with the mask it is fast with, and zeros for queries that see nothing."""
    n_queries, n_keys = scores.shape[2:]
    k_BHKD, v_BHKE = (spread_groups(x, scores.shape[1]) for x in (scores.k, v))
    nothing_else = scores.mask is None and scores.bias is None and scores.lengths is None
    # sizes last: a graph that is exported must not ask whether two free lengths are the same
    if scores.causal and nothing_else and n_queries == n_keys:
        return scaled_dot_product_attention(
            scores.q, k_BHKD, v_BHKE, is_causal=True, dropout_p=dropout, scale=scores.multiplier
        )
    visible = scores.visible()
    seen = None if visible is None else visible.any(dim=-1, keepdim=True)
    if visible is not None and seen is not None:
        visible = visible | ~seen  # no kernel agrees on empty rows; give them all keys, then zeros
    out_BHQE = scaled_dot_product_attention(
        scores.q,
        k_BHKD,
        v_BHKE,
        attn_mask=_kernel_mask(visible, scores),
        dropout_p=dropout,
        scale=scores.multiplier,
    )
    return out_BHQE if seen is None else out_BHQE.masked_fill(~seen, 0)


def _kernel_mask(visible: Tensor | None, scores: Scores) -> Tensor | None:
    bias = scores.bias
    if bias is None:
        if visible is None:
            return None
        visible = visible[(None,) * (4 - visible.dim())]
        return visible.expand(*visible.shape[:2], *scores.shape[2:])
    bias = bias.to(scores.q.dtype)
    bias = bias.expand(scores.shape) if visible is None else bias
    return bias if visible is None else torch.where(visible, bias, -math.inf).expand(scores.shape)
