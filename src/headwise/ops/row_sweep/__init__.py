"""Statistics of the softmax weights of a call in one sweep over the keys, never Q x K.

w = softmax(scores)
lse = log sum exp(scores)    peak = max w         peak_key = argmax w
entropy = -sum w log w       sum_squares = sum w^2
mass_at = w of the key at the query's position + offset      mass_on = sum of w over chosen keys
"""

from functools import partial
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, choose
from headwise.ops.blocks import Block, in_blocks
from headwise.ops.checks import check_chosen_keys, check_whole_number
from headwise.ops.row_sweep import reference
from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Scores, attention_obstacle
from headwise.ops.statistics import mass_at, mass_on, row_statistics

__all__ = ["SweptRows", "row_sweep", "sweep_obstacle", "swept_by_triton"]


class SweptRows(NamedTuple):
    """What each query's weights look like. A query with nothing to attend has zeros everywhere but
    lse -inf and peak_key -1.
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
    """All statistics of softmax weights at once, with gradients to q and k (and bias and sink).

    Args:
        scores: the call.
        offset: also the weight of the key at the query's position + offset; 0 where there is none.
        keys: also the weight on these keys, (B, K) or broadcastable to (B, H, Q, K).
        impl: "reference" builds the matrix, "torch" works in blocks, "triton" sweeps once.

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
        swept = reference.row_sweep(scores, offset=offset, keys=keys)
    else:
        compute = partial(_block_rows, offset=offset, keys=keys)
        swept = in_blocks(compute, scores, list(scores.parts()))
    return SweptRows(
        *swept[:5],
        mass_at=None if offset is None else swept[5],
        mass_on=None if keys is None else swept[-1],
    )


def sweep_obstacle(scores: Scores, keys: Tensor | None, impl: Impl) -> str | None:
    """Why the kernel cannot sweep these rows, or None."""
    if keys is not None and keys.dim() > 1 and keys.shape[-2] > 1:
        return "it takes keys that are the same for all queries of a head"
    return attention_obstacle(scores, impl)


def swept_by_triton(
    scores: Scores, *, offset: int | None, keys: Tensor | None, statistics: bool
) -> tuple[Tensor, ...]:
    """One sweep of the kernel; peak, peak_key and entropy only with `statistics`."""
    from headwise.ops.row_sweep import triton  # lazy: importing headwise never imports Triton

    if keys is not None:
        batch, n_keys = scores.shape[0], scores.shape[3]
        keys = keys[(None,) * (4 - keys.dim())][:, :, 0]
        keys = keys.expand(batch, keys.shape[1], n_keys).transpose(0, 1)
    return triton.row_sweep(scores, offset=offset, keys=keys, statistics=statistics)


def _block_rows(block: Block, *, offset: int | None, keys: Tensor | None) -> tuple[Tensor, ...]:
    rows = tuple(row_statistics(block, weigh=softmax_rows))[:5]
    if offset is not None:
        rows += mass_at(block, weigh=softmax_rows, offset=offset)
    if keys is not None:
        keys = keys.expand(*keys.shape[:-1], block.scores.shape[3])
        rows += mass_on(block, weigh=softmax_rows, keys=keys)
    return rows
