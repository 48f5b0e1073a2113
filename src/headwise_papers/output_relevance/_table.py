"""The measures of Table 1 from what training recorded, for several experiments."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from headwise_papers.measures.relevance import (
    agreement,
    at,
    best_step,
    ceiling,
    crossing,
    floor,
    from_others,
)
from headwise_papers.ops.relevance import holds, top_number

__all__ = ["Row", "gold_attention", "lucky_floor", "on_rows", "paired", "table_row"]

Traces = dict[str, Tensor]  # of a `RelevanceCurves`, of the models of one variant

ROW_AXIS = {"lengths": 0, "alpha_peak": 2, "beta_peak": 2, "alpha_top": 2, "beta_top": 2}


class Row(NamedTuple):
    """A row of Table 1, one value for each pair S of a normal run, whose attention is gold, and a
    uniform run. No run is in two pairs, so that an interval over values covers both kinds of run.
    """

    hr: Float[Tensor, " S"]  # of gold attention in beta_unif at s'
    hr_at_best: Float[Tensor, " S"]  # the same where the uniform run is most accurate
    hr_at_end: Float[Tensor, " S"]
    floor: Float[Tensor, " S"]  # hr in one shuffle of beta_unif at s'
    lucky_floor: Float[Tensor, " S"]  # the best of as many shuffles as there are evaluations
    ceiling: Float[Tensor, " S"]  # of gold attention in another run's
    s: Float[Tensor, " S"]  # the update at which other runs' attention passes hr; else the last
    passes: Float[Tensor, " S"]  # whether it does
    accuracy_at_s: Float[Tensor, " S"]  # of these other runs
    best: Float[Tensor, " S"]  # accuracy
    relevance: Float[Tensor, "E S"]  # hr of gold attention in beta_unif
    attention: Float[Tensor, "E S"]  # hr of gold attention in that of other runs

    def of_passing(self, values: Float[Tensor, " S"]) -> Float[Tensor, " P"]:
        """Values of the pairs whose hr other runs' attention passes; there may be none."""
        return values[self.passes > 0]


def gold_attention(normal: Traces) -> Int[Tensor, "S N"]:
    """Where each normal run attends most when it is most accurate, alpha^{s*}."""
    return at(normal["alpha_peak"], best_step(normal["accuracy"]).evaluation)


def table_row(normal: Traces, uniform: Traces, *, seed: int = 0) -> Row:
    """A row of Table 1 from the records of as many normal as uniform runs on the same rows.

    s' is chosen for each pair, as the paper does for its one pair.
    """
    gold_SN = gold_attention(normal)
    pairs_ES = paired(gold_SN, uniform["beta_top"])
    hr_S = best_step(pairs_ES).value
    attention_ES = from_others(agreement(gold_SN, normal["alpha_top"]).mT)
    passes_S = crossing(attention_ES, hr_S)
    place_S = torch.where(passes_S < 0, len(attention_ES) - 1, passes_S)
    best = best_step(normal["accuracy"])
    generator = torch.Generator().manual_seed(seed)
    return Row(
        hr=hr_S,
        hr_at_best=at(pairs_ES, best_step(uniform["accuracy"]).evaluation),
        hr_at_end=pairs_ES[-1],
        floor=_shuffled_hr(gold_SN, pairs_ES, uniform, generator),
        lucky_floor=lucky_floor(uniform["lengths"], pairs_ES.shape, generator),
        ceiling=ceiling(gold_SN, at(normal["alpha_top"], best.evaluation)),
        s=normal["step"][place_S].double(),
        passes=(passes_S >= 0).double(),
        accuracy_at_s=at(_of_others(normal["accuracy"]), place_S),
        best=best.value,
        relevance=pairs_ES,
        attention=attention_ES,
    )


def paired(gold: Int[Tensor, "S N"], top: UInt8[Tensor, "E R M P"]) -> Float[Tensor, "E S"]:
    """hr of each run's gold positions in the tops of the other run with the same number.

    Args:
        gold: position in each row.
        top: packed highly ranked positions, e.g. `beta_top` of uniform runs.
    """
    if top.shape[1:3] != gold.shape:
        raise ValueError(
            f"Gold positions are of {tuple(gold.shape)} runs and rows and the others of "
            f"{tuple(top.shape[1:3])}; train as many runs of each kind, on the same rows."
        )
    return torch.stack([holds(top_SNP, gold).double().mean(-1) for top_SNP in top])


def lucky_floor(
    lengths: Int[Tensor, " N"], shape: tuple[int, ...], generator: torch.Generator
) -> Float[Tensor, " S"]:
    """The largest hr of as many independent shuffles as there are evaluations, for each run.

    The largest of many hr's is above one shuffle's by luck alone; this is how much. In a shuffled
    row every position is as likely as any other to be highly ranked.

    Args:
        lengths: of the rows.
        shape: evaluations and runs.
        generator: makes the shuffles.
    """
    chance_N = top_number(lengths) / lengths
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
    gold_SN: Tensor, pairs_ES: Tensor, uniform: Traces, generator: torch.Generator
) -> Tensor:
    top_SNP = at(uniform["beta_top"], best_step(pairs_ES).evaluation)
    return floor(gold_SN, top_SNP, uniform["lengths"], generator).diagonal()


def _of_others(values_ES: Tensor) -> Tensor:
    """For each run the mean over the others."""
    return (values_ES.sum(1, keepdim=True) - values_ES) / (values_ES.shape[1] - 1)
