"""Top-k attention: softmax over the `keep` best keys of each query (Zhao et al., 2019, Eq. 2-4).

    t_i = the keep-th largest visible score of row i
    w_ij = exp(s_ij) / sum over {s_il >= t_i} of exp(s_il)   if s_ij >= t_i, else 0

Masks come before the selection. A sink is always kept, and not counted among the `keep`. A row with
fewer than `keep` visible keys is ordinary softmax.
"""

from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, Number, choose
from headwise.ops.attended import Attended
from headwise.ops.blocks import in_blocks
from headwise.ops.checks import check_dropout, check_values, check_whole_number
from headwise.ops.rows import hide, weighted_values, weighted_values_in_blocks
from headwise.ops.scores import Scores, attention_obstacle
from headwise.ops.topk import reference
from headwise.ops.topk.cpu import sparse_values, sparse_values_obstacle

__all__ = ["Selected", "Ties", "topk", "topk_attention", "topk_selected"]

Ties = Literal["all", "first"]
MOST_KEPT = 64  # by the Triton kernels


class Selected(NamedTuple):
    """The keys that queries keep, the heaviest first; R = keep, or all keys where fewer."""

    keys: Int[Tensor, "B H Q R"]  # -1 where a query sees fewer
    weights: Float[Tensor, "B H Q R"]  # 0 there


def topk(
    scores: Float[Tensor, "*rows K"],
    *,
    keep: int = 8,
    ties: Ties = "all",
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*rows K"]:
    """Weights of the `keep` largest scores of each row; the others are exactly 0.

    Args:
        scores: any rows of scores; -inf is never kept.
        keep: how many keys a row keeps, at least 1; all of them when there are fewer.
        ties: "all" keeps every score equal to the keep-th (the paper's rule, so a row may keep
            more); "first" keeps exactly `keep`, of equal scores the lowest index.
        mask: True where a key may be kept, broadcastable to scores.

    >>> topk(torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]), keep=2)
    tensor([0.7311, 0.2689, 0.0000, 0.0000, 0.0000])
    """
    _check(keep, ties)
    return reference.topk(hide(scores, mask), keep, ties).to(scores.dtype)


def topk_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    keep: int = 8,
    ties: Ties = "all",
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
    """Attend to the `keep` best keys of each query. `keep` and `ties` as in `topk`.

    A sink is always kept, and is not counted among the `keep`.

    "torch" gathers only the kept values on a CPU and works in blocks elsewhere. "triton" is
    differentiable once; for the same gradients at every run, also of long rows, call
    torch.use_deterministic_algorithms(True).
    """
    _check(keep, ties)
    scores = Scores(q, k, mask, bias, causal, lengths, scale, cap=cap, sink=sink)
    check_values(k, v)
    check_dropout(dropout)
    weigh = partial(reference.topk, keep=keep, ties=ties, sink=sink is not None)
    chosen = choose(impl, triton_obstacle=_triton_obstacle(scores, keep, impl, v.shape[3]))
    if chosen == "triton":
        from headwise.ops.topk import triton  # lazy: importing headwise never imports Triton

        out = triton.topk_values(scores, v, keep=keep, ties=ties, dropout=dropout)
    elif chosen == "reference":
        out = weighted_values(scores, weigh, v, dropout=dropout)
    elif sparse_values_obstacle(scores, v, keep):
        out = weighted_values_in_blocks(scores, weigh, v, dropout=dropout)
    else:
        out = sparse_values(scores, v, keep=keep, ties=ties, dropout=dropout)
    return Attended(out, scores, weigh)


@torch.no_grad()
def topk_selected(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    *,
    keep: int = 8,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    lengths: Int[Tensor, " B"] | None = None,
    scale: Number | None = None,
    cap: Number | None = None,
    sink: Float[Tensor, " H"] | None = None,
    impl: Impl = "auto",
) -> Selected:
    """What `topk_attention(..., ties="first")` attends to: the attention map in O(Q keep) memory.

    Arguments as there. Weights are those before dropout, and carry no gradient.

    >>> k = torch.tensor([0.0, 3.0, 1.0]).view(1, 1, 3, 1)
    >>> keys, weights = topk_selected(torch.ones(1, 1, 1, 1), k, keep=2)
    >>> keys.tolist(), weights[0, 0, 0]
    ([[[[1, 2]]]], tensor([0.8808, 0.1192]))
    """
    _check(keep, "first")
    scores = Scores(q, k, mask, bias, causal, lengths, scale, cap=cap, sink=sink)
    obstacle = _triton_obstacle(scores, keep, impl)
    if scores.multiplier <= 0:
        obstacle = f"its kernels list keys by unscaled scores, and the scale is {scores.multiplier}"
    if choose(impl, triton_obstacle=obstacle) == "triton":
        from headwise.ops.topk import triton  # lazy: importing headwise never imports Triton

        return Selected(*triton.topk_selected(scores, keep=keep))
    parts = [scores.all_heads()] if impl == "reference" else list(scores.parts())
    compute = partial(reference.selected, keep=min(keep, scores.shape[3]))
    return Selected(
        *in_blocks(
            lambda block: compute(block.scores.rows(), block.scores.sink_column()), scores, parts
        )
    )


def _triton_obstacle(scores: Scores, keep: int, impl: Impl, value_width: int = 0) -> str | None:
    """Why the Triton kernels cannot run this call, or None."""
    if keep > MOST_KEPT:
        return f"its kernels keep at most {MOST_KEPT} keys a query, and keep is {keep}"
    return attention_obstacle(scores, impl, value_width)


def _check(keep: int, ties: Ties) -> None:
    check_whole_number("keep", keep)
    if keep < 1:
        raise ValueError(f"keep must be at least 1 key a query, got {keep}.")
    if ties not in get_args(Ties):
        raise ValueError(f"ties must be 'all' or 'first', got {ties!r}.")
