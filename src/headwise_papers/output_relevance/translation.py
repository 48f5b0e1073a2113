"""Fig. 2 right, Table 1: does a translator learn output relevance first, and without attention?

German to English. *beta is first*, in 50 runs of 1,500 updates: the area between the curves until
alpha's mean passes half of the ceiling, and beta's lead there; the threshold is ours. beta's mean
is slightly above alpha's up to update 400.

    headwise reproduce output_relevance/translation           # 13 minutes on an H200

- Multi30k: 12 epochs, evaluated every 200 updates. The source's end token is a position.
- IWSLT'14: 17,652 of 160,239 pairs, 5,459 of 500,000 updates, BLEU 11 (paper: 33.3). Evaluated
  every 1,000 updates, so that its s has no verdict.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Result, curve, draw_lines, find_or_train, panels
from headwise_papers.measures.relevance import agreement, at, best_step, crossing, from_others
from headwise_papers.output_relevance._runs import (
    ALPHA,
    BETA,
    HR,
    OTHER,
    OVER_SHUFFLES,
    Traces,
    limit_shares,
    named,
    table_row,
)
from headwise_papers.output_relevance._translators import (
    CURVES,
    INSIDE,
    SMOKE,
    Config,
    models,
    traces_of,
    train_early,
    train_translators,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HALF = 0.5  # of the ceiling: where a curve counts as learned
BEFORE = "beta before alpha"
AREA, LEAD = "area between the curves", "lead of beta in updates"


FEWER = "17,652 pairs"
CLAIMS = (
    Claim.direction(f"early: {AREA}", number=5, text="beta first, area"),
    Claim.direction(f"early: {LEAD}", number=5, text="beta first, updates"),
    *(
        Claim.comparable(
            f"early: {x} at the start - baseline", margin=0.025, number=6, text=f"{x}'s start"
        )
        for x in ("alpha", "beta")
    ),
    Claim.value(f"multi30k: {HR}", 0.40, margin=0.05, number=7, text="multi30k hr"),
    Claim.value("multi30k: accuracy at s", 0.46, margin=0.05, number=7),
    Claim.value("multi30k: best accuracy", 0.65, margin=0.05, number=7),
    Claim.value("multi30k: s", 1000.0, margin=250.0, number=8),
    Claim.value(f"iwslt14: {HR}", 0.39, margin=0.05, number=9, text="iwslt14 hr", stands_for=FEWER),
    Claim.value("iwslt14: best accuracy", 0.66, margin=0.05, number=9, stands_for=FEWER),
    *(
        Claim.direction(f"{x}: {OVER_SHUFFLES}", number=22, text=f"{x}: hr above shuffles")
        for x in ("multi30k", "iwslt14")
    ),
    Claim.value(
        "multi30k: ceiling, another normal run", 1.0, margin=0.05, number=23, text="ceiling of hr"
    ),
)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Train and compare; results have one value per run."""
    results: dict[str, Result] = {}
    for name in config.corpora:
        trained = find_or_train(train_translators, config.long_runs(name))
        normal, uniform = traces_of(trained, config.long_runs(name).seeds)
        results |= table_row(normal, uniform).results(name)
        results[f"{name}: last evaluation"] = Result([float(normal["step"][-1])])
        best_R = uniform["accuracy"].max(0).values
        results[f"{name}: best accuracy, uniform"] = Result(best_R.tolist())
        results[f"{name}: BLEU of seed 0"] = Result([trained.figures()["bleu"]])
    return results | _early_results(config)


def compare(steps: Tensor, alpha_ER: Tensor, beta_ER: Tensor, *, ceiling: float) -> Traces:
    """Return which curve is first, run by run.

    Args:
        steps: of the evaluations.
        alpha_ER: acc(alpha*, alpha_hat) of each run.
        beta_ER: acc(alpha*, beta_hat) of each run.
        ceiling: half of it counts as learned.
    """
    alpha_R, beta_R = (crossing(curve, HALF * ceiling) for curve in (alpha_ER, beta_ER))
    both_R = (beta_R >= 0) & (alpha_R >= 0)
    learned = int(crossing(alpha_ER.mean(1), HALF * ceiling))
    window = slice(0, learned + 1 if learned > 0 else len(steps))
    area_R = torch.trapezoid((beta_ER - alpha_ER)[window].T, steps[window].double())
    return {
        BEFORE: (beta_R >= 0) & ((alpha_R < 0) | (beta_R < alpha_R)),
        AREA: area_R / (steps[window][-1] - steps[0]),
        LEAD: (steps[alpha_R] - steps[beta_R])[both_R],
        "update at which beta passes half": steps[beta_R][beta_R >= 0],
        "update at which alpha passes half": steps[alpha_R][alpha_R >= 0],
    }


class Early(NamedTuple):
    """Fig. 2 right on some rows."""

    steps: Tensor
    alpha: Tensor  # acc(alpha*, alpha_hat), evaluations and runs
    beta: Tensor  # acc(alpha*, beta_hat)
    baseline: float  # acc of random positions
    ceiling: float  # acc between alpha* of different seeds

    @staticmethod
    def on(rows_N: Tensor, gold_SN: Tensor, recorded: Traces) -> "Early":
        """Compare early runs with the gold attention of converged ones on some rows."""
        alpha_ER, beta_ER = (
            agreement(gold_SN, recorded[f"{name}_peak"], rows=rows_N).mean(1)
            for name in ("alpha", "beta")
        )
        return Early(
            recorded["step"],
            alpha_ER,
            beta_ER,
            baseline=float((1 / recorded["lengths"][rows_N].double()).mean()),
            ceiling=float(from_others(agreement(gold_SN, gold_SN[None], rows=rows_N)).mean()),
        )

    def results(self, part: str) -> dict[str, Result]:
        """Return which curve is first, and where both start and end."""
        steps, alpha_ER, beta_ER, baseline, ceiling = self
        values = compare(steps, alpha_ER, beta_ER, ceiling=ceiling)
        differences = {
            AREA: values.pop(AREA),
            LEAD: values.pop(LEAD),
            "alpha at the start - baseline": alpha_ER[0] - baseline,
            "beta at the start - baseline": beta_ER[0] - baseline,
        }
        values |= {
            "baseline of acc": torch.tensor([baseline]),
            "acc(alpha*, alpha_hat) at the start": alpha_ER[0],
            "acc(alpha*, beta_hat) at the start": beta_ER[0],
            "acc(alpha*, alpha_hat) at the end": alpha_ER[-1],
            "acc(alpha*, beta_hat) at the end": beta_ER[-1],
            "ceiling of acc": torch.tensor([ceiling]),
        }
        return named(values, part=part) | named(differences, part=part, kind="difference")


def _early(config: Config) -> tuple[Tensor, Traces, dict[str, Early]]:
    """Return gold attention, traces of early runs, and Fig. 2 with and without the end token."""
    long_runs = config.long_runs(config.corpora[0])
    trained = find_or_train(train_translators, long_runs)
    star_S = best_step(traces_of(trained, long_runs.seeds)[0]["accuracy"]).evaluation
    gold_SN = at(traces_of(trained, long_runs.seeds, "probe")[0]["alpha_peak"], star_S)
    early = find_or_train(train_early, config.early())
    recorded = early.load_tensors(CURVES.format("relevance"))
    inside_N = (gold_SN < recorded["lengths"] - 1).all(0)
    rows = {"early": torch.ones_like(inside_N), INSIDE: inside_N}
    found = {x: Early.on(rows_N, gold_SN, recorded) for x, rows_N in rows.items() if rows_N.any()}
    return gold_SN, recorded, found


def _early_results(config: Config) -> dict[str, Result]:
    gold_SN, recorded, found = _early(config)
    last_N = recorded["lengths"] - 1
    on_end_ER = (recorded["alpha_peak"] == last_N).double().mean(-1)
    values = {
        "alpha_hat on the end token, at most": on_end_ER.max(0).values,
        "alpha* on the end token": (gold_SN == last_N).double().mean(-1),
    }
    results = named(values, part="early")
    for part, early in found.items():
        results |= early.results(part)
    return results


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 2 right, on a linear and a logarithmic axis, and hr through training."""
    config = from_json(Config, out.config())
    found = _early(config)[2]
    first, (axes,) = panels(len(found) + 1)
    titles = ["as in Fig. 2", "logarithmic from update 10 on", "alpha* not on the end token"]
    shown = [found["early"], *found.values()]
    for panel, early, title in zip(axes, shown, titles, strict=False):
        curves = {
            r"acc$(\alpha^*, \hat\beta)$": curve(early.steps, early.beta),
            r"acc$(\alpha^*, \hat\alpha)$": curve(early.steps, early.alpha),
        }
        colours = dict(zip(curves, (BETA, ALPHA), strict=True))
        draw_lines(panel, curves, xlabel="update", title=title, colours=colours)
        panel.axhline(early.baseline, color=OTHER, linestyle=":")
        limit_shares(panel)
    for panel in axes[1:]:
        panel.set_xscale("symlog", linthresh=10)
        panel.set_xlim(0)
    table, (row,) = panels(len(config.corpora))
    for panel, name in zip(row, config.corpora, strict=True):
        trained = find_or_train(train_translators, config.long_runs(name))
        normal, uniform = traces_of(trained, config.long_runs(name).seeds)
        table_row(normal, uniform).draw(panel, normal["step"], title=name)
    return {"figure-2-right": first, "table-1": table}


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
