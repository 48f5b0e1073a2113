"""Section 3.3, Fig. 2 left, Table 1: is output relevance learned before attention?

SynClf: 40 tokens of 40 types, positive if and only if token "1" occurs. 50 normal, uniform and
frozen runs each; positive ones of 400 test sequences count. A curve is acc of a run with alpha* of
the other 49. beta's lead is taken where both curves pass one half.

    headwise reproduce output_relevance/synclf                # 1 minute on an H200
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    curve,
    draw_lines,
    find_or_train,
    panels,
)
from headwise_papers.data.classification import Labelled
from headwise_papers.data.synthetic import IMPORTANT, SynClf, synclf
from headwise_papers.measures.relevance import agreement, at, best_step, crossing, from_others
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig, Variant
from headwise_papers.models.rnn_stack import many_classifiers
from headwise_papers.output_relevance._runs import (
    HR,
    Traces,
    device_of,
    drawn,
    gold_attention,
    limit_shares,
    named,
    of_runs,
    on_rows,
    paired,
    read_texts,
    table_row,
)
from headwise_papers.recipes.stacked import STATE, train_stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS: tuple[Variant, ...] = ("normal", "uniform", "frozen")
LEAD, AREA = "updates by which beta is first", "area between the curves, in updates"
START = "acc(alpha*, {}_hat) at the start"
RISING = 10  # updates over which the area between the curves of Fig. 2 is taken
TRACE = "trace/relevance/curves.safetensors"


@dataclass(frozen=True)
class Config:
    """Settings of Sections 3.1 and 3.3."""

    length: int = 40  # tokens of a sequence
    types: int = 40
    test: int = 400  # sequences
    batch: int = 32
    updates: int = 400
    rate: float = 1e-3  # of Adam; the paper does not say
    embedding: int = 300
    hidden: int = 256  # width of h, half of it from each direction, and of the scoring layer
    early: int = 60  # evaluated at every update up to this one, then at every tenth
    seeds: int = 50  # normal, uniform and frozen runs each


SMOKE = Config(length=20, types=20, test=80, updates=40, rate=3e-3, embedding=64, hidden=64,
               early=12, seeds=3)  # fmt: skip
NEAR = 0.025  # of 1/40
CLAIMS = (
    Claim.value(HR, 1.0, margin=0.05, number=1, text="hr"),
    Claim.value("s", 40.0, margin=10.0, number=2),
    Claim.value("accuracy at s", 1.0, margin=0.02, number=2),
    Claim.direction(LEAD, number=3),
    Claim.value(START.format("alpha"), 1 / 40, margin=NEAR, number=4, text="alpha's start"),
    Claim.value(START.format("beta"), 1 / 40, margin=NEAR, number=4, text="beta's start"),
    Claim.value("alpha* on a 1", 1.0, margin=0.02, number=4),
    Claim.value("best accuracy", 1.0, margin=0.005, number=4),
)


def train_runs(config: Config, folder: Path) -> Run:
    """Train normal, uniform and frozen runs, in this order, and keep their traces."""
    device, test = device_of(), _test(config)
    variants: list[Variant] = [name for name in VARIANTS for _ in range(config.seeds)]
    stack = many_classifiers(
        [
            drawn(_maker(config, variant), seed=number, device=device)
            for number, variant in enumerate(variants)
        ]
    )
    part = Labelled(test.tokens.tolist(), test.labels.tolist())
    recorder = RelevanceCurves(
        read_texts(part, device=device, seeds=stack.seeds), schedule(1, until=config.early, then=10)
    )
    with Run.create(folder, config) as run:
        if not run.has(TRACE):
            train_stack(
                stack,
                batches(config, stack.seeds, device),
                steps=config.updates,
                rate=config.rate,
                recorders=[recorder],
                run=run,
            )
        run.path(STATE).unlink(missing_ok=True)
        run.save_figures({"accuracy": float(run.load_tensors(TRACE)["accuracy"][-1].mean())})
    return run


def _test(config: Config) -> SynClf:
    generator = torch.Generator().manual_seed(2**20)
    return synclf(config.test, length=config.length, types=config.types, generator=generator)


def _maker(config: Config, variant: Variant) -> Callable[[], RnnClassifier]:
    shape = RnnClassifierConfig(
        vocabulary=config.types + 1,
        embedding=config.embedding,
        hidden=config.hidden,
        attention=config.hidden,
        variant=variant,
    )
    return lambda: RnnClassifier(shape)


def batches(
    config: Config, runs: int, device: torch.device
) -> Callable[[int], tuple[Tensor, Tensor, Tensor]]:
    """Return new sequences for every update, each run's own."""
    lengths_SB = torch.full((runs, config.batch), config.length, device=device)

    def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        count = runs * config.batch
        new = synclf(count, length=config.length, types=config.types, generator=generator)
        tokens_SBT, labels_SB = (x.unflatten(0, (runs, -1)).to(device) for x in new)
        return tokens_SBT, lengths_SB, labels_SB

    return batch


def run(config: Config, out: Run) -> dict[str, Result]:
    """Train 150 runs in one stack; results have one value per run."""
    normal, uniform, frozen = _traces(config, positive=True)
    whole = _traces(config, positive=False)
    row = table_row(normal, uniform)
    agreeing, on_one = _curves(normal), _on_one(normal, config)
    best_S = best_step(normal["accuracy"]).evaluation
    frozen_R = paired(gold_attention(normal), frozen["alpha_top"]).amax(0)
    values = {
        f"{HR}, all sequences": table_row(*whole[:2]).hr,
        "alpha* on a 1": at(on_one["alpha"], best_S),
        "beta on a 1 at the same update": at(on_one["beta"], best_S),
        **{START.format(name): curve_ES[0] for name, curve_ES in agreeing.items()},
        "hr(alpha*, alpha_frozen)": frozen_R,
        "frozen runs that find 1": frozen_R > 0.5,
    }
    differences = {
        "fall of hr": row.relevance.amax(0) - row.hr_at_end,
        "rise of hr": row.relevance.amax(0) - row.relevance[0],
        **order(agreeing, normal["step"], RISING),
    }
    return row.results() | named(values) | named(differences, kind="difference")


def _traces(config: Config, *, positive: bool) -> list[Traces]:
    """Return the traces of normal, uniform and frozen runs."""
    every = find_or_train(train_runs, config).load_tensors(TRACE)
    if positive:
        every = on_rows(every, _test(config).labels == 1)
    firsts = range(0, 3 * config.seeds, config.seeds)
    return [of_runs(every, first, first + config.seeds) for first in firsts]


def _curves(normal: Traces) -> Traces:
    """Return acc of other runs' alpha* with each run's alpha and beta, (E, S)."""
    gold_SN = gold_attention(normal)
    peaks = {name: normal[f"{name}_peak"] for name in ("alpha", "beta")}
    return {name: from_others(agreement(gold_SN, x_ESN)) for name, x_ESN in peaks.items()}


def _on_one(normal: Traces, config: Config) -> Traces:
    """Return how often the largest alpha and beta are on an important token, (E, S)."""
    test = _test(config)
    is_one_NT = (test.tokens == IMPORTANT)[test.labels == 1]
    row_N = torch.arange(len(is_one_NT))
    return {
        name: is_one_NT[row_N, normal[f"{name}_peak"].long()].double().mean(-1)
        for name in ("alpha", "beta")
    }


def order(agreeing: Traces, step_E: Tensor, rising: int) -> Traces:
    """Return by how much beta is learned before alpha, run by run."""
    alpha_S, beta_S = (_passes_half(agreeing[name], step_E) for name in ("alpha", "beta"))
    soon_E = step_E <= rising
    gap_ES = (agreeing["beta"] - agreeing["alpha"])[soon_E]
    last = step_E[-1].item()
    return {
        AREA: torch.trapezoid(gap_ES, step_E[soon_E].double(), dim=0),
        LEAD: alpha_S.clamp(max=last) - beta_S.clamp(max=last),
    }


def _passes_half(curve_ES: Tensor, step_E: Tensor) -> Tensor:
    """Return the update at which each curve passes one half, infinite for those that never do."""
    evaluation_S = crossing(curve_ES, 0.5)
    return step_E[evaluation_S].double().masked_fill(evaluation_S < 0, torch.inf)


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 2 left, "on a 1", and hr through training."""
    config = from_json(Config, out.config())
    normal, uniform, _ = _traces(config, positive=True)
    step_E = normal["step"]
    soon_E = step_E <= min(config.early // 2, 30)
    first, (axes,) = panels(2, width=4.5)
    for panel, curves, label in (
        (axes[0], _curves(normal), "acc with alpha* of another run"),
        (axes[1], _on_one(normal, config), 'largest on a "1", share of sequences'),
    ):
        shown = {name: curve(step_E[soon_E], x_ES[soon_E]) for name, x_ES in curves.items()}
        colours = {"alpha": "tab:red", "beta": "tab:blue"}
        draw_lines(panel, shown, xlabel="update", ylabel=label, colours=colours)
        limit_shares(panel)
    through, ((panel,),) = panels(1, width=5.0)
    table_row(normal, uniform).draw(panel, step_E, title="SynClf")
    return {"fig2-beta-before-alpha": first, "relevance-under-uniform-attention": through}


experiment = Experiment(
    Config(), SMOKE, lambda config: [Job(train_runs, config)], run, draw, CLAIMS
)
