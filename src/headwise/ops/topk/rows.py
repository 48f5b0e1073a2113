"""Top-k rows: the definition, and exact attention for CPUs that gathers only the kept pairs.

Sums over the kept keys of a query (the output, the gradient of q) are `embedding_bag`s. Sums over
the queries that kept a key (the gradients of k and v) are too, once the pairs are sorted by key.
Saved for the backward pass are `keep` weights and key numbers per query, never Q x K.

Axes: R the kept keys of a query; X all queries, B·H·Q; N all keys, B·G·K; P all pairs, X·R.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout as drop
from torch.nn.functional import embedding_bag, pad
from torch.utils.checkpoint import checkpoint

from headwise.ops._impl import Number
from headwise.ops.rows import row_weights, softmax_rows
from headwise.ops.scores import Scores, may_hold_infinities, spread_groups

BLOCK_SCORES = 2**20  # 4 MB in float32; larger is no faster and makes ties cost more
BLOCK_VALUES = 2**19  # gathered values held at once in the backward pass, 2 MB


def topk_rows(scores_XK: Tensor, keep: int, ties: str, sink: bool = False) -> Tensor:
    """Apply softmax to the kept scores. The choice is a constant in the backward pass.

    Args:
        sink: Whether the last score is a sink's, which is kept in addition to the `keep` best.
    """
    keys_XK = scores_XK.detach()[..., : scores_XK.shape[-1] - int(sink)]
    kept_XK = pad(kept(keys_XK, min(keep, keys_XK.shape[-1]), ties), (0, int(sink)), value=True)
    return softmax_rows(scores_XK.masked_fill(~kept_XK, -math.inf))


def kept(scores_XK: Tensor, keep: int, ties: str) -> Tensor:
    """Mark the scores that rows keep."""
    if ties == "all":
        # not "at least", which would hide a score that is NaN
        return ~(scores_XK < scores_XK.topk(keep, dim=-1).values[..., -1:])
    order_XK = scores_XK.sort(dim=-1, descending=True, stable=True).indices
    nothing_XK = torch.zeros_like(scores_XK, dtype=torch.bool)
    return nothing_XK.scatter(-1, order_XK[..., :keep], 1)  # True cannot be traced


def selected_rows(scores_XK: Tensor, sink_X1: Tensor | None, keep: int) -> tuple[Tensor, Tensor]:
    """List the keys of the `keep` largest scores, -1 where masked, and their softmax."""
    score_XR, key_XR = _first_best(scores_XK, keep)
    weights_XR, _ = row_weights(score_XR, sink_X1, softmax_rows)
    return key_XR.masked_fill(score_XR == -math.inf, -1).int(), weights_XR


class _Choice(NamedTuple):
    """Keys that queries keep, and their scores."""

    key_BHQR: Tensor  # int32
    score_BHQR: Tensor  # -inf where the query sees fewer than R keys
    overfull: list[bool]  # per block: whether a query keeps more than R keys


def sparse_values_obstacle(scores: Scores, v: Tensor, keep: int) -> str | None:
    """Return why `sparse_values` cannot or should not run this call, or None."""
    batch, heads, n_queries, n_keys = scores.shape
    if scores.q.device.type != "cpu":
        return f"it gathers on CPUs only, and q is on {scores.q.device.type}"
    # Time forward + backward over that of the dense definition, float32, D = 64, 1 and 2 threads.
    # Calls of 2**18 scores and more: n_keys = 4 keep 1.1 to 1.6, 8 keep 1.1 to 1.5, 16 keep 0.8 to
    # 1.0, 64 keep 0.4 to 0.6. Calls of 2**17 and n_keys = 16 keep: 0.9 and 1.3; of 2**15: 1.4.
    if n_keys < 16 * keep:
        return f"keep={keep} of {n_keys} keys is not sparse enough to gain from gathering"
    if batch * heads * n_queries * n_keys < 2**18:
        return "the call is so small that the dense definition is faster"
    if scores.cap is not None or scores.sink is not None:
        return "it takes no cap and no sink"
    if scores.hides_keys and may_hold_infinities(scores.k, v):
        return "an infinite key or value would reach queries that may not attend it"
    if scores.bias is not None and scores.bias.requires_grad and torch.is_grad_enabled():
        return "the gradient of a bias is dense"
    if batch * heads * n_queries * keep >= 2**31:
        return "the kept pairs are numbered in 32 bits and there are more"
    return None


def sparse_values(scores: Scores, v: Tensor, *, keep: int, ties: str, dropout: Number) -> Tensor:
    """Sum the values of the kept keys of every query, (B, H, Q, E). Differentiable once.

    With ties="all" nothing bounds how many keys a query keeps, so a block of queries in which one
    keeps more than `keep` is computed by the dense definition, and recomputed for its gradient.
    """
    step = _block_size(scores)
    with torch.autocast("cpu", enabled=False):  # selection in bfloat16 would be another selection
        choice = _choose(scores, keep, ties, step)
        weights_BHQR = softmax_rows(choice.score_BHQR)
        out_BHQE: Tensor = _KeptPairs.apply(  # pyright: ignore[reportAssignmentType]
            scores.q, scores.k, v, choice.key_BHQR, weights_BHQR, dropout, scores.multiplier
        )
        if not any(choice.overfull):
            return out_BHQE
        blocks = list(out_BHQE.split(step, dim=2))
        for number, overfull in enumerate(choice.overfull):
            if overfull:
                rows = slice(number * step, (number + 1) * step)
                blocks[number] = _dense_block(scores, v, keep, dropout, rows)
        return torch.cat(blocks, dim=2)


def _block_size(scores: Scores) -> int:
    batch, heads, _, n_keys = scores.shape
    return max(1, BLOCK_SCORES // (batch * heads * n_keys))


@torch.no_grad()
def _choose(scores: Scores, keep: int, ties: str, step: int) -> _Choice:
    """Choose the best keys of every query, and mark blocks where `keep` of them are too few."""
    # converted once, instead of in every block
    q_BHQD, k_BGKD = scores.q.to(scores.dtype), scores.k.to(scores.dtype)
    scores = replace(scores, q=q_BHQD, k=spread_groups(k_BGKD, scores.shape[1]))
    # Allocated once: small tensors in between would stop blocks from reusing memory.
    key_whole = torch.empty(*scores.shape[:3], keep, dtype=torch.int32)
    score_whole = torch.empty(*scores.shape[:3], keep, dtype=scores.dtype)
    overfull: list[bool] = []
    for start in range(0, scores.shape[2], step):
        rows = slice(start, start + step)
        scores_BHQK = scores.rows(rows)
        score_BHQR, key_BHQR = _best(scores_BHQK, keep)
        last_BHQ = score_BHQR.amin(dim=-1)
        next_BHQ = scores_BHQK.scatter_(-1, key_BHQR, -math.inf).amax(dim=-1)
        tied = bool(((next_BHQ == last_BHQ) & (last_BHQ > -math.inf)).any())
        if tied and ties == "first":
            score_BHQR, key_BHQR = _first_best(scores.rows(rows), keep)
        elif tied:
            score_BHQR.fill_(-math.inf)  # the dense block replaces this one
        overfull.append(tied and ties == "all")
        key_whole[:, :, rows], score_whole[:, :, rows] = key_BHQR, score_BHQR
    return _Choice(key_whole, score_whole, overfull)


def _best(scores_XK: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Find the `keep` largest scores of each row and their keys, unsorted.

    `torch.topk` is three times slower where 64 keep > n_keys. There the groups of four keys with
    the largest maxima are found first: they hold the best keys.
    """
    n_keys = scores_XK.shape[-1]
    if not 16 * keep <= n_keys < 64 * keep:
        return scores_XK.topk(keep, dim=-1, sorted=False)
    padded_XK = pad(scores_XK, (0, -n_keys % 4), value=-math.inf) if n_keys % 4 else scores_XK
    groups = padded_XK.shape[-1] // 4
    group_X1R = padded_XK.unflatten(-1, (4, groups)).amax(dim=-2, keepdim=True).topk(keep).indices
    member_41 = torch.arange(0, 4 * groups, groups)[:, None]
    key_XK = (group_X1R + member_41).flatten(-2)
    score_XR, place_XR = padded_XK.gather(-1, key_XK).topk(keep, dim=-1, sorted=False)
    # padding is taken only in rows that see fewer than `keep` keys, with score -inf
    return score_XR, key_XK.gather(-1, place_XR).clamp(max=n_keys - 1)


def _first_best(scores_XK: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Find the `keep` largest scores of each row, sorted, and their keys; of ties the lowest."""
    score_XK, key_XK = scores_XK.sort(dim=-1, descending=True, stable=True)
    return score_XK[..., :keep], key_XK[..., :keep]


def _dense_block(scores: Scores, v: Tensor, keep: int, dropout: Number, rows: slice) -> Tensor:
    """Attend by the dense definition, which the backward pass computes again."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights_BHQK = topk_rows(replace(scores, q=q, k=k).rows(rows), keep, "all")
        v_BHKE = spread_groups(v, scores.shape[1]).to(weights_BHQK.dtype)
        return (drop(weights_BHQK, p=dropout) @ v_BHKE).to(v.dtype)

    out: Tensor = checkpoint(
        attend, scores.q, scores.k, v, use_reentrant=False, preserve_rng_state=dropout > 0
    )
    return out


class _KeptPairs(torch.autograd.Function):
    """Autograd function that sums values under the softmax of the kept scores."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_BHQR: Tensor,
        weights_BHQR: Tensor,
        dropout: Number,
        multiplier: Number,
    ) -> Tensor:
        key_XR = _number_keys(key_BHQR, k)
        weights_XR = weights_BHQR.flatten(0, 2)
        factor_XR = drop(torch.ones_like(weights_XR), p=dropout) if dropout else None
        dropped_XR = weights_XR if factor_XR is None else weights_XR * factor_XR
        v_NE = _as_table(v, weights_XR.dtype)
        out_XE = embedding_bag(key_XR, v_NE, per_sample_weights=dropped_XR, mode="sum")
        ctx.save_for_backward(q, k, v, key_XR, weights_XR, factor_XR)
        ctx.multiplier = multiplier
        return out_XE.view(*q.shape[:3], v.shape[3]).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, v, key_XR, weights_XR, factor_XR = ctx.saved_tensors
        need_q, need_k, need_v = ctx.needs_input_grad[:3]
        q_XD, k_ND, v_NE, grad_XE = (_as_table(x, weights_XR.dtype) for x in (q, k, v, grads[0]))
        dropped_XR = weights_XR if factor_XR is None else weights_XR * factor_XR
        grad_q = grad_k = grad_v = grad_scores_XR = None
        if need_q or need_k:
            grad_weights_XR = _products(grad_XE, v_NE, key_XR)
            mean_X1 = (dropped_XR * grad_weights_XR).sum(-1, keepdim=True)
            grad_scores_XR = (dropped_XR * grad_weights_XR - weights_XR * mean_X1) * ctx.multiplier
        if need_q:
            grad_q = embedding_bag(key_XR, k_ND, per_sample_weights=grad_scores_XR, mode="sum")
            grad_q = grad_q.view_as(q).to(q.dtype)
        if need_k or need_v:
            pairs = _sort_by_key(key_XR, len(k_ND))
            if grad_scores_XR is not None and need_k:
                grad_k = pairs.sum_by_key(q_XD, grad_scores_XR).view_as(k).to(k.dtype)
            if need_v:
                grad_v = pairs.sum_by_key(grad_XE, dropped_XR).view_as(v).to(v.dtype)
        return grad_q, grad_k, grad_v, None, None, None, None


def _number_keys(key_BHQR: Tensor, k: Tensor) -> Tensor:
    """Turn positions within each query's own keys into rows of the table of all keys, (X, R)."""
    batch, groups, n_keys = k.shape[:3]
    first_BG = torch.arange(0, batch * groups * n_keys, n_keys, dtype=torch.int32)
    first_BG = first_BG.view(batch, groups)
    return (key_BHQR + spread_groups(first_BG, key_BHQR.shape[1])[:, :, None, None]).flatten(0, 2)


def _as_table(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).reshape(-1, x.shape[-1])


def _products(grad_XE: Tensor, v_NE: Tensor, key_XR: Tensor) -> Tensor:
    """Compute grad_x . v_key for every pair, gathering the values of some queries at a time."""
    n_kept, width = key_XR.shape[1], v_NE.shape[1]
    step = max(1, BLOCK_VALUES // (n_kept * width))
    products_XR = grad_XE.new_empty(key_XR.shape)
    with torch.autocast("cpu", enabled=False):
        for start in range(0, len(key_XR), step):
            rows = slice(start, start + step)
            v_XRE = v_NE.index_select(0, key_XR[rows].flatten()).view(-1, n_kept, width)
            products_XR[rows] = torch.einsum("xre,xe->xr", v_XRE, grad_XE[rows])
    return products_XR


class _PairsByKey(NamedTuple):
    """Kept pairs, sorted by key."""

    pair_P: Tensor  # indices of the pairs
    query_P: Tensor  # their queries
    start_N: Tensor  # where each key's pairs begin

    def sum_by_key(self, rows_XD: Tensor, weights_XR: Tensor) -> Tensor:
        """Sum the weighted rows of the queries that kept each key, (N, D)."""
        weights_P = weights_XR.flatten()[self.pair_P]
        return embedding_bag(
            self.query_P, rows_XD, self.start_N, per_sample_weights=weights_P, mode="sum"
        )


def _sort_by_key(key_XR: Tensor, n_keys: int) -> _PairsByKey:
    key_P = key_XR.flatten()
    pair_P = key_P.argsort(stable=True)
    count_N = torch.bincount(key_P, minlength=n_keys)
    start_N = count_N.cumsum(0) - count_N
    return _PairsByKey(pair_P, (pair_P // key_XR.shape[1]).int(), start_N.int())
