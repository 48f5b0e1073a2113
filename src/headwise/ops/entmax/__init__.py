"""Sparsemax and alpha-entmax: like softmax, but weights may be exactly zero.

    w_j = max(0, (alpha - 1) s_j - tau)^(1 / (alpha - 1)),   tau such that sum_j w_j = 1

Entmax (Peters et al., 2019) lies between softmax (alpha -> 1) and sparsemax (alpha = 2; Martins &
Astudillo, 2016), which is argmin_w ||w - s||^2 with w >= 0 and sum(w) = 1.
"""

import math
from functools import partial
from typing import Unpack

from jaxtyping import Bool, Float
from torch import Tensor

from headwise.ops._impl import Impl, Number
from headwise.ops.attended import Attended
from headwise.ops.attention import AttentionCall, AttentionOptions, shares_options
from headwise.ops.checks import check_broadcast
from headwise.ops.entmax.rows import (
    project_sorted,
    solve_by_definition,
    solve_by_newton,
    sparse_rows,
)
from headwise.ops.rows import masked_scores
from headwise.ops.scores import Scores, attention_obstacle

__all__ = ["entmax", "entmax_attention", "sparsemax", "sparsemax_attention"]

LEAST_ALPHA = 1 + 1e-6  # nearer to 1, even float64 loses the gradient for alpha in rounding
LEAST_KERNEL_ALPHA = 1.1  # nearer to 1, weights are high powers of numbers rounded to float32


def sparsemax(
    scores: Float[Tensor, "*rows K"], *, mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*rows K"]:
    """Project each row of scores onto the probability simplex.

    Args:
        scores: Any rows of scores; -inf gets no weight, a row of nothing else gives zeros.
        mask: True where a key may get weight, broadcastable to scores.

    >>> sparsemax(torch.tensor([0.6, 0.2, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    weights = sparse_rows(masked_scores(scores, mask), 2, solve=solve_by_newton)
    return weights.to(scores.dtype)


def entmax(
    scores: Float[Tensor, "*rows K"],
    *,
    alpha: Number | Float[Tensor, "..."] = 1.5,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*rows K"]:
    """Compute the alpha-entmax weights of each row of scores.

    Args:
        scores: Any rows of scores; -inf gets no weight, a row of nothing else gives zeros.
        alpha: Above 1, by at least 1e-6. A tensor broadcastable to scores with a last axis of 1
            gets a gradient (Correia et al., 2019), so that heads can learn how sparse to be.
        mask: True where a key may get weight, broadcastable to scores.

    >>> entmax(torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]))
    tensor([0.8146, 0.1621, 0.0233, 0.0000, 0.0000])
    """
    _check_alpha(alpha)
    visible = masked_scores(scores, mask)
    if isinstance(alpha, Tensor):
        check_broadcast("alpha", alpha, (*scores.shape[:-1], 1), axes="the rows of scores")
    return sparse_rows(visible, alpha, solve=solve_by_newton).to(scores.dtype)


@shares_options
def sparsemax_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    **options: Unpack[AttentionOptions],
) -> Attended:
    """Attend with sparsemax weights."""
    call = AttentionCall.of(q, k, v, options)
    chosen = call.choose(triton_obstacle=_triton_obstacle(call.scores, v, 2, call.impl))
    solve = project_sorted if chosen == "reference" else solve_by_newton
    rows = partial(sparse_rows, alpha=2, solve=solve)
    out = _fused_values(call, 2) if chosen == "triton" else call.sum_values(rows, chosen)
    return Attended(out, call.scores, rows, exponential=False)


@shares_options
def entmax_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    alpha: Number | Float[Tensor, ""] | Float[Tensor, " H"] = 1.5,
    **options: Unpack[AttentionOptions],
) -> Attended:
    """Attend with alpha-entmax weights.

    "triton" takes alpha up to 2 and never reads the numbers in a tensor, because the host would
    have to wait for the device: a head with an alpha out of range gives NaN. Therefore "auto" uses
    PyTorch for tensors.

    Args:
        alpha: Above 1, by at least 1e-6: a number, or a tensor with one value per head.
    """
    _check_kind(alpha)
    call = AttentionCall.of(q, k, v, options)
    chosen = call.choose(triton_obstacle=_triton_obstacle(call.scores, v, alpha, call.impl))
    if chosen != "triton" or not isinstance(alpha, Tensor):
        _check_alpha(alpha)
    solve = solve_by_definition if chosen == "reference" else solve_by_newton
    rows = partial(sparse_rows, solve=solve)
    parameters: tuple[Tensor, ...] = ()
    if isinstance(alpha, Tensor):
        parameters = (_per_head(alpha, call.scores.shape[1]),)
    else:
        rows = partial(rows, alpha=alpha)
    if chosen == "triton":
        out = _fused_values(call, alpha)
    else:
        out = call.sum_values(rows, chosen, *parameters)
    return Attended(out, call.scores, rows, exponential=False, parameters=parameters)


def _triton_obstacle(scores: Scores, v: Tensor, alpha: Number | Tensor, impl: Impl) -> str | None:
    """Return why the Triton kernels cannot run this call, or None."""
    if isinstance(alpha, Tensor):
        if impl == "auto":
            return "alpha is a tensor, and may hold numbers that its kernels do not take"
    elif not LEAST_KERNEL_ALPHA <= alpha <= 2:
        return f"its kernels take alpha from {LEAST_KERNEL_ALPHA} to 2, and it is {alpha}"
    return attention_obstacle(scores, impl, v.shape[3])


def _fused_values(call: AttentionCall, alpha: Number | Tensor) -> Tensor:
    from headwise.ops.entmax import triton  # lazy: importing headwise never imports Triton

    return triton.attend(call.scores, call.v, alpha, dropout=call.dropout)


def _check_kind(alpha: object) -> None:
    if not isinstance(alpha, Number | Tensor) or isinstance(alpha, bool):
        raise ValueError(f"alpha must be a number or a tensor, got {alpha!r}.")


def _check_alpha(alpha: Number | Tensor) -> None:
    _check_kind(alpha)
    if isinstance(alpha, Tensor):
        good = bool(((alpha >= LEAST_ALPHA) & (alpha < math.inf)).all())
    else:
        good = LEAST_ALPHA <= alpha < math.inf
    if not good:
        raise ValueError(
            f"alpha must be finite and at least 1 + 1e-6, got {alpha}. At 1 entmax is softmax: "
            "use softmax_attention."
        )


def _per_head(alpha: Tensor, num_heads: int) -> Tensor:
    if alpha.dim() == 0:
        return alpha
    if alpha.shape != (num_heads,):
        raise ValueError(
            f"alpha must be a number or hold one value for each of the {num_heads} heads, "
            f"got shape {tuple(alpha.shape)}."
        )
    return alpha[:, None, None]
