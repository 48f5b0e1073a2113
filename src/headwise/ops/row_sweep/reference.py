"""The definition every other implementation is tested against. Clear before fast."""

import math

import torch
from torch import Tensor

from headwise.ops.rows import softmax_rows, weigh_rows
from headwise.ops.scores import Scores


def row_sweep(scores: Scores, *, offset: int | None, keys: Tensor | None) -> tuple[Tensor, ...]:
    """lse, peak, peak_key, entropy, sum_squares, mass at the offset, mass on the keys."""
    scores_BHQK = scores.rows()
    sink_BHQ1 = scores.sink_column()
    weights_BHQK, _ = weigh_rows(scores_BHQK, sink_BHQ1, softmax_rows)
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
