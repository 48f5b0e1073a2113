"""The guidance loss: how far heads are from where they should look, never building Q x K.

    L_h = weight_h  sum_i w_i  sum_j (H_ij - P_ij)^2          H = softmax(scale q k^T)

(Deshpande & Narasimhan, 2020). It is computed from q and k, beside the attention itself, which may
stay with any backend; heads that are not guided cost nothing.

Two conventions are found. The paper: `Pattern`s as they are and reduction="sum". The code published
with it: `Pattern(..., normalised=False, edges="nothing")`, reduction="mean", and each pattern's
heads weighted by one over their number; also its weights come after dropout, ours before.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from headwise.ops._impl import Impl, Number, choose
from headwise.ops.guidance import blocked, reference
from headwise.ops.guidance.patterns import (
    FIRST,
    NEXT,
    PREVIOUS,
    Edges,
    GuidedHeads,
    Pattern,
    guided_heads,
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
]

Reduction = Literal["sum", "mean"]


class GuidedRows(NamedTuple):
    """What guided heads give for each query; N guided heads in the order of their indices."""

    loss: Float[Tensor, "B N Q"]  # sum over keys of (H - P)^2
    seen: Float[Tensor, "B N Q"]  # how many keys the query may see; 0 means loss 0


def guidance_loss(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    guided: GuidedHeads,
    *,
    key_sets: Bool[Tensor, "C B K"] | None = None,
    query_weights: Shaped[Tensor, "B Q"] | None = None,
    reduction: Reduction = "sum",
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    lengths: Int[Tensor, " B"] | None = None,
    scale: Number | None = None,
    cap: Number | None = None,
    sink: Float[Tensor, " H"] | None = None,
    impl: Impl = "auto",
) -> Float[Tensor, " N"]:
    """The loss of each guided head, its weight included: add `guidance_loss(...).sum()`.

    See `headwise.ops` for the arguments all ops share.

    Args:
        guided: which heads, and where they should look: `guided_heads({0: NEXT}, num_heads=12)`.
        key_sets: the sets that patterns name by number, such as where full stops are.
        query_weights: how much each query counts, or whether; with padded queries give this, as
            `lengths` and `mask` are about keys. All count alike unless given.
        reduction: "sum" over batch, queries and keys; or "mean" over all pairs of a query that
            counts and a key it sees.
        impl: "reference" builds the matrices, "torch" works in blocks, "triton" sweeps once.

    Of two keys that look the same each has weight 1/2; the first query should look at the second:

    >>> import torch
    >>> q = torch.zeros(1, 1, 1, 4)
    >>> k = torch.zeros(1, 1, 2, 4)
    >>> guidance_loss(q, k, guided_heads({0: NEXT}, num_heads=1))
    tensor([0.5000])
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}.")
    scores = Scores(q, k, mask, bias, causal, lengths, scale, cap=cap, sink=sink)
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
    """The same before anything is summed over queries, for a call such as `attended.scores`.

    Args:
        scores: a call; or several that differ in q and k alone, such as those of a model's layers.
            Their heads are then numbered on: head 1 of the second call of 12 heads is head 13.
        guided: which of all these heads.
        key_sets: as above.
        impl: as above.

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
    only = blocked.guided_only(calls, guided.heads)
    if chosen == "reference":
        loss_BNQ, seen_BNQ = reference.guidance_rows(only, guided.patterns, key_sets)
    else:
        loss_BNQ, seen_BNQ = blocked.guidance_rows(only, guided.plan, key_sets)
    return GuidedRows(loss_BNQ, seen_BNQ.to(loss_BNQ.dtype))


def _check_alike(calls: list[Scores]) -> None:
    if not calls:
        raise ValueError("There is no attention call to guide: scores is empty.")
    kinds = [
        (call.shape, call.k.shape, call.q.dtype, call.causal, call.scale, call.first, call.cap)
        for call in calls
    ]
    same = all(call.mask is calls[0].mask and call.bias is calls[0].bias for call in calls)
    same = same and all(call.sink is calls[0].sink for call in calls)
    same = same and all(call.lengths is calls[0].lengths for call in calls)
    if not same or any(kind != kinds[0] for kind in kinds):
        raise ValueError(
            "Calls that are guided at once must differ in q and k alone; these differ in shape, "
            "dtype, mask, bias, lengths, scale, cap, sink or position. Guide them one by one."
        )


def _check(calls: list[Scores], guided: GuidedHeads, key_sets: Tensor | None) -> None:
    scores = calls[0]
    batch, _, _, n_keys = scores.shape
    heads = len(calls) * scores.shape[1]
    if scores.fixed is not None:
        raise ValueError("Fixed scores cannot be guided: they do not depend on q and k.")
    if guided.numbers.shape != (heads,):
        raise ValueError(
            f"guided is made for {guided.numbers.shape[0]} heads, but q has {heads}. "
            f"Use guided_heads(..., num_heads={heads})."
        )
    if guided.plan.device != scores.q.device:
        raise ValueError(
            f"guided is on {guided.plan.device} and q on {scores.q.device}. "
            "Use guided.to(q.device)."
        )
    named = [pattern.key_set for pattern in guided.patterns if pattern.key_set is not None]
    n_sets = max([-1, *named]) + 1
    if key_sets is None and named:
        raise ValueError(f"The patterns name {n_sets} sets of keys, but key_sets is not given.")
    if key_sets is not None and (
        key_sets.dim() != 3 or key_sets.shape[0] < n_sets or key_sets.shape[1:] != (batch, n_keys)
    ):
        raise ValueError(
            f"key_sets must be (sets, batch, keys) = ({n_sets}, {batch}, {n_keys}), "
            f"with more sets if you like, got {tuple(key_sets.shape)}."
        )


def _check_query_weights(query_weights: Tensor, scores: Scores) -> None:
    wanted = (scores.shape[0], scores.shape[2])
    if query_weights.shape != wanted:
        raise ValueError(
            f"query_weights must be (batch, queries) = {wanted}, got {tuple(query_weights.shape)}."
        )
