"""The measures of Table 1 from what training recorded, for several experiments."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headwise.analysis.relevance import (
    agreement,
    at,
    best_step,
    ceiling,
    crossing,
    floor,
    from_others,
)

__all__ = ["Row", "gold_attention", "lucky_floor", "on_rows", "table_row"]

Traces = dict[str, Tensor]  # of a `RelevanceCurves`, of the models of one variant

ROW_AXIS = {"lengths": 0, "alpha_peak": 2, "beta_peak": 2, "alpha_top": 2, "beta_top": 2}


class Row(NamedTuple):
    """A row of Table 1, one value for each normal run S whose attention is gold."""

    hr: Float[Tensor, " S"]  # of gold attention in beta_unif at s', mean over uniform runs
    hr_at_best: Float[Tensor, " S"]  # the same where each uniform run is most accurate
    hr_at_end: Float[Tensor, " S"]
    floor: Float[Tensor, " S"]  # hr in one shuffle of beta_unif at s'
    lucky_floor: Float[Tensor, " S"]  # the best of as many shuffles as there are evaluations
    ceiling: Float[Tensor, " S"]  # of gold attention in another run's
    s: Float[Tensor, " S"]  # the update at which other runs' attention passes hr; else the last
    passes: Float[Tensor, " S"]  # whether it does
    accuracy_at_s: Float[Tensor, " S"]  # of these other runs
    best: Float[Tensor, " S"]  # accuracy
    relevance: Float[Tensor, "E S"]  # hr of gold attention in beta_unif, mean over uniform runs
    attention: Float[Tensor, "E S"]  # hr of gold attention in that of other runs


def gold_attention(normal: Traces) -> Int[Tensor, "S N"]:
    """Where each normal run attends most when it is most accurate, alpha^{s*}."""
    return at(normal["alpha_peak"], best_step(normal["accuracy"]).evaluation)


def table_row(normal: Traces, uniform: Traces, *, seed: int = 0) -> Row:
    """A row of Table 1 from the records of normal and of uniform runs on the same rows.

    s' is chosen for each pair of a gold and a uniform run, as the paper does for its one pair.
    """
    gold_SN = gold_attention(normal)
    pairs_ESR = agreement(gold_SN, uniform["beta_top"])
    hr_S = best_step(pairs_ESR).value.mean(-1)
    attention_ES = from_others(agreement(gold_SN, normal["alpha_top"]).mT)
    passes_S = crossing(attention_ES, hr_S)
    place_S = torch.where(passes_S < 0, len(attention_ES) - 1, passes_S)
    best = best_step(normal["accuracy"])
    generator = torch.Generator().manual_seed(seed)
    return Row(
        hr=hr_S,
        hr_at_best=at(pairs_ESR.mT, best_step(uniform["accuracy"]).evaluation).mean(0),
        hr_at_end=pairs_ESR[-1].mean(-1),
        floor=_shuffled_hr(gold_SN, pairs_ESR, uniform, generator),
        lucky_floor=lucky_floor(uniform["lengths"], pairs_ESR.shape[:2], generator),
        ceiling=ceiling(gold_SN, at(normal["alpha_top"], best.evaluation)),
        s=normal["step"][place_S].double(),
        passes=(passes_S >= 0).double(),
        accuracy_at_s=at(_of_others(normal["accuracy"]), place_S),
        best=best.value,
        relevance=pairs_ESR.mean(-1),
        attention=attention_ES,
    )


def lucky_floor(
    lengths: Int[Tensor, " N"], shape: tuple[int, ...], generator: torch.Generator
) -> Float[Tensor, " S"]:
    """The largest hr of as many independent shuffles as there are evaluations, for each run.

    The largest of many hr's is above one shuffle's by luck alone; this is how much. In a shuffled
    row any given position is highly ranked with probability ceil(L / 20) / L.

    Args:
        lengths: of the rows.
        shape: evaluations and runs.
        generator: makes the shuffles.
    """
    chance_N = -(-lengths // 20) / lengths
    hit_ESN = torch.rand(*shape, len(lengths), generator=generator) < chance_N
    return hit_ESN.double().mean(-1).amax(0)


def on_rows(traces: Traces, rows: Bool[Tensor, " N"]) -> Traces:
    """The same records of some rows; accuracy stays that of all."""
    chosen = rows.nonzero()[:, 0]
    return {
        name: value.index_select(ROW_AXIS[name], chosen) if name in ROW_AXIS else value
        for name, value in traces.items()
    }


def _shuffled_hr(
    gold_SN: Tensor, pairs_ESR: Tensor, uniform: Traces, generator: torch.Generator
) -> Tensor:
    evaluation_R = best_step(pairs_ESR.mean(1)).evaluation
    top_RNP = at(uniform["beta_top"], evaluation_R)
    return floor(gold_SN, top_RNP, uniform["lengths"], generator).mean(-1)


def _of_others(values_ES: Tensor) -> Tensor:
    """For each run the mean over the others."""
    return (values_ES.sum(1, keepdim=True) - values_ES) / (values_ES.shape[1] - 1)
