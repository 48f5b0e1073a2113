"""Sparsemax and entmax attention by Triton kernels: what they cannot do, and the call."""

from torch import Tensor

from headwise.ops._impl import Impl, Number, kernel_obstacle
from headwise.ops.scores import Scores

LEAST_ALPHA = 1.1  # nearer to 1, weights are high powers of numbers rounded to float32
MOST_WIDTH = 128


def obstacle(scores: Scores, v: Tensor, alpha: Number | Tensor, impl: Impl) -> str | None:
    """Why the kernels cannot run this call, or None."""
    if impl == "auto":
        return "it is used only when asked for by name"
    if scores.bias is not None:
        return "its kernels take no bias"
    if not isinstance(alpha, Tensor) and not LEAST_ALPHA <= alpha <= 2:
        return f"its kernels take alpha from {LEAST_ALPHA} to 2, and it is {alpha}"
    if max(scores.q.shape[3], v.shape[3]) > MOST_WIDTH:
        return f"its kernels take widths up to {MOST_WIDTH}"
    return kernel_obstacle(scores.q, impl)


def fused_values(
    scores: Scores, v: Tensor, alpha: Number | Tensor, *, dropout: Number = 0.0
) -> Tensor:
    """The sum of values under sparsemax (alpha = 2) or entmax weights, in O(n) memory.

    Args:
        alpha: a number, or a tensor of one value or one a head. A tensor's numbers are not looked
            at; a head whose alpha is not in (1, 2] gives NaN.
    """
    from headwise.ops.entmax import triton  # lazy: importing headwise never imports Triton

    return triton.attend(scores, v, alpha, dropout=dropout)
