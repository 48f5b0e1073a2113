"""The guidance loss: squared distance of attention weights from patterns, without Q x K.

    L_h = weight_h  sum_i w_i  sum_j (H_ij - P_ij)^2          H = softmax(scale q k^T)

(Deshpande & Narasimhan, 2020). It is computed from q and k, separately from the attention itself,
which may use any backend; heads that are not guided cost nothing.

There are two conventions. The paper: default `Pattern`s and reduction="sum". The code published
with it: `Pattern(..., normalised=False, edges="nothing")`, reduction="mean", and each pattern's
heads weighted by one over their number; its weights come after dropout, ours before.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Unpack, get_args

from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from headwise.ops._impl import Impl, choose
from headwise.ops.attention import ScoreOptions, scores_of, shares_options
from headwise.ops.guidance.rows import (
    FIRST,
    NEXT,
    PREVIOUS,
    Edges,
    GuidedHeads,
    Pattern,
    blocked_rows,
    defined_rows,
    guided_heads,
    guided_only,
    targets,
)
from headwise.ops.scores import Scores, attention_obstacle

__all__ = [
    "FIRST",
    "NEXT",
    "PREVIOUS",
    "Edges",
    "GuidedHeads",
    "GuidedRows",
    "Pattern",
    "Reduction",
    "guidance_loss",
    "guidance_rows",
    "guided_heads",
    "targets",
]

Reduction = Literal["sum", "mean"]


class GuidedRows(NamedTuple):
    """Loss and visible keys of each query; N guided heads in the order of their indices."""

    loss: Float[Tensor, "B N Q"]  # sum over keys of (H - P)^2
    seen: Float[Tensor, "B N Q"]  # number of keys the query may see; 0 means loss 0


@shares_options
def guidance_loss(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    guided: GuidedHeads,
    *,
    key_sets: Bool[Tensor, "C B K"] | None = None,
    query_weights: Shaped[Tensor, "B Q"] | None = None,
    reduction: Reduction = "sum",
    impl: Impl = "auto",
    **options: Unpack[ScoreOptions],
) -> Float[Tensor, " N"]:
    """Compute the loss of each guided head, its weight included: add `guidance_loss(...).sum()`.

    Args:
        guided: Heads and their patterns: `guided_heads({0: NEXT}, num_heads=12)`.
        key_sets: Sets of keys that patterns name by number, such as all full stops.
        query_weights: Weight of each query, 1 by default. Give it if queries are padded, because
            `lengths` and `mask` concern keys.
        reduction: "sum" over batch, queries and keys; or "mean" over all pairs of a query that
            counts and a key it sees.
        impl: "reference" (whole matrices), "torch" (blocks), "triton" (one sweep) or "auto".

    Two equal keys have weight 1/2 each; the first query should attend to the second:

    >>> import torch
    >>> q = torch.zeros(1, 1, 1, 4)
    >>> k = torch.zeros(1, 1, 2, 4)
    >>> guidance_loss(q, k, guided_heads({0: NEXT}, num_heads=1))
    tensor([0.5000])
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}.")
    scores = scores_of(q, k, options)
    loss_BNQ, seen_BNQ = guidance_rows(scores, guided, key_sets=key_sets, impl=impl)
    if query_weights is not None:
        _check_query_weights(query_weights, scores)
        weight_B1Q = query_weights[:, None].to(loss_BNQ.dtype)
        loss_BNQ, seen_BNQ = loss_BNQ * weight_B1Q, seen_BNQ * weight_B1Q
    loss_N = loss_BNQ.sum(dim=(0, 2))
    if reduction == "mean":
        loss_N = loss_N / seen_BNQ.sum(dim=(0, 2)).clamp(min=1)
    return loss_N * guided.weights.to(loss_N.dtype)


def guidance_rows(
    scores: Scores | Sequence[Scores],
    guided: GuidedHeads,
    *,
    key_sets: Bool[Tensor, "C B K"] | None = None,
    impl: Impl = "auto",
) -> GuidedRows:
    """Compute the loss of each query and guided head, for a call such as `attended.scores`.

    Args:
        scores: A call; or several that differ in q and k alone, such as the layers of a model.
            Heads are then numbered across calls: with 12 heads per call, head 1 of the second call
            is head 13.
        guided: Guided heads among all of these.
        key_sets: Sets of keys that patterns name by number.
        impl: "reference" (whole matrices), "torch" (blocks), "triton" (one sweep) or "auto".

    >>> import torch
    >>> layer = Scores(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 2, 4))
    >>> guidance_rows([layer, layer], guided_heads({0: NEXT, 3: FIRST}, num_heads=4)).loss
    tensor([[[0.5000],
             [0.5000]]])
    """
    calls = [scores] if isinstance(scores, Scores) else list(scores)
    _check_alike(calls)
    _check(calls, guided, key_sets)
    chosen = choose(impl, triton_obstacle=attention_obstacle(calls[0], impl))
    if chosen == "triton":
        from headwise.ops.guidance import triton  # lazy: importing headwise never imports Triton

        rows = triton.guidance_rows(calls, guided.plan, guided.numbers, key_sets)
        return GuidedRows(*rows)
    only = guided_only(calls, guided.heads)
    if chosen == "reference":
        loss_BNQ, seen_BNQ = defined_rows(only, guided.patterns, key_sets)
    else:
        loss_BNQ, seen_BNQ = blocked_rows(only, guided.plan, key_sets)
    return GuidedRows(loss_BNQ, seen_BNQ.to(loss_BNQ.dtype))


def _check_alike(calls: list[Scores]) -> None:
    if not calls:
        raise ValueError("scores must hold at least one attention call to guide, got none.")
    kinds = [
        (call.shape, call.k.shape, call.q.dtype, call.causal, call.scale, call.first, call.cap)
        for call in calls
    ]
    same = all(call.mask is calls[0].mask and call.bias is calls[0].bias for call in calls)
    same = same and all(call.sink is calls[0].sink for call in calls)
    same = same and all(call.lengths is calls[0].lengths for call in calls)
    if not same or any(kind != kinds[0] for kind in kinds):
        raise ValueError(
            "Calls that are guided together must differ in q and k alone, got calls that differ in "
            "shape, dtype, mask, bias, lengths, scale, cap, sink or position. Guide them one by "
            "one."
        )


def _check(calls: list[Scores], guided: GuidedHeads, key_sets: Tensor | None) -> None:
    scores = calls[0]
    batch, _, _, n_keys = scores.shape
    heads = len(calls) * scores.shape[1]
    if scores.fixed is not None:
        raise ValueError(
            "Guided scores must depend on q and k, got fixed scores; leave this call out."
        )
    if guided.numbers.shape != (heads,):
        raise ValueError(
            f"guided must be made for the {heads} heads of q, got {guided.numbers.shape[0]}. "
            f"Use guided_heads(..., num_heads={heads})."
        )
    if guided.plan.device != scores.q.device:
        raise ValueError(
            f"guided must be on the device of q, {scores.q.device}, got {guided.plan.device}. "
            "Use guided.to(q.device)."
        )
    named = [pattern.key_set for pattern in guided.patterns if pattern.key_set is not None]
    n_sets = max([-1, *named]) + 1
    if key_sets is None and named:
        raise ValueError(f"key_sets must hold the {n_sets} sets that the patterns name, got None.")
    if key_sets is not None and (
        key_sets.dim() != 3 or key_sets.shape[0] < n_sets or key_sets.shape[1:] != (batch, n_keys)
    ):
        raise ValueError(
            f"key_sets must be (sets, batch, keys) = ({n_sets} or more, {batch}, {n_keys}), "
            f"got {tuple(key_sets.shape)}."
        )


def _check_query_weights(query_weights: Tensor, scores: Scores) -> None:
    wanted = (scores.shape[0], scores.shape[2])
    if query_weights.shape != wanted:
        raise ValueError(
            f"query_weights must be (batch, queries) = {wanted}, got {tuple(query_weights.shape)}."
        )
