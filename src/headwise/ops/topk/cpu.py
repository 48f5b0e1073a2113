"""Exact top-k attention for CPUs: gather only the kept pairs, forward and backward.

Selection is `torch.topk` on blocks of scores. Sums of values, and of keys in the gradient of q, are
`embedding_bag`s over the kept keys of each query. The gradients of k and v need the queries that
kept each key, so the pairs are sorted by key once. Per query, `keep` scores and key numbers are
remembered, and nothing else of size Q·K.

Axis R: the kept keys of a query, `keep` of them. Axis P: all kept pairs. Axis N: all keys, B·G·K.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout as drop
from torch.nn.functional import embedding_bag

from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Scores, spread_groups

BLOCK_SCORES = 2**20  # 4 MB in float32
BLOCK_GATHER = 2**19  # elements of gathered values held at once in the backward pass


class _Choice(NamedTuple):
    score_BHQR: Tensor
    key_BHQR: Tensor  # int32
    blocks_with_ties: list[slice]  # where a row keeps more than R keys


def sparse_values_obstacle(scores: Scores, keep: int) -> str | None:
    """Why `sparse_values` cannot or should not run this call, or None."""
    n_keys = scores.shape[3]
    if scores.q.device.type != "cpu":
        return "it is written for CPUs"
    if keep >= n_keys:
        return f"{n_keys} keys leave nothing to choose for keep={keep}"
    if scores.bias is not None and scores.bias.requires_grad:
        return "the gradient of a bias is dense"
    return None


def sparse_values(scores: Scores, v: Tensor, *, keep: int, ties: str, dropout: float) -> Tensor:
    """Sum the values of the kept keys of every query; (B, H, Q, E). Differentiable once.

    With ties="all", blocks of queries in which some row keeps more than `keep` keys follow the
    dense definition, since nothing bounds how many such a row keeps.
    """
    choice = _choose(scores, keep, ties)
    out = _Sparse.apply(scores, scores.q, scores.k, v, choice.key_BHQR, choice.score_BHQR, dropout)
    return out


def _choose(scores: Scores, keep: int, ties: str) -> _Choice:
    """The `keep` best keys of every query and their scores."""
    with torch.no_grad():
        k_BHKD = spread_groups(scores.k, scores.shape[1]).to(scores.dtype)
        scores = replace(scores, q=scores.q.to(scores.dtype), k=k_BHKD)
        kept, keys, tied = [], [], []
        for rows in _blocks(scores):
            scores_BHQK = scores.rows(rows)
            score_BHQR, key_BHQR = scores_BHQK.topk(keep, dim=-1, sorted=False)
            last_BHQ = score_BHQR.amin(dim=-1)
            # what is left after taking the best out: cheaper than asking for keep + 1
            next_BHQ = scores_BHQK.scatter_(-1, key_BHQR, -math.inf).amax(dim=-1)
            tied_BHQ = (next_BHQ == last_BHQ) & (last_BHQ > -math.inf)
            if tied_BHQ.any():
                tied.append(rows)
            kept.append(score_BHQR)
            keys.append(key_BHQR.int())
    return _Choice(torch.cat(kept, dim=2), torch.cat(keys, dim=2), tied)


def _blocks(scores):
    batch, heads, n_queries, n_keys = scores.shape
    step = max(1, BLOCK_SCORES // max(1, batch * heads * n_keys))
    for start in range(0, n_queries, step):
        yield slice(start, min(start + step, n_queries))


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, q, k, v, key_BHQR, score_BHQR, dropout):
        dtype = scores.dtype
        B, H, Q, K = scores.shape
        G = k.shape[1]
        w = softmax_rows(score_BHQR)
        group = torch.arange(B * G, dtype=torch.int32).view(B, G).repeat_interleave(H // G, 1)
        flat = (key_BHQR + (group * K)[:, :, None, None]).flatten(0, 2)
        kept = None
        wd = w
        if dropout:
            kept = drop(torch.ones_like(w), dropout)
            wd = w * kept
        vN = v.to(dtype).reshape(B * G * K, -1)
        out = embedding_bag(flat, vN, per_sample_weights=wd.flatten(0, 2), mode="sum")
        ctx.save_for_backward(q, k, v, flat, w.flatten(0, 2), kept)
        ctx.mult = scores.multiplier
        ctx.H = H
        return out.view(B, H, Q, -1).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, flat, w, kept = ctx.saved_tensors
        dt = w.dtype
        B, H, Q, D = q.shape
        N = k.shape[:3].numel()
        E = v.shape[3]
        R = flat.shape[1]
        gX = g.to(dt).reshape(-1, E)
        vN = v.to(dt).reshape(N, E)
        kN = k.to(dt).reshape(N, D)
        qX = q.to(dt).reshape(-1, D)
        dw = torch.empty_like(w)
        step = max(1, BLOCK_GATHER // (R * E))
        for a in range(0, len(w), step):
            f = flat[a : a + step]
            dw[a : a + step] = (
                vN.index_select(0, f.reshape(-1)).view(-1, R, E) @ gX[a : a + step, :, None]
            )[..., 0]
        ds = w * (dw - (w * dw).sum(-1, keepdim=True)) * ctx.mult
        dq = embedding_bag(flat, kN, per_sample_weights=ds, mode="sum").view_as(q)
        fp = flat.flatten()
        order = fp.argsort(stable=True)
        cnt = torch.bincount(fp, minlength=N)
        off = (cnt.cumsum(0) - cnt).int()
        row = (order // R).int()
        dk = embedding_bag(
            row, qX, off, per_sample_weights=ds.flatten()[order], mode="sum"
        ).view_as(k)
        dv = embedding_bag(row, gX, off, per_sample_weights=w.flatten()[order], mode="sum").view_as(
            v
        )
        return None, dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None, None
