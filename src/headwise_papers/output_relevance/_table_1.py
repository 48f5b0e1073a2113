"""Table 1 and Fig. 4 of the paper for classification: its figures, ours, and pictures of both.

Shared by output_relevance/classification and output_relevance/random-embeddings.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected
from headwise_papers.measures.relevance import at, best_step, expected_floor
from headwise_papers.output_relevance._classification import SETS, Trained
from headwise_papers.output_relevance._grid import (
    bars_with_baseline,
    legend_above,
    scale_to_means,
    set_panels,
)
from headwise_papers.output_relevance._plots import (
    ALPHA,
    BETA,
    OTHER,
    draw_bars,
    draw_curve,
    panels,
    save,
)
from headwise_papers.output_relevance._table import Row, paired, table_row

__all__ = ["EXPECTED_1", "HR", "PAPER_1", "Shown", "draw_figure_4", "draw_table_1", "table_1"]


class Paper(NamedTuple):
    """A row of Table 1."""

    hr: float
    s: float
    at_s: float
    best: float


PAPER_1 = {
    "imdb": Paper(0.18, 150.0, 0.84, 0.93),
    "ag_news": Paper(0.42, 450.0, 0.93, 0.96),
    "newsgroups": Paper(0.36, 10.0, 0.61, 0.93),
    "sst": Paper(0.24, 1950.0, 0.82, 0.82),
    "amazon": Paper(0.49, 450.0, 0.85, 0.89),
    "yelp": Paper(0.58, 150.0, 0.90, 0.96),
}
PAPER_1["yelp_reviews"] = PAPER_1["yelp"]
NON_TRIVIAL = ("imdb", "ag_news", "yelp", "yelp_reviews")
HR = "hr(alpha*, beta_unif)"
LEAST = 0.03  # a rise or fall of less is none: about the sampling error of 400 texts
NEAR = 0.05  # of the random baseline


def _of_row(name: str, figure: str, paper: float, margin: float, partly: float) -> Expected:
    """Return what Table 1 has of a set; sentences of Yelp's reviews are not its Yelp."""
    if name == "yelp":
        return Expected(f"{name}: {figure}", None, f"Table 1 has {paper:g} for whole reviews")
    return Expected(f"{name}: {figure}", paper, "Table 1", margin=margin, partly=partly)


EXPECTED_1 = (
    *(
        _of_row(name, figure, paper, margin, partly)
        for name, row in PAPER_1.items()
        for figure, paper, margin, partly in (
            (HR, row.hr, 0.05, 0.15),
            ("s", row.s, 100.0, 500.0),
            ("accuracy at s", row.at_s, 0.05, 0.15),
            ("best accuracy", row.best, 0.03, 0.1),
        )
    ),
    *(
        Expected(f"{name}: {claim}", paper=1.0, where=where, margin=margin, partly=partly)
        for name in SETS
        for claim, where, margin, partly in (
            ("hr above the random baseline", "Table 1", 0.0, 0.5),
            ("random baseline at most 0.1", "Sec. 3.2", 0.0, 0.5),
            ("rises, then falls", "Fig. 4", 0.0, 0.5),
            ("attention starts at the random baseline", "Sec. 3.4", 0.0, 0.5),
            ("ceiling, another normal run", "Sec. 3.4, if stable", 0.05, 0.2),
        )
    ),
    *(
        Expected(f"{name}: accuracy at s is non-trivial", paper=1.0, where="Sec. 3.4", partly=0.5)
        for name in NON_TRIVIAL
    ),
)


class Shown(NamedTuple):
    """What the pictures need of a set."""

    step_E: Tensor
    row: Row


def table_1(name: str, trained: Trained) -> tuple[dict[str, list[float]], Shown]:
    """The figures of one set, one value a pair of runs, and what pictures need of them.

    Figures that no pair has are left out: s, where other runs never pass hr.
    """
    row = table_row(trained.of("normal"), trained.of("uniform"))
    chance = expected_floor(trained.of("normal")["lengths"])
    values = _figures(row, chance) | _turns(trained, row)
    if name in NON_TRIVIAL:
        half_way_S = 0.5 + (row.best - 0.5) / 2
        values["accuracy at s is non-trivial"] = (row.accuracy_at_s > half_way_S).double()
    figures = {
        f"{name}: {figure}": value.tolist() for figure, value in values.items() if len(value)
    }
    return figures, Shown(trained.of("normal")["step"], row)


def _figures(row: Row, chance: float) -> dict[str, Tensor]:
    start_S = row.attention[0]
    return {
        HR: row.hr,
        f"{HR} at uniform's best accuracy": row.hr_at_best,
        f"{HR} at the end": row.hr_at_end,
        "random baseline": row.floor,
        "random baseline, best of as many shuffles": row.lucky_floor,
        "ceiling, another normal run": row.ceiling,
        "hr(alpha*, alpha_hat) at the start": start_S,
        "s": row.of_passing(row.s),
        "other runs pass hr": row.passes,
        "accuracy at s": row.of_passing(row.accuracy_at_s),
        "best accuracy": row.best,
        "hr above the random baseline": (row.hr > row.lucky_floor).double(),
        "random baseline at most 0.1": (row.floor <= 0.1).double(),
        "attention starts at the random baseline": ((start_S - chance).abs() <= NEAR).double(),
    }


def _turns(trained: Trained, row: Row) -> dict[str, Tensor]:
    """How far the curve of Fig. 4 rises to its peak, and falls after it."""
    best_S = best_step(trained.of("normal")["accuracy"]).evaluation
    gold_SN = at(trained.of("normal", "validation")["alpha_peak"], best_S)
    held_out_ES = paired(gold_SN, trained.of("uniform", "validation")["beta_top"])
    peak_S = at(row.relevance, best_step(held_out_ES).evaluation)
    rise_S, fall_S = peak_S - row.relevance[0], peak_S - row.relevance[-3:].mean(0)
    both_S = (rise_S >= LEAST) & (fall_S >= LEAST)
    return {"rise": rise_S, "fall": fall_S, "rises, then falls": both_S.double()}


def draw_figure_4(shown: Mapping[str, Shown], run: Run) -> None:
    """hr of alpha* in beta_unif and in another run's attention through training."""
    figure, cells = set_panels(list(shown))
    for axis, (step_E, row) in zip(cells, shown.values(), strict=True):
        draw_curve(axis, step_E, row.relevance, colour=BETA, label=r"$\beta_{unif}$")
        draw_curve(axis, step_E, row.attention, colour=ALPHA, label=r"$\hat\alpha$, another run")
        axis.axhline(row.floor.mean().item(), color=OTHER, linestyle="--", label="random baseline")
        axis.set(ylabel=r"hr with $\alpha^{s*}$")
        scale_to_means(axis, row.relevance, row.attention)
    cells[0].legend(frameon=False, fontsize=8)
    save(figure, run, "fig4-relevance-under-uniform-attention")


def draw_table_1(shown: Mapping[str, Shown], run: Run) -> None:
    """Our columns beside the paper's."""
    figure, (axes,) = panels(2, width=5.5)
    names, rows = list(shown), [row for _, row in shown.values()]
    paper = [PAPER_1[name] for name in names]
    agreeing = {
        "ours": [row.hr.mean().item() for row in rows],
        "paper": [theirs.hr for theirs in paper],
        "another normal run": [row.ceiling.mean().item() for row in rows],
    }
    floors = [row.floor.mean().item() for row in rows]
    colours = (BETA, "lightsteelblue", ALPHA)
    bars_with_baseline(axes[0], names, agreeing, floors, colours=colours)
    axes[0].set(ylabel=r"hr($\alpha^{s*}$, $\beta_{unif}$)")
    accuracies = {
        "at s": [row.of_passing(row.accuracy_at_s).mean().item() for row in rows],
        "at s, paper": [theirs.at_s for theirs in paper],
        "best": [row.best.mean().item() for row in rows],
        "best, paper": [theirs.best for theirs in paper],
    }
    colours = ("tab:green", "lightgreen", "tab:purple", "thistle")
    draw_bars(axes[1], names, accuracies, colours=colours)
    axes[1].set(ylabel="accuracy", ylim=(0.4, 1))
    legend_above(axes[1], columns=4)
    save(figure, run, "table1")
