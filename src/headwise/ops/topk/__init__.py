"""Top-k attention: softmax over the `keep` best keys of each query (Zhao et al., 2019, Eq. 2-4).

    t_i = the keep-th largest visible score of row i
    w_ij = exp(s_ij) / sum over {s_il >= t_i} of exp(s_il)   if s_ij >= t_i, else 0

Masks come before the selection. A sink is always kept, and not counted among the `keep`. A row with
fewer than `keep` visible keys is ordinary softmax.
"""

from functools import partial
from typing import Literal, NamedTuple, Unpack, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, choose
from headwise.ops.attended import Attended
from headwise.ops.attention import (
    AttentionCall,
    AttentionOptions,
    ScoreOptions,
    scores_of,
    shares_options,
)
from headwise.ops.checks import check_whole_number
from headwise.ops.rows import in_blocks, masked_scores
from headwise.ops.scores import Scores, attention_obstacle
from headwise.ops.topk.rows import (
    selected_rows,
    sparse_values,
    sparse_values_obstacle,
    topk_rows,
)

__all__ = ["Selected", "Ties", "topk", "topk_attention", "topk_selected"]

Ties = Literal["all", "first"]
MOST_KEPT = 64  # by the Triton kernels


class Selected(NamedTuple):
    """Keys that queries keep, the largest weight first; R = keep, or all keys if fewer."""

    keys: Int[Tensor, "B H Q R"]  # -1 where a query sees fewer
    weights: Float[Tensor, "B H Q R"]  # 0 there


def topk(
    scores: Float[Tensor, "*rows K"],
    *,
    keep: int = 8,
    ties: Ties = "all",
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*rows K"]:
    """Apply softmax to the `keep` largest scores of each row; other weights are exactly 0.

    Args:
        scores: Any rows of scores; -inf is never kept.
        keep: Keys kept per row, at least 1; all of them if there are fewer.
        ties: "all" keeps every score equal to the keep-th (the paper's rule, so a row may keep
            more); "first" keeps exactly `keep`, of equal scores the lowest index.
        mask: True where a key may be kept, broadcastable to scores.

    >>> topk(torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]), keep=2)
    tensor([0.7311, 0.2689, 0.0000, 0.0000, 0.0000])
    """
    _check(keep, ties)
    return topk_rows(masked_scores(scores, mask), keep, ties).to(scores.dtype)


@shares_options
def topk_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    keep: int = 8,
    ties: Ties = "all",
    **options: Unpack[AttentionOptions],
) -> Attended:
    """Attend to the `keep` best keys of each query.

    A sink is always kept, and is not counted among the `keep`. "torch" gathers only the kept values
    on a CPU, and works in blocks of queries elsewhere. "triton" is differentiable once. Its
    gradients of long rows repeat bit by bit after torch.use_deterministic_algorithms(True).

    Args:
        keep: Keys kept per query, at least 1; all of them if there are fewer.
        ties: "all" keeps every score equal to the keep-th, so a query may keep more; "first" keeps
            exactly `keep`, of equal scores the lowest index.
    """
    _check(keep, ties)
    call = AttentionCall.of(q, k, v, options)
    scores, dropout = call.scores, call.dropout
    rows = partial(topk_rows, keep=keep, ties=ties, sink=scores.sink is not None)
    obstacle = _triton_obstacle(scores, keep, call.impl, v.shape[3])
    chosen = call.choose(triton_obstacle=obstacle)
    if chosen == "triton":
        from headwise.ops.topk import triton  # lazy: importing headwise never imports Triton

        out = triton.topk_values(scores, v, keep=keep, ties=ties, dropout=dropout)
    elif chosen == "torch" and sparse_values_obstacle(scores, v, keep) is None:
        out = sparse_values(scores, v, keep=keep, ties=ties, dropout=dropout)
    else:
        out = call.sum_values(rows, chosen)
    return Attended(out, scores, rows)


@torch.no_grad()
@shares_options
def topk_selected(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    *,
    keep: int = 8,
    impl: Impl = "auto",
    **options: Unpack[ScoreOptions],
) -> Selected:
    """List the keys and weights of `topk_attention(..., ties="first")` in O(Q keep) memory.

    Weights are those before dropout, and carry no gradient.

    Args:
        keep: Keys listed per query, at least 1; all of them if there are fewer.
        impl: "reference" (the whole matrix), "torch" (blocks of queries), "triton" or "auto".

    >>> k = torch.tensor([0.0, 3.0, 1.0]).view(1, 1, 3, 1)
    >>> keys, weights = topk_selected(torch.ones(1, 1, 1, 1), k, keep=2)
    >>> keys.tolist(), weights[0, 0, 0]
    ([[[[1, 2]]]], tensor([0.8808, 0.1192]))
    """
    _check(keep, "first")
    scores = scores_of(q, k, options)
    obstacle = _triton_obstacle(scores, keep, impl)
    if scores.multiplier <= 0:
        obstacle = f"its kernels list keys by unscaled scores, and the scale is {scores.multiplier}"
    if choose(impl, triton_obstacle=obstacle) == "triton":
        from headwise.ops.topk import triton  # lazy: importing headwise never imports Triton

        return Selected(*triton.topk_selected(scores, keep=keep))
    parts = [scores.all_heads()] if impl == "reference" else list(scores.parts())
    compute = partial(selected_rows, keep=min(keep, scores.shape[3]))
    return Selected(
        *in_blocks(
            lambda block: compute(block.scores.rows(), block.scores.sink_column()), scores, parts
        )
    )


def _triton_obstacle(scores: Scores, keep: int, impl: Impl, value_width: int = 0) -> str | None:
    """Return why the Triton kernels cannot run this call, or None."""
    if keep > MOST_KEPT:
        return f"its kernels keep at most {MOST_KEPT} keys per query, and keep is {keep}"
    return attention_obstacle(scores, impl, value_width)


def _check(keep: int, ties: Ties) -> None:
    check_whole_number("keep", keep)
    if keep < 1:
        raise ValueError(f"keep must be at least 1 key per query, got {keep}.")
    if ties not in get_args(Ties):
        raise ValueError(f"ties must be 'all' or 'first', got {ties!r}.")
