"""Where models that copy look, and what output relevance says of each position.

S models   B sequences   K positions, the end mark included   N = B K rows
"""

import math

import torch
from torch import Tensor

from headwise_papers.data.synthetic import Copying
from headwise_papers.models.rnn_stack import Seq2SeqStack
from headwise_papers.ops.relevance import Looked

LOOKED = {"cuda": 2**30, "cpu": 2**25}  # numbers held at once while looking at output relevance


def looked(stack: Seq2SeqStack, data: Copying) -> dict[str, Tensor]:
    """Means over target positions; sequences in chunks, as relevance has (S, N, K, D) numbers."""
    source_BK = data.source
    n_positions = source_BK.shape[1]
    each = stack.seeds * n_positions**2 * 3 * stack.config.hidden
    size = max(1, LOOKED[source_BK.device.type] // each)
    chunks: list[dict[str, Tensor]] = []
    for first in range(0, len(source_BK), size):
        some = Copying(*(x[first : first + size] for x in data))
        lengths_B = torch.full_like(some.source[:, 0], n_positions)
        looked = stack.look(some.source, lengths_B, some.target_in, some.target_out, lengths_B)
        chunks.append(_measures(looked, some.source))
    return {name: torch.cat([chunk[name] for chunk in chunks], dim=1).mean(1) for name in chunks[0]}


def _measures(looked: Looked, source_BK: Tensor) -> dict[str, Tensor]:
    """(S, N) each, see `CopyCurves`; the right output of target position t is source token t."""
    n_positions = source_BK.shape[1]
    place_N = torch.arange(n_positions, device=source_BK.device).repeat(len(source_BK))
    offset_SN = looked.alpha.argmax(-1) - place_N
    beta_peak_SN = looked.beta.argmax(-1)
    source_NK = source_BK.repeat_interleave(n_positions, dim=0)
    token_SN = source_NK.expand(len(beta_peak_SN), -1, -1).gather(-1, beta_peak_SN[..., None])
    own_SN1 = place_N.expand_as(beta_peak_SN)[..., None]
    log_weight_SNK = looked.alpha.log_softmax(-1)
    entropy_SN = -(log_weight_SNK.exp() * log_weight_SNK).sum(-1)
    measures = {
        "accuracy": looked.right,
        "on": offset_SN == 0,
        "before": offset_SN == -1,
        "after": offset_SN == 1,
        "offset": offset_SN,
        "evenness": entropy_SN / math.log(n_positions),
        "beta_on": beta_peak_SN == place_N,
        "beta_token": token_SN[..., 0] == source_BK.flatten(),
        "beta_gap": looked.beta.gather(-1, own_SN1)[..., 0] - looked.beta.mean(-1),
    }
    return {name: value_SN.double() for name, value_SN in measures.items()}
