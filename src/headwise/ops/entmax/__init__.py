"""Alpha-entmax: between softmax (alpha -> 1) and sparsemax (alpha = 2) (Peters et al., 2019).

w_j = max(0, (alpha - 1) s_j - tau)^(1 / (alpha - 1)),   tau such that sum_j w_j = 1
"""

import math
from functools import partial

from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, Number, choose
from headwise.ops.attended import Attended
from headwise.ops.checks import check_broadcast, check_dropout, check_values
from headwise.ops.entmax import reference
from headwise.ops.entmax.fused import fused_values, obstacle
from headwise.ops.rows import hide, weighted_values, weighted_values_in_blocks
from headwise.ops.scores import Scores
from headwise.ops.sparse_rows import sparse_rows
from headwise.ops.threshold import solve

__all__ = ["entmax", "entmax_attention"]

LEAST_ALPHA = 1 + 1e-6  # nearer to 1, even float64 loses the gradient for alpha in rounding


def entmax(
    scores: Float[Tensor, "*rows K"],
    *,
    alpha: Number | Float[Tensor, "..."] = 1.5,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*rows K"]:
    """Alpha-entmax weights of each row of scores.

    Args:
        scores: any rows of scores; -inf gets no weight, a row of nothing else gives zeros.
        alpha: above 1, by at least 1e-6. A tensor broadcastable to scores with a last axis of 1
            gets a gradient (Correia et al., 2019), so that heads can learn how sparse to be.
        mask: True where a key may get weight, broadcastable to scores.

    >>> entmax(torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]))
    tensor([0.8146, 0.1621, 0.0233, 0.0000, 0.0000])
    """
    _check_alpha(alpha)
    seen = hide(scores, mask)
    if isinstance(alpha, Tensor):
        check_broadcast("alpha", alpha, (*scores.shape[:-1], 1), axes="the rows of scores")
    return sparse_rows(seen, alpha, solve=_solve).to(scores.dtype)


def entmax_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    alpha: Number | Float[Tensor, ""] | Float[Tensor, " H"] = 1.5,
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
    """Attend with alpha-entmax weights; `alpha` a number, or a tensor with one value a head.

    "triton" takes alpha up to 2 and does not look at the numbers in a tensor, as that would make
    the host wait for the device: a head with an alpha out of range gives NaN. So "auto" leaves
    tensors to PyTorch.
    """
    _check_kind(alpha)
    scores = Scores(q, k, mask, bias, causal, lengths, scale, cap=cap, sink=sink)
    check_values(k, v)
    check_dropout(dropout)
    chosen = choose(impl, triton_obstacle=obstacle(scores, v, alpha, impl))
    if chosen != "triton" or not isinstance(alpha, Tensor):
        _check_alpha(alpha)
    weigh = partial(sparse_rows, solve=reference.solve if chosen == "reference" else _solve)
    parameters: tuple[Tensor, ...] = ()
    if isinstance(alpha, Tensor):
        parameters = (_per_head(alpha, scores.shape[1]),)
    else:
        weigh = partial(weigh, alpha=alpha)
    if chosen == "triton":
        out = fused_values(scores, v, alpha, dropout=dropout)
    else:
        attend = weighted_values if chosen == "reference" else weighted_values_in_blocks
        out = attend(scores, weigh, v, *parameters, dropout=dropout)
    return Attended(out, scores, weigh, exponential=False, parameters=parameters)


def _solve(scores_XK: Tensor, alpha: Number | Tensor) -> Tensor:
    """By Newton's method up to alpha = 2, above which its steps may go too far."""
    if bool((alpha > 2).any() if isinstance(alpha, Tensor) else alpha > 2):
        return reference.solve(scores_XK, alpha)
    return solve(scores_XK, 1 / (alpha - 1))


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
