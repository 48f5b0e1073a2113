"""Attention that ignores content: uniform, and the hard-coded Gaussian.

Uniform weights are the baseline of every learned head. The Gaussian (You et al., 2020; the
hard-coded model of Table 7 in the attention-guidance paper) attends at a fixed distance:

    w_ij ~ exp(-(j - i - offset)^2 / (2 std^2)) over the visible keys j
"""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.ops._impl import Number
from headwise.ops.attended import Attended
from headwise.ops.attention import AttentionCall, AttentionOptions, shares_options
from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Fixed

# A narrower bell has the same weights, all on the nearest key, and scores beyond float32.
NARROWEST = 1e-12


@shares_options
def uniform_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    **options: Unpack[AttentionOptions],
) -> Attended:
    """Average the values of all visible keys. `bias`, `scale`, `cap` and `sink` raise.

    >>> q = torch.randn(1, 1, 1, 4)
    >>> uniform_attention(q, q.expand(1, 1, 4, 4), torch.eye(4)[None, None]).out
    tensor([[[[0.2500, 0.2500, 0.2500, 0.2500]]]])
    """
    _refuse_scoring("uniform_attention", options)
    return _attend("uniform_attention", AttentionCall.of(q, k, v, options, fixed=_same_score))


@shares_options
def gaussian_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    offset: Number | Sequence[Number] = 0.0,
    std: Number = 1.0,
    **options: Unpack[AttentionOptions],
) -> Attended:
    """Attend to a Gaussian window around the query's own position + offset.

    `bias`, `scale`, `cap` and `sink` raise. With as many queries as keys both count from 0; with
    fewer, `causal=True` says that the queries are the last positions. Other lengths raise, because
    queries and keys then share no positions.

    Args:
        offset: Distance to the centre, in positions; -1 is the previous token. A sequence gives
            one per head.
        std: Width of the window, in positions, finite and above 0.
    """
    _refuse_scoring("gaussian_attention", options)
    if not 0 < std < math.inf:
        raise ValueError(f"std must be above 0 and finite, got {std}.")
    call = AttentionCall.of(q, k, v, options, fixed=_bell(offset, std, q.shape[1]))
    n_queries, n_keys = call.scores.shape[2:]
    if n_queries != n_keys and not call.scores.causal:
        raise ValueError(
            f"gaussian_attention cannot place {n_queries} queries among {n_keys} keys. "
            "Give causal=True if the queries are the last positions."
        )
    return _attend("gaussian_attention", call)


def _attend(name: str, call: AttentionCall) -> Attended:
    chosen = call.choose(triton_obstacle=f"{name} has no Triton kernel")
    return Attended(call.sum_values(softmax_rows, chosen), call.scores, softmax_rows)


def _same_score(query_Q1: Tensor, key_1K: Tensor) -> Tensor:
    return torch.zeros_like(query_Q1 * key_1K)


def _bell(offset: Number | Sequence[Number], std: Number, heads: int) -> Fixed:
    offsets = [float(offset)] if isinstance(offset, int | float) else [float(x) for x in offset]
    if len(offsets) not in (1, heads):
        raise ValueError(
            f"offset must be a number or one for each of the {heads} heads, got {len(offsets)}."
        )
    if not all(math.isfinite(x) for x in offsets):
        raise ValueError(f"offset must be finite, got {offset}.")
    width = max(std, NARROWEST)

    def score(query_Q1: Tensor, key_1K: Tensor) -> Tensor:  # captures no tensor of the call
        offset_H11 = _filled(offsets, key_1K.device)[:, None, None]
        return ((key_1K - query_Q1 - offset_H11) / width).square() / -2

    return score


def _filled(offsets: list[float], device: torch.device) -> Tensor:
    """Write offsets to a tensor with one fill per offset of the shortest cycle over heads.

    A copy from the host would make a GPU wait, and a CUDA graph cannot record it.
    """
    period = next(n for n in range(1, len(offsets) + 1) if offsets == _repeated(offsets, n))
    offset_H = torch.empty(len(offsets), dtype=torch.float64, device=device)
    for place in range(period):
        offset_H[place::period].fill_(offsets[place])
    return offset_H


def _repeated(values: list[float], period: int) -> list[float]:
    return [values[place % period] for place in range(len(values))]


def _refuse_scoring(name: str, options: AttentionOptions) -> None:
    for option in ("bias", "scale", "cap", "sink"):
        if options.get(option) is not None:
            raise ValueError(f"{name} computes no scores, so it takes no {option}=; leave it out.")
