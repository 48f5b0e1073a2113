"""Does output relevance drive attention? The paper's figures from what training recorded.

Start from the tensors of a `RelevanceCurves` (measures.relevance_curves), of S normal models and of
R others (the same ones, uniform ones, frozen ones), E evaluations each:

    gold_SN   alpha^{s*}, where each normal model looks when it is best
              at(normal["alpha_peak"], best_step(normal["accuracy"]).evaluation)
    Fig. 2    from_others(agreement(gold_SN, normal["alpha_peak"])), and "beta_peak"
    Fig. 4    agreement(gold_SN, uniform["beta_top"])
    s'        best_step of that curve, with hr as its value (Table 1)
    s         crossing of from_others(agreement(gold_SN, normal["alpha_top"])) with that hr
    Table 3   best_step of agreement(gold_SN, frozen["alpha_top"]); `at` reads a curve of other
              rows at the step chosen on held-out ones
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor

from headwise_papers.measures.influence import token_influence
from headwise_papers.ops.relevance import (
    Looked,
    expected_floor,
    highly_ranked,
    holds,
    mode_match,
    output_relevance,
    output_relevance_of_each,
    packed,
    peak_positions,
    shuffled,
    top_positions,
    unpacked,
)

__all__ = [
    "Best",
    "Looked",
    "agreement",
    "at",
    "best_step",
    "ceiling",
    "crossing",
    "expected_floor",
    "floor",
    "from_others",
    "highly_ranked",
    "mode_match",
    "output_relevance",
    "output_relevance_of_each",
    "peak_positions",
    "shuffled",
    "token_influence",
    "top_positions",
]


class Best(NamedTuple):
    """The first maximum of curves over evaluations."""

    evaluation: Int[Tensor, "*x"]  # its number; index the recorded `step` with it
    value: Float[Tensor, "*x"]


def best_step(curve: Float[Tensor, "E ..."]) -> Best:
    """Return where curves are largest, first on ties: s* of accuracy, s' of hr.

    >>> best_step(torch.tensor([0.5, 0.9, 0.9]))
    Best(evaluation=tensor(1), value=tensor(0.9000))
    """
    if not len(curve):
        raise ValueError("A curve needs at least one evaluation, got none; record first.")
    index = curve.argmax(dim=0)
    return Best(index, curve.gather(0, index[None])[0])


def at(records: Shaped[Tensor, "E ..."], evaluation: Int[Tensor, "..."]) -> Tensor:
    """Select for each seed the record at its own evaluation.

    Args:
        records: evaluations, then the axes of `evaluation`, then any others.
        evaluation: which one, as from `best_step`; not negative.

    >>> at(torch.arange(6).view(3, 2), torch.tensor([0, 2]))
    tensor([0, 5])
    """
    if bool((evaluation < 0).any()):
        raise ValueError("Some seeds have no such evaluation: -1 says that a curve never crossed.")
    axes = tuple(evaluation.shape)
    rest = records.shape[1 + len(axes) :]
    if tuple(records.shape[1 : 1 + len(axes)]) != axes:
        raise ValueError(
            f"After its evaluations, a record of shape {tuple(records.shape)} must have the axes "
            f"{axes} of the evaluations to choose."
        )
    place = evaluation.view(1, *axes, *[1] * len(rest)).expand(1, *axes, *rest)
    return records.gather(0, place)[0]


def agreement(
    gold: Int[Tensor, "S N"],
    curve: Int[Tensor, "E R N"] | UInt8[Tensor, "E R N P"],
    *,
    rows: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, "E S R"]:
    """Return how often curves of R models agree with gold attention of S models, for every pair.

    For recorded peaks it is acc, the share of rows with the same peak; for recorded tops it is hr,
    the share of rows where the gold peak is highly ranked.

    Args:
        gold: position of the largest attention in each row.
        curve: `alpha_peak` or `beta_peak`, or packed `alpha_top` or `beta_top`.
        rows: which rows count; all unless given.

    >>> gold = torch.tensor([[0, 3, 1, 1]])
    >>> agreement(gold, torch.tensor([[[0, 3, 0, 0]], [[0, 3, 1, 0]]])).flatten()
    tensor([0.5000, 0.7500], dtype=torch.float64)
    """
    if curve.shape[2] != gold.shape[1]:
        raise ValueError(
            f"Gold attention is of {gold.shape[1]} rows and the curve of {curve.shape[2]}; "
            "record both on the same rows."
        )
    if rows is not None:
        gold, curve = gold[:, rows], curve[:, :, rows]
    if not gold.shape[1]:
        raise ValueError("No rows are left to compare.")
    gold_S1N = gold[:, None]
    pairs = [
        _agrees(gold_S1N, at_step).double().mean(-1)  # one evaluation at a time: S R N booleans
        for at_step in curve
    ]
    return torch.stack(pairs)


def _agrees(gold_S1N: Tensor, other: Tensor) -> Tensor:
    return holds(other, gold_S1N) if other.dim() == 3 else gold_S1N == other


def from_others(pairs: Float[Tensor, "*x S S"]) -> Float[Tensor, "*x S"]:
    """Average each curve over the gold models of other seeds, leaving out the diagonal.

    The result has one value per training run, so that a mean and its interval are over runs. The
    mean over the S - 1 others is over the axis before last, the gold models of `agreement`.

    >>> from_others(torch.tensor([[1.0, 0.2], [0.4, 1.0]]))
    tensor([0.4000, 0.2000])
    """
    n = pairs.shape[-1]
    if n < 2:
        raise ValueError("Another seed was wanted, but there is only one; train two or more.")
    same_SS = torch.eye(n, dtype=torch.bool, device=pairs.device)
    return pairs.masked_fill(same_SS, 0).sum(-2) / (n - 1)


def crossing(
    curve: Float[Tensor, "E ..."], threshold: Float[Tensor, "..."] | float | int
) -> Int[Tensor, "..."]:
    """Find the first evaluation at which a curve is strictly above a threshold; -1 if none is.

    >>> crossing(torch.tensor([[0.1, 0.1], [0.4, 0.3], [0.5, 0.4]]), 0.4)
    tensor([ 2, -1])
    """
    above = curve > threshold
    return torch.where(above.any(dim=0), above.int().argmax(dim=0), -1)


def floor(
    gold: Int[Tensor, "S N"],
    top: UInt8[Tensor, "R N P"],
    lengths: Int[Tensor, " N"],
    generator: torch.Generator,
) -> Float[Tensor, "S R"]:
    """Compute the random baseline: hr of gold attention against one shuffle of each row.

    Args:
        gold: position of the largest attention in each row.
        top: packed highly ranked positions, e.g. `beta_top` at s'. Which positions are highly
            ranked in a shuffled row is the shuffle of those that are in the row.
        lengths: real positions of each row.
        generator: makes the shuffle.
    """
    chosen_RNK = unpacked(top)
    mixed_RNK = shuffled(chosen_RNK.float(), lengths, generator) > 0
    return agreement(gold, packed(mixed_RNK)[None])[0]


def ceiling(gold: Int[Tensor, "S N"], top: UInt8[Tensor, "S N P"]) -> Float[Tensor, " S"]:
    """Compute hr of attention between models of different seeds, an upper bound in practice.

    Args:
        gold: position of the largest attention in each row, of each model at its best.
        top: packed `alpha_top` of the same models there.
    """
    return from_others(agreement(gold, top[None]))[0]
