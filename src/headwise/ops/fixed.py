"""Attention that does not look at content: uniform, and the hard-coded Gaussian.

Uniform weights are the baseline of every learned head. The Gaussian (You et al., 2020; the
hard-coded model of Table 7 in the attention-guidance paper) looks at a fixed distance:

    w_ij ~ exp(-(j - i - offset)^2 / (2 std^2)) over the visible keys j
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.ops._impl import Impl, Number, choose
from headwise.ops.attended import Attended
from headwise.ops.checks import check_dropout, check_values
from headwise.ops.rows import softmax_rows, weighted_values, weighted_values_in_blocks
from headwise.ops.scores import Fixed, Scores

# A narrower bell has the same weights, all on the nearest key, and scores beyond float32.
NARROWEST = 1e-12


def uniform_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    lengths: Int[Tensor, " B"] | None = None,
    scale: Number | None = None,
    cap: Number | None = None,
    sink: Float[Tensor, " H"] | None = None,
    dropout: Number = 0.0,
    impl: Impl = "auto",
) -> Attended:
    """Average the values of all visible keys. `bias`, `scale`, `cap` and `sink` raise.

    >>> q = torch.randn(1, 1, 1, 4)
    >>> uniform_attention(q, q.expand(1, 1, 4, 4), torch.eye(4)[None, None]).out
    tensor([[[[0.2500, 0.2500, 0.2500, 0.2500]]]])
    """
    _refuse("uniform_attention", bias=bias, scale=scale, cap=cap, sink=sink)
    scores = Scores(q, k, mask, None, causal, lengths, fixed=_same_score)
    return _attend("uniform_attention", scores, v, dropout, impl)


def gaussian_attention(
    q: Float[Tensor, "B H Q D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K E"],
    *,
    offset: Number | Sequence[Number] = 0.0,
    std: Number = 1.0,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    lengths: Int[Tensor, " B"] | None = None,
    scale: Number | None = None,
    cap: Number | None = None,
    sink: Float[Tensor, " H"] | None = None,
    dropout: Number = 0.0,
    impl: Impl = "auto",
) -> Attended:
    """Attend to a Gaussian window around the query's own position + offset.

    Args:
        offset: distance to the centre, in positions; -1 is the previous token. A sequence gives
            each head its own.
        std: width of the window, in positions, finite and above 0.
        bias, scale, cap, sink: have no meaning here and raise.

    With as many queries as keys both count from 0; with fewer, `causal=True` says that the
    queries are the last positions. Anything else has no common position and raises.
    """
    _refuse("gaussian_attention", bias=bias, scale=scale, cap=cap, sink=sink)
    if not 0 < std < math.inf:
        raise ValueError(f"std must be above 0 and finite, got {std}.")
    scores = Scores(q, k, mask, None, causal, lengths, fixed=_bell(offset, std, q.shape[1]))
    n_queries, n_keys = scores.shape[2:]
    if n_queries != n_keys and not causal:
        raise ValueError(
            f"gaussian_attention cannot place {n_queries} queries among {n_keys} keys. "
            "Give causal=True if the queries are the last positions."
        )
    return _attend("gaussian_attention", scores, v, dropout, impl)


def _attend(name: str, scores: Scores, v: Tensor, dropout: Number, impl: Impl) -> Attended:
    check_values(scores.k, v)
    check_dropout(dropout)
    chosen = choose(impl, triton_obstacle=f"{name} has no Triton kernel")
    attend = weighted_values if chosen == "reference" else weighted_values_in_blocks
    return Attended(attend(scores, softmax_rows, v, dropout=dropout), scores, softmax_rows)


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

    def score(query_Q1: Tensor, key_1K: Tensor) -> Tensor:  # holds on to no tensor of the call
        offset_H11 = _written(offsets, key_1K.device)[:, None, None]
        return ((key_1K - query_Q1 - offset_H11) / width).square() / -2

    return score


def _written(offsets: list[float], device: torch.device) -> Tensor:
    """Offsets as a tensor, by a kernel for each of those that heads take turns with.

    A copy from the host would make a GPU wait, and a CUDA graph cannot record it.
    """
    turns = next(n for n in range(1, len(offsets) + 1) if offsets == _repeated(offsets, n))
    offset_H = torch.empty(len(offsets), dtype=torch.float64, device=device)
    for turn in range(turns):
        offset_H[turn::turns].fill_(offsets[turn])
    return offset_H


def _repeated(values: list[float], turns: int) -> list[float]:
    return [values[place % turns] for place in range(len(values))]


def _refuse(name: str, **options: Tensor | Number | None) -> None:
    given = next((option for option, value in options.items() if value is not None), None)
    if given:
        raise ValueError(f"{name} does not look at scores, so it takes no {given}=.")
