"""Is output relevance learnt before attention where one token decides?

SynClf: sequences of 40 tokens of 40 types, positive if and only if token "1" occurs. alpha* is the
attention of a run where it is most accurate; hats are other runs. Section 3.3 of the paper, Fig. 2
on the left, and SynClf's row of Table 1 say:

- acc(alpha*, beta-hat), the share of sequences where beta of another run is largest at the same
  position as alpha*, and acc(alpha*, alpha-hat) start at the baseline of a random position; the
  former rises first: output relevance is learnt first, and attracts attention;
- attention comes to lie on tokens "1" only;
- hr(alpha*, beta_unif) is 100 %; other runs' attention passes it at update 40, where accuracy is
  100 %, as it is in the end.

The commands:

    headwise reproduce output_relevance/synclf           # 1 minute on a GPU
    headwise reproduce output_relevance/synclf --smoke   # 5 seconds

How it is measured, and where ours differs from the paper or it leaves a choice:

1. 50 normal runs, and 50 uniform and 50 frozen ones, each with a start and sequences of its own,
   new ones at every update. All are tested on the same 400 sequences, at every update up to 60,
   then at every tenth. A curve is the mean over 50 runs, each compared with the other 49 as gold.
2. Only positive sequences count: in the others nothing is important. hr over all sequences is given
   beside. Where "1" occurs several times alpha and beta may choose different ones, which keeps acc
   below 1; "on a 1" is the share of sequences where the largest entry is on any of them.
3. *beta before alpha*, three figures, each a share of the 50 runs: acc(alpha*, beta-hat) passes
   one half at an earlier update than acc(alpha*, alpha-hat) ("strictly first"), at an earlier or
   the same one ("first or equal"), and the area between both curves up to update 10, by when both
   have risen, is above 0. (It was taken up to update 60 until five runs had been looked at: after
   update 10 there is nothing but noise. Four of the five were above 0 either way.)
   *Starts at the baseline*: within 0.05 of 1/40 before the first update.
4. Table 1's hr compares a normal run with the uniform run of the same number, at the best update s'
   of this pair: no run is in two pairs, so that intervals cover both kinds of run. s is where the
   mean over other normal runs first exceeds it, given for the runs where it does.
5. Rise and fall of hr(alpha*, beta_unif), as Fig. 4 has it for real texts: its best update against
   the first and the last.
6. Frozen runs, which the paper has for real texts only: whether attention finds "1" depends on the
   sign that the random output layer happens to give it. "Frozen runs that find 1" is the share of
   them with hr(alpha*, alpha_frozen) above one half at their best update.
7. What was found: beta leads by 1 update in 17 runs, by 2 in 13 and by 3 in 10; in 10 both pass one
   half at the same update. Only a look at every update shows it. hr(alpha*, beta_unif) is 0.986, as
   high as the ceiling between two normal runs, so that other runs' attention passes it for 24 of
   the 50 runs only. There it does so at update 17 on average and an accuracy of 0.85, earlier than
   in the paper (40 and 100 %).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.data.classification import Labelled
from headwise_papers.data.synthetic import IMPORTANT, SynClf, synclf
from headwise_papers.measures.relevance import agreement, at, best_step, crossing, from_others
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig, Variant
from headwise_papers.models.rnn_sequence import many_classifiers
from headwise_papers.output_relevance._stacks import device_of, drawn, looking_at_texts
from headwise_papers.output_relevance._synclf_plots import draw_figure_2, draw_uniform
from headwise_papers.output_relevance._table import (
    Row,
    gold_attention,
    on_rows,
    paired,
    table_row,
)
from headwise_papers.recipes.stacked import train_stack

VARIANTS: tuple[Variant, ...] = ("normal", "uniform", "frozen")
Traces = dict[str, Tensor]
S, AT_S = "s of runs that pass", "accuracy at s of runs that pass"
NEAR = 0.05  # of the baseline


@dataclass(frozen=True)
class Config:
    """Sections 3.1 and 3.3."""

    length: int = 40  # tokens of a sequence
    types: int = 40
    test: int = 400  # sequences
    batch: int = 32
    updates: int = 400
    rate: float = 1e-3  # of Adam; the paper does not say
    embedding: int = 300
    hidden: int = 256  # of h, half of it from each direction
    attention: int = 256  # of the layer that scores; the paper does not say
    rising: int = 10  # updates over which the area between the curves of Fig. 2 is taken
    early: int = 60  # evaluated at every update up to this one
    then: int = 10  # updates between evaluations after it
    seeds: int = 50  # normal, uniform and frozen runs each
    device: str = "auto"  # a GPU where there is one


EXPECTED = (
    Expected("hr(alpha*, beta_unif)", paper=1.0, where="Table 1", margin=0.05, partly=0.15),
    Expected(S, paper=40.0, where="Table 1", margin=20.0, partly=40.0),
    Expected(AT_S, paper=1.0, where="Table 1", margin=0.02, partly=0.1),
    Expected("best accuracy", paper=1.0, where="Table 1", margin=0.005, partly=0.05),
    Expected("alpha* on a 1", paper=1.0, where="Sec. 3.3", margin=0.02, partly=0.1),
    Expected("beta first or equal", paper=1.0, where="Fig. 2", margin=0.05, partly=0.3),
    Expected("beta strictly first", paper=1.0, where="Fig. 2", margin=0.05, partly=0.3),
    Expected("area between the curves above 0", paper=1.0, where="Fig. 2", margin=0.05, partly=0.3),
    Expected("alpha starts at the baseline", paper=1.0, where="Sec. 3.3", margin=0.05, partly=0.3),
    Expected("beta starts at the baseline", paper=1.0, where="Sec. 3.3", margin=0.05, partly=0.3),
    Expected("hr falls after its peak", paper=1.0, where="Fig. 4", margin=0.05, partly=0.3),
)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train 150 runs at once; each figure with one value a run."""
    test = synclf(
        config.test,
        length=config.length,
        types=config.types,
        generator=torch.Generator().manual_seed(2**20),
    )
    every = _train(config, test, run)
    positive_N = test.labels == 1
    normal, uniform, frozen = (
        on_rows(_runs(every, number, config.seeds), positive_N) for number in range(3)
    )
    row = table_row(normal, uniform)
    whole = table_row(_runs(every, 0, config.seeds), _runs(every, 1, config.seeds))
    agreeing, on_one = _curves(normal), _on_one(normal, test.tokens[positive_N])
    values = {
        **_table_figures(row),
        "hr(alpha*, beta_unif), all sequences": whole.hr,
        "alpha* on a 1": _at_best(on_one["alpha"], normal),
        "beta on a 1 at the same update": _at_best(on_one["beta"], normal),
        **_starts(agreeing, baseline=1 / config.length),
        **_order(agreeing, normal["step"], config.rising),
        **_frozen_figures(normal, frozen),
    }
    draw_figure_2(normal["step"], agreeing, on_one, run, until=min(config.early // 2, 30))
    draw_uniform(normal["step"], row, run)
    # no run may pass, and then there is no s
    return {name: value_S.double().tolist() for name, value_S in values.items() if len(value_S)}


def _train(config: Config, test: SynClf, run: Run) -> Traces:
    """What all runs together recorded: normal ones first, then uniform ones, then frozen ones."""
    device = device_of(config.device)
    variants: list[Variant] = [name for name in VARIANTS for _ in range(config.seeds)]
    stack = many_classifiers(
        [
            drawn(_maker(config, variant), seed=number, device=device)
            for number, variant in enumerate(variants)
        ]
    )
    part = Labelled(test.tokens.tolist(), test.labels.tolist())
    recorder = RelevanceCurves(
        looking_at_texts(part, device=device, seeds=stack.seeds),
        schedule(1, until=config.early, then=config.then),
    )
    with Run.create(run.path("training"), config) as own:
        name = f"trace/{recorder.name}/curves.safetensors"
        if not own.has(name):
            batches = _batches(config, stack.seeds, device)
            train_stack(
                stack,
                batches,
                steps=config.updates,
                rate=config.rate,
                recorders=[recorder],
                run=own,
            )
        return own.load_tensors(name)


def _maker(config: Config, variant: Variant) -> Callable[[], RnnClassifier]:
    shape = RnnClassifierConfig(
        vocabulary=config.types + 1,
        embedding=config.embedding,
        hidden=config.hidden,
        attention=config.attention,
        variant=variant,
    )
    return lambda: RnnClassifier(shape)


def _batches(
    config: Config, runs: int, device: torch.device
) -> Callable[[int], tuple[Tensor, Tensor, Tensor]]:
    lengths_SB = torch.full((runs, config.batch), config.length, device=device)

    def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        count = runs * config.batch
        new = synclf(count, length=config.length, types=config.types, generator=generator)
        tokens_SBT, labels_SB = (x.unflatten(0, (runs, -1)).to(device) for x in new)
        return tokens_SBT, lengths_SB, labels_SB

    return batch


def _runs(every: Traces, number: int, seeds: int) -> Traces:
    """The records of one variant."""
    part = slice(number * seeds, (number + 1) * seeds)
    return {name: value if value.dim() < 2 else value[:, part] for name, value in every.items()}


def _curves(normal: Traces) -> Traces:
    """acc of other runs' alpha* with each run's alpha and beta, (E, S)."""
    gold_SN = gold_attention(normal)
    return {
        name: from_others(agreement(gold_SN, normal[f"{name}_peak"])) for name in ("alpha", "beta")
    }


def _on_one(normal: Traces, tokens_NT: Tensor) -> Traces:
    """How often the largest alpha and beta are on an important token, (E, S)."""
    is_one_NT = tokens_NT == IMPORTANT
    row_N = torch.arange(len(tokens_NT))
    return {
        name: is_one_NT[row_N, normal[f"{name}_peak"].long()].double().mean(-1)
        for name in ("alpha", "beta")
    }


def _at_best(curve_ES: Tensor, normal: Traces) -> Tensor:
    return at(curve_ES, best_step(normal["accuracy"]).evaluation)


def _table_figures(row: Row) -> Traces:
    fall_S = row.relevance.amax(0) - row.hr_at_end
    return {
        "hr(alpha*, beta_unif)": row.hr,
        "hr(alpha*, beta_unif) at the end": row.hr_at_end,
        "hr falls after its peak": (fall_S > 0.02).double(),
        "fall of hr": fall_S,
        "rise of hr": row.relevance.amax(0) - row.relevance[0],
        "random baseline": row.floor,
        "ceiling, another normal run": row.ceiling,
        "other runs pass hr": row.passes,
        S: row.of_passing(row.s),
        AT_S: row.of_passing(row.accuracy_at_s),
        "best accuracy": row.best,
    }


def _starts(agreeing: Traces, *, baseline: float) -> Traces:
    """Where both curves of Fig. 2 start."""
    start = {name: curve_ES[0] for name, curve_ES in agreeing.items()}
    return {
        **{f"acc(alpha*, {name}_hat) at the start": start_S for name, start_S in start.items()},
        **{
            f"{name} starts at the baseline": (start_S - baseline).abs() <= NEAR
            for name, start_S in start.items()
        },
    }


def _order(agreeing: Traces, step_E: Tensor, rising: int) -> Traces:
    """Which of alpha and beta is learnt first, run by run."""
    alpha_S, beta_S = (_passes_half(agreeing[name], step_E) for name in ("alpha", "beta"))
    soon_E = step_E <= rising
    gap_ES = (agreeing["beta"] - agreeing["alpha"])[soon_E]
    area_S = torch.trapezoid(gap_ES, step_E[soon_E].double(), dim=0)
    last = step_E[-1].item()
    return {
        "beta first or equal": (beta_S <= alpha_S) & beta_S.isfinite(),
        "beta strictly first": beta_S < alpha_S,
        "area between the curves above 0": area_S > 0,
        "area between the curves, in updates": area_S,
        "updates by which beta is first": alpha_S.clamp(max=last) - beta_S.clamp(max=last),
    }


def _passes_half(curve_ES: Tensor, step_E: Tensor) -> Tensor:
    """The update at which each curve passes one half, infinite for those that never do."""
    evaluation_S = crossing(curve_ES, 0.5)
    return step_E[evaluation_S].double().masked_fill(evaluation_S < 0, torch.inf)


def _frozen_figures(normal: Traces, frozen: Traces) -> Traces:
    hr_R = paired(gold_attention(normal), frozen["alpha_top"]).amax(0)
    return {
        "hr(alpha*, alpha_frozen)": hr_R,
        "frozen runs that find 1": (hr_R > 0.5).double(),
    }


SMOKE = Config(length=20, types=20, test=80, updates=40, rate=3e-3, embedding=64, hidden=64,
               attention=64, early=12, then=10, seeds=3)  # fmt: skip

experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=SMOKE,
    reproduce=reproduce,
    expected=EXPECTED,
)
