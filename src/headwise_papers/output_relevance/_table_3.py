"""Table 3 of the paper, frozen output relevance: its figures, ours, and pictures of both.

Shared by output_relevance/frozen and output_relevance/random-embeddings.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected
from headwise_papers.measures.relevance import at, best_step
from headwise_papers.models.rnn import Variant
from headwise_papers.output_relevance._classification import Trained
from headwise_papers.output_relevance._grid import bars_with_baseline, scale_to_means, set_panels
from headwise_papers.output_relevance._plots import BETA, OTHER, draw_curve, panels, save
from headwise_papers.output_relevance._table import paired, table_row
from headwise_papers.output_relevance._table_1 import HR, PAPER_1

__all__ = ["EXPECTED_3", "Curves", "draw_curves_3", "draw_table_3", "table_3"]

PAPER_3 = {
    "imdb": 0.09,
    "ag_news": 0.17,
    "newsgroups": 0.19,
    "sst": 0.14,
    "amazon": 0.15,
    "yelp": 0.08,
}
PAPER_3["yelp_reviews"] = PAPER_3["yelp"]
FROZEN = "hr(alpha*, alpha_frozen)"
MEASURES: tuple[tuple[Variant, str], ...] = (("frozen", "alpha_top"), ("uniform", "beta_top"))
COLOUR = "tab:orange"

EXPECTED_3 = (
    *(
        Expected(f"{name}: {FROZEN}", paper=hr, where="Table 3", margin=0.05, partly=0.1)
        for name, hr in PAPER_3.items()
    ),
    *(
        Expected(f"{name}: {claim}", paper=1.0, where=where, partly=0.5)
        for name in PAPER_3
        for claim, where in (
            ("frozen below beta_unif", "Table 3"),
            ("frozen not correlated", "Sec. 3.4"),
        )
    ),
)


class Curves(NamedTuple):
    """hr of gold attention through training, one value a pair of runs."""

    step_E: Tensor
    frozen_ES: Tensor
    uniform_ES: Tensor
    floor_S: Tensor


def table_3(name: str, trained: Trained) -> tuple[dict[str, list[float]], Curves]:
    """The figures of one set, one value a normal run with its uniform and frozen ones."""
    row = table_row(trained.of("normal"), trained.of("uniform"))
    frozen_ES, uniform_ES = (_pairs(trained, *key, "test") for key in MEASURES)
    frozen_S, uniform_S = (
        at(test_ES, best_step(_pairs(trained, *key, "validation")).evaluation)
        for test_ES, key in zip((frozen_ES, uniform_ES), MEASURES, strict=True)
    )
    values = {
        FROZEN: frozen_S,
        f"{HR} chosen on validation": uniform_S,
        HR: row.hr,
        "random baseline": row.floor,
        "random baseline, best of as many shuffles": row.lucky_floor,
        "ceiling, another normal run": row.ceiling,
        "frozen above the random baseline by": frozen_S - row.floor,
        "frozen below beta_unif": (frozen_S < uniform_S).double(),
        "frozen not correlated": (frozen_S <= row.lucky_floor).double(),
        "frozen best accuracy": best_step(trained.of("frozen")["accuracy"]).value,
    }
    figures = {f"{name}: {figure}": value_S.tolist() for figure, value_S in values.items()}
    return figures, Curves(trained.of("frozen")["step"], frozen_ES, uniform_ES, row.floor)


def _pairs(trained: Trained, variant: Variant, measure: str, texts: str) -> Tensor:
    """hr of every normal run's best attention in the measure of the run with its number, (E, S)."""
    best_S = best_step(trained.of("normal")["accuracy"]).evaluation
    gold_SN = at(trained.of("normal", texts)["alpha_peak"], best_S)
    return paired(gold_SN, trained.of(variant, texts)[measure])


def draw_curves_3(curves: Mapping[str, Curves], run: Run) -> None:
    """hr of alpha* in frozen attention and in beta_unif through training."""
    figure, cells = set_panels(list(curves))
    for axis, seen in zip(cells, curves.values(), strict=True):
        draw_curve(axis, seen.step_E, seen.frozen_ES, colour=COLOUR, label=r"$\alpha_{froz}$")
        draw_curve(axis, seen.step_E, seen.uniform_ES, colour=BETA, label=r"$\beta_{unif}$")
        floor = seen.floor_S.mean().item()
        axis.axhline(floor, color=OTHER, linestyle="--", label="random baseline")
        axis.set(ylabel=r"hr with $\alpha^{s*}$")
        scale_to_means(axis, seen.frozen_ES, seen.uniform_ES)
    cells[0].legend(frameon=False, fontsize=8)
    save(figure, run, "frozen-through-training")


def draw_table_3(figures: Mapping[str, list[float]], names: tuple[str, ...], run: Run) -> None:
    """Both columns, ours beside the paper's."""
    figure, ((axis,),) = panels(1, width=8.0)

    def means(figure: str) -> list[float]:
        return [fmean(figures[f"{name}: {figure}"]) for name in names]

    bars = {
        "frozen": means(FROZEN),
        "frozen, paper": [PAPER_3[name] for name in names],
        r"$\beta_{unif}$": means(HR),
        r"$\beta_{unif}$, paper": [PAPER_1[name].hr for name in names],
    }
    colours = (COLOUR, "moccasin", BETA, "lightsteelblue")
    bars_with_baseline(axis, names, bars, means("random baseline"), colours=colours)
    axis.set(ylabel=r"hr with $\alpha^{s*}$")
    save(figure, run, "table3")
