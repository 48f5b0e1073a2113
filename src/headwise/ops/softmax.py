"""Softmax attention, the dense op every other one is compared with (Vaswani et al., 2017).

out = softmax(scale * q k^T + bias) v
"""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.ops._impl import Number, readable
from headwise.ops.attended import Attended
from headwise.ops.attention import AttentionCall, AttentionOptions, shares_options
from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Scores, may_hold_infinities, spread_groups


@shares_options
def softmax_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    **options: Unpack[AttentionOptions],
) -> Attended:
    """Attend with softmax weights.

    "torch" is PyTorch's fused attention, or blocks of queries with a cap or sink. On a GPU, in
    graphs and under torch.func, fused attention lets an infinite or NaN key or value reach queries
    that may not attend it; elsewhere hidden keys and values have no influence.

    >>> q = torch.zeros(1, 1, 2, 4)
    >>> softmax_attention(q, q, torch.eye(2)[None, None]).out
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    """
    call = AttentionCall.of(q, k, v, options)
    chosen = call.choose(triton_obstacle="softmax_attention has no Triton kernel")
    if chosen == "torch" and _fused_obstacle(call.scores, v) is None:
        out = _fused(call.scores, v, call.dropout)
    else:
        out = call.sum_values(softmax_rows, chosen)
    return Attended(out, call.scores, softmax_rows)


def _fused_obstacle(scores: Scores, v: Tensor) -> str | None:
    """Return why PyTorch's fused kernel would compute something else, or None."""
    if scores.cap is not None or scores.sink is not None:
        return "it takes no cap and no sink"
    if scores.bias is not None and scores.bias.dtype != scores.q.dtype:
        return "it would round the bias to the dtype of q"
    if scores.hides_keys and readable(scores.k, v) and may_hold_infinities(scores.k, v):
        return "an infinite key or value would reach queries that may not attend it"
    return None


def _fused(scores: Scores, v: Tensor, dropout: Number) -> Tensor:
    """Call PyTorch's kernel with the mask it is fast with; queries without keys get zeros."""
    n_queries, n_keys = scores.shape[2:]
    k_BHKD, v_BHKE = (spread_groups(x, scores.shape[1]) for x in (scores.k, v))
    nothing_else = scores.mask is None and scores.bias is None and scores.lengths is None
    # sizes last: an exported graph must not compare two symbolic lengths
    if scores.causal and nothing_else and n_queries == n_keys:
        return scaled_dot_product_attention(
            scores.q, k_BHKD, v_BHKE, is_causal=True, dropout_p=dropout, scale=scores.multiplier
        )
    visible = scores.visible()
    seen = None if visible is None else visible.any(dim=-1, keepdim=True)
    if visible is not None and seen is not None:
        visible = visible | ~seen  # kernels disagree on empty rows: show all keys, then zero
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
    """Merge visibility and bias into the one mask that PyTorch's kernel takes."""
    bias = scores.bias
    if bias is None:
        if visible is None:
            return None
        visible = visible[(None,) * (4 - visible.dim())]
        return visible.expand(*visible.shape[:2], *scores.shape[2:])
    bias = bias.to(scores.q.dtype)
    bias = bias.expand(scores.shape) if visible is None else bias
    return bias if visible is None else torch.where(visible, bias, -math.inf).expand(scores.shape)
