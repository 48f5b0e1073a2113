"""Statistics of attention weights, in blocks of queries or in one sweep, never Q x K.

w = softmax(scores), or the weights of another op
lse = log sum exp(scores)    peak = max w         peak_key = argmax w
entropy = -sum w log w       sum_squares = sum w^2
mass_at = w of the key at the query's position + offset      mass_on = sum of w over chosen keys
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, choose
from headwise.ops.checks import check_chosen_keys, check_whole_number
from headwise.ops.rows import Block, RowFunction, in_blocks, row_weights, softmax_rows, weights_of
from headwise.ops.scores import Scores, attention_obstacle

__all__ = [
    "Rows",
    "SweptRows",
    "mass_at",
    "mass_on",
    "row_statistics",
    "row_sweep",
    "sweep_obstacle",
    "swept_by_triton",
]

CHUNK_KEYS = 128  # the largest weight is searched in chunks, then within the chunk that has it


class SweptRows(NamedTuple):
    """Statistics of softmax weights, one per query.

    A query with nothing to attend has zeros everywhere but lse -inf and peak_key -1.
    """

    lse: Float[Tensor, "B H Q"]
    peak: Float[Tensor, "B H Q"]
    peak_key: Int[Tensor, "B H Q"]
    entropy: Float[Tensor, "B H Q"]
    sum_squares: Float[Tensor, "B H Q"]
    mass_at: Float[Tensor, "B H Q"] | None = None
    mass_on: Float[Tensor, "B H Q"] | None = None


def row_sweep(
    scores: Scores,
    *,
    offset: int | None = None,
    keys: Bool[Tensor, "..."] | None = None,
    impl: Impl = "auto",
) -> SweptRows:
    """Compute all statistics of softmax weights, with gradients to q and k (and bias and sink).

    Args:
        scores: The call.
        offset: Also compute the weight of the key at the query's position + offset; 0 if none.
        keys: Also compute the weight on these keys, (B, K) or broadcastable to (B, H, Q, K).
        impl: "reference" (the whole matrix), "torch" (blocks), "triton" (one sweep) or "auto".

    >>> import torch
    >>> q = torch.zeros(1, 1, 2, 4)
    >>> row_sweep(Scores(q, q, causal=True), offset=0).mass_at
    tensor([[[1.0000, 0.5000]]])
    """
    if offset is not None:
        check_whole_number("offset", offset)
    if keys is not None:
        check_chosen_keys(keys, scores.shape)
        keys = keys[:, None, None] if keys.dim() == 2 else keys
    chosen = choose(impl, triton_obstacle=sweep_obstacle(scores, keys, impl))
    if chosen == "triton":
        swept = swept_by_triton(scores, offset=offset, keys=keys, statistics=True)
    elif chosen == "reference":
        swept = _definition(scores, offset=offset, keys=keys)
    else:
        compute = partial(_block_rows, offset=offset, keys=keys)
        swept = in_blocks(compute, scores, list(scores.parts()))
    return SweptRows(
        *swept[:5],
        mass_at=None if offset is None else swept[5],
        mass_on=None if keys is None else swept[-1],
    )


def sweep_obstacle(scores: Scores, keys: Tensor | None, impl: Impl) -> str | None:
    """Return why the kernel cannot sweep these rows, or None."""
    if keys is not None and keys.dim() > 1 and keys.shape[-2] > 1:
        return "it takes keys that are the same for all queries of a head"
    return attention_obstacle(scores, impl)


def swept_by_triton(
    scores: Scores, *, offset: int | None, keys: Tensor | None, statistics: bool
) -> tuple[Tensor, ...]:
    """Run one sweep of the kernel; peak, peak_key and entropy only with `statistics`."""
    from headwise.ops.row_sweep import triton  # lazy: importing headwise never imports Triton

    if keys is not None:
        batch, n_keys = scores.shape[0], scores.shape[3]
        keys = keys[(None,) * (4 - keys.dim())][:, :, 0]
        keys = keys.expand(batch, keys.shape[1], n_keys).transpose(0, 1)
    return triton.row_sweep(scores, offset=offset, keys=keys, statistics=statistics)


def _definition(scores: Scores, *, offset: int | None, keys: Tensor | None) -> tuple[Tensor, ...]:
    """Compute the statistics by their definitions, in the order of `SweptRows`."""
    scores_BHQK = scores.rows()
    sink_BHQ1 = scores.sink_column()
    weights_BHQK, _ = row_weights(scores_BHQK, sink_BHQ1, softmax_rows)
    every_BHQK = scores_BHQK if sink_BHQ1 is None else torch.cat([scores_BHQK, sink_BHQ1], dim=-1)
    empty_BHQ = every_BHQK.amax(dim=-1) == -math.inf
    lse_BHQ = every_BHQK.masked_fill(empty_BHQ[..., None], 0).logsumexp(dim=-1)
    peak_BHQ, peak_key_BHQ = weights_BHQK.max(dim=-1)
    log_BHQK = weights_BHQK.clamp(min=torch.finfo(weights_BHQK.dtype).tiny).log()
    nothing_BHQ = torch.zeros_like(peak_BHQ)
    at_BHQ = nothing_BHQ if offset is None else _mass(weights_BHQK, _at(scores, offset))
    on_BHQ = nothing_BHQ if keys is None else _mass(weights_BHQK, keys)
    return (
        lse_BHQ.masked_fill(empty_BHQ, -math.inf),
        peak_BHQ,
        peak_key_BHQ.masked_fill(peak_BHQ == 0, -1),
        -(weights_BHQK * log_BHQK).sum(dim=-1),
        weights_BHQK.square().sum(dim=-1),
        at_BHQ,
        on_BHQ,
    )


def _at(scores: Scores, offset: int) -> Tensor:
    return scores.key_position() == scores.query_position() + offset


def _mass(weights_BHQK: Tensor, chosen: Tensor) -> Tensor:
    return (weights_BHQK * chosen).sum(dim=-1)


def _block_rows(block: Block, *, offset: int | None, keys: Tensor | None) -> tuple[Tensor, ...]:
    rows = tuple(row_statistics(block, row_function=softmax_rows))[:5]
    if offset is not None:
        rows += mass_at(block, row_function=softmax_rows, offset=offset)
    if keys is not None:
        keys = keys.expand(*keys.shape[:-1], block.scores.shape[3])
        rows += mass_on(block, row_function=softmax_rows, keys=keys)
    return rows


class Rows(NamedTuple):
    """Statistics of the weights over keys, and the sink's weight; each (B, H, q)."""

    lse: Tensor
    peak: Tensor
    peak_key: Tensor
    entropy: Tensor
    sum_squares: Tensor
    sink_weight: Tensor


def row_statistics(block: Block, *, row_function: RowFunction) -> Rows:
    """Compute all statistics of a part; lse has no meaning where weights are not exponential."""
    scores_BHQK = block.scores.up_to(block.scores.reach()).rows()
    sink_BHQ1 = block.scores.sink_column()
    weights_BHQK, sink_weight_BHQ = row_weights(
        scores_BHQK, sink_BHQ1, row_function, *block.parameters
    )
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


def mass_on(block: Block, *, row_function: RowFunction, keys: Tensor) -> tuple[Tensor]:
    """Sum the weight on the keys where `keys`, broadcastable to (B, H, Q, K), is True."""
    n_keys = block.scores.reach()
    weights_BHQK = weights_of(block.scores.up_to(n_keys), row_function, *block.parameters)
    chosen = block.part.of(keys)[..., :n_keys].to(weights_BHQK.dtype)
    return (torch.linalg.vecdot(weights_BHQK, chosen),)


def mass_at(block: Block, *, row_function: RowFunction, offset: int) -> tuple[Tensor]:
    """Read the weight on the key at the query's position + offset; 0 if there is none."""
    n_keys = block.scores.reach()
    weights_BHQK = weights_of(block.scores.up_to(n_keys), row_function, *block.parameters)
    place_Q1 = block.scores.query_position() + offset
    there_Q = ((place_Q1 >= 0) & (place_Q1 < n_keys))[:, 0]
    place_BHQ1 = place_Q1.clamp(0, n_keys - 1).expand(*weights_BHQK.shape[:3], 1)
    return (weights_BHQK.gather(-1, place_BHQ1)[..., 0].masked_fill(~there_Q, 0),)


class _Reduced(torch.autograd.Function):
    """Autograd function from weights to peak, peak_key, entropy and sum_squares."""

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
        if torch.is_grad_enabled():  # this gradient may be differentiated in turn
            log_BHQK = _log(weights_BHQK)
        if on_entropy_BHQ is None:
            grad_BHQK = torch.zeros_like(weights_BHQK)
        else:
            # -log w - 1; the 1 cancels if rows of weights always sum to one
            grad_BHQK = (log_BHQK if ctx.sum_to_one else log_BHQK + 1) * -on_entropy_BHQ[..., None]
        if on_squares_BHQ is not None:
            grad_BHQK.addcmul_(weights_BHQK, 2 * on_squares_BHQ[..., None])
        if on_peak_BHQ is not None:
            grad_BHQK.scatter_add_(-1, key_BHQ1, on_peak_BHQ[..., None])
        return grad_BHQK, None


def _log(weights_BHQK: Tensor) -> Tensor:
    """Take logs, with a finite log of 0, so that 0 times it is 0."""
    return weights_BHQK.clamp(min=torch.finfo(weights_BHQK.dtype).tiny).log_()


def _first_peak(weights_BHQK: Tensor) -> Tensor:
    """Find the first key with the largest weight, (B, H, q, 1)."""
    n_keys = weights_BHQK.shape[-1]
    if n_keys < 4 * CHUNK_KEYS:
        return weights_BHQK.argmax(dim=-1, keepdim=True)
    whole = n_keys - n_keys % CHUNK_KEYS
    highest = [weights_BHQK[..., :whole].unflatten(-1, (-1, CHUNK_KEYS)).amax(dim=-1)]
    if whole < n_keys:
        highest.append(weights_BHQK[..., whole:].amax(dim=-1, keepdim=True))
    start_BHQ1 = torch.cat(highest, dim=-1).argmax(dim=-1, keepdim=True) * CHUNK_KEYS
    # The last chunk may be short: then search as many keys that end with it. None before is as
    # high.
    start_BHQ1 = start_BHQ1.clamp(max=n_keys - CHUNK_KEYS)
    key_BHQR = start_BHQ1 + torch.arange(CHUNK_KEYS, device=start_BHQ1.device)
    return start_BHQ1 + weights_BHQK.gather(-1, key_BHQR).argmax(dim=-1, keepdim=True)
