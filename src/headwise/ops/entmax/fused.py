"""Sparsemax and entmax attention by Triton kernels: what they cannot do, and the call."""

from torch import Tensor

from headwise.ops._impl import Impl, Number
from headwise.ops.scores import Scores, attention_obstacle

LEAST_ALPHA = 1.1  # nearer to 1, weights are high powers of numbers rounded to float32


def obstacle(scores: Scores, v: Tensor, alpha: Number | Tensor, impl: Impl) -> str | None:
    """Why the kernels cannot run this call, or None."""
    if isinstance(alpha, Tensor):
        if impl == "auto":
            return "alpha is a tensor, and may hold numbers that its kernels do not take"
    elif not LEAST_ALPHA <= alpha <= 2:
        return f"its kernels take alpha from {LEAST_ALPHA} to 2, and it is {alpha}"
    return attention_obstacle(scores, impl, v.shape[3])


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
