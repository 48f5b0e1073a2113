"""Statistics of rows of weights, in few passes over memory, with their gradient written out."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.ops.blocks import Block
from headwise.ops.rows import Weigh, weigh_rows, weights_of

CHUNK_KEYS = 128  # a row's largest weight is looked for in chunks, then in the chunk that has it


class Rows(NamedTuple):
    """Statistics of the weights over keys, and the sink's weight; each (B, H, q)."""

    lse: Tensor
    peak: Tensor
    peak_key: Tensor
    entropy: Tensor
    sum_squares: Tensor
    sink_weight: Tensor


def row_statistics(block: Block, *, weigh: Weigh) -> Rows:
    """All statistics of a part. Where weights are not exponential, lse means nothing."""
    scores_BHQK = block.scores.up_to(block.scores.reach()).rows()
    sink_BHQ1 = block.scores.sink_column()
    weights_BHQK, sink_weight_BHQ = weigh_rows(scores_BHQK, sink_BHQ1, weigh, *block.parameters)
    peak_BHQ, peak_key_BHQ, entropy_BHQ, sum_squares_BHQ = _Reduced.apply(
        weights_BHQK, sink_BHQ1 is None
    )
    top_score_BHQ, top_BHQ = scores_BHQK.gather(-1, peak_key_BHQ[..., None])[..., 0], peak_BHQ
    if sink_BHQ1 is not None and sink_weight_BHQ is not None:
        above_BHQ = sink_weight_BHQ > peak_BHQ
        top_score_BHQ = torch.where(above_BHQ, sink_BHQ1[..., 0], top_score_BHQ)
        top_BHQ = torch.where(above_BHQ, sink_weight_BHQ, peak_BHQ)
    empty_BHQ = top_BHQ == 0
    lse_BHQ = top_score_BHQ - top_BHQ.masked_fill(empty_BHQ, 1).log()
    return Rows(
        lse=lse_BHQ.masked_fill(empty_BHQ, -math.inf),
        peak=peak_BHQ,
        peak_key=peak_key_BHQ.masked_fill(peak_BHQ == 0, -1),
        entropy=entropy_BHQ,
        sum_squares=sum_squares_BHQ,
        sink_weight=torch.zeros_like(peak_BHQ) if sink_weight_BHQ is None else sink_weight_BHQ,
    )


def mass_on(block: Block, *, weigh: Weigh, keys: Tensor) -> tuple[Tensor]:
    """Weight on the keys where `keys`, broadcastable to (B, H, Q, K), is True."""
    n_keys = block.scores.reach()
    weights_BHQK = weights_of(block.scores.up_to(n_keys), weigh, *block.parameters)
    chosen = block.part.of(keys)[..., :n_keys].to(weights_BHQK.dtype)
    return (torch.linalg.vecdot(weights_BHQK, chosen),)


def mass_at(block: Block, *, weigh: Weigh, offset: int) -> tuple[Tensor]:
    """Weight on the key at the query's position + offset; 0 where there is none."""
    n_keys = block.scores.reach()
    weights_BHQK = weights_of(block.scores.up_to(n_keys), weigh, *block.parameters)
    place_Q1 = block.scores.query_position() + offset
    there_Q = ((place_Q1 >= 0) & (place_Q1 < n_keys))[:, 0]
    place_BHQ1 = place_Q1.clamp(0, n_keys - 1).expand(*weights_BHQK.shape[:3], 1)
    return (weights_BHQK.gather(-1, place_BHQ1)[..., 0].masked_fill(~there_Q, 0),)


class _Reduced(torch.autograd.Function):
    """weights -> peak, peak_key, entropy, sum_squares."""

    @staticmethod
    def forward(ctx: Any, weights_BHQK: Tensor, sum_to_one: bool) -> tuple[Tensor, ...]:
        key_BHQ1 = _first_peak(weights_BHQK)
        log_BHQK = _log(weights_BHQK)
        peak_key_BHQ = key_BHQ1[..., 0]
        ctx.sum_to_one = sum_to_one
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(peak_key_BHQ)
        ctx.save_for_backward(weights_BHQK, log_BHQK, key_BHQ1)
        return (
            weights_BHQK.gather(-1, key_BHQ1)[..., 0],
            peak_key_BHQ,
            -torch.linalg.vecdot(weights_BHQK, log_BHQK),
            torch.linalg.vector_norm(weights_BHQK, dim=-1).square_(),
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None]:
        weights_BHQK, log_BHQK, key_BHQ1 = ctx.saved_tensors
        on_peak_BHQ, _, on_entropy_BHQ, on_squares_BHQ = grads
        if torch.is_grad_enabled():  # somebody will differentiate this gradient
            log_BHQK = _log(weights_BHQK)
        if on_entropy_BHQ is None:
            grad_BHQK = torch.zeros_like(weights_BHQK)
        else:
            # -log w - 1, where the 1 may go if rows of weights sum to one however scores change
            grad_BHQK = (log_BHQK if ctx.sum_to_one else log_BHQK + 1) * -on_entropy_BHQ[..., None]
        if on_squares_BHQ is not None:
            grad_BHQK.addcmul_(weights_BHQK, 2 * on_squares_BHQ[..., None])
        if on_peak_BHQ is not None:
            grad_BHQK.scatter_add_(-1, key_BHQ1, on_peak_BHQ[..., None])
        return grad_BHQK, None


def _log(weights_BHQK: Tensor) -> Tensor:
    """The log of 0 counts as that of a number so small that 0 times it is 0."""
    return weights_BHQK.clamp(min=torch.finfo(weights_BHQK.dtype).tiny).log_()


def _first_peak(weights_BHQK: Tensor) -> Tensor:
    """The first key with the largest weight, (B, H, q, 1)."""
    n_keys = weights_BHQK.shape[-1]
    if n_keys < 4 * CHUNK_KEYS:
        return weights_BHQK.argmax(dim=-1, keepdim=True)
    whole = n_keys - n_keys % CHUNK_KEYS
    highest = [weights_BHQK[..., :whole].unflatten(-1, (-1, CHUNK_KEYS)).amax(dim=-1)]
    if whole < n_keys:
        highest.append(weights_BHQK[..., whole:].amax(dim=-1, keepdim=True))
    start_BHQ1 = torch.cat(highest, dim=-1).argmax(dim=-1, keepdim=True) * CHUNK_KEYS
    # The last chunk may be short: look at as many keys that end with it. None before is as high.
    start_BHQ1 = start_BHQ1.clamp(max=n_keys - CHUNK_KEYS)
    key_BHQR = start_BHQ1 + torch.arange(CHUNK_KEYS, device=start_BHQ1.device)
    return start_BHQ1 + weights_BHQK.gather(-1, key_BHQR).argmax(dim=-1, keepdim=True)
