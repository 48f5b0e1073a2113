"""Can attention be learnt when output relevance is frozen?

A *frozen* classifier learns the layer that scores and nothing else; all its other parameters, and
with them output relevance, stay as they were drawn. Section 3.4 and Table 3 of the paper say:

- hr(alpha*, alpha_frozen), with alpha* the attention of a normal run where it is most accurate, is
  9, 17, 19, 14, 15 and 8 % on the six sets: "not correlated" with alpha*;
- on every set that is less than hr(alpha*, beta_unif) of Table 1: output relevance can be learnt
  without attention, attention not without output relevance.

The commands; data and training are those of relevance/classification:

    headwise reproduce relevance/frozen                      # 10 minutes on a GPU
    headwise reproduce relevance/frozen --set trained=FOLDER # seconds; of a finished
                                                             # relevance/classification
    headwise reproduce relevance/frozen --smoke              # 5 seconds

How it is measured, and where ours differs from the paper or it leaves a choice:

1. The evaluation s' with the largest hr is chosen on the validation texts and hr reported on the
   test texts, for each pair of a normal and a frozen run; a figure is the mean over frozen runs,
   one value a normal run. The claim compares it with a beta_unif chosen the same way; the paper's
   column, which is Table 1's and chosen on the test texts, stands beside it.
2. "Not correlated" has no figure in the paper. Given is how far hr is above the random baseline,
   and the claim is judged as: at most half-way from the baseline to what another normal run has.
3. Embeddings of a frozen model are GloVe's, as those of the others, not random.
4. Everything else as in relevance/classification.
5. What was found: frozen attention agrees less with alpha* than beta_unif does on five of six sets,
   but it is two to five times the random baseline, and on 20 Newsgroups as high as beta_unif. A
   frozen model here has GloVe's vectors, which say much about words; the paper's may have had none.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from torch import Tensor

from headwise.analysis.relevance import agreement, at, best_step
from headwise.experiments.base import Expected, Experiment
from headwise.experiments.relevance._classification import Trained, Training, trained_on
from headwise.experiments.relevance._grid import bars_with_baseline, scale_to_means, set_panels
from headwise.experiments.relevance._plots import BETA, OTHER, draw_curve, panels, save
from headwise.experiments.relevance._table import table_row
from headwise.models.rnn import Variant
from headwise.recording.run import Run


@dataclass(frozen=True)
class Config(Training):
    """The settings of the training, see `Training`."""

    trained: str = ""  # folder of a finished relevance/classification, read instead of training


PAPER = {
    "imdb": 0.09,
    "ag_news": 0.17,
    "newsgroups": 0.19,
    "sst": 0.14,
    "amazon": 0.15,
    "yelp": 0.08,
}
PAPER_UNIFORM = {
    "imdb": 0.18,
    "ag_news": 0.42,
    "newsgroups": 0.36,
    "sst": 0.24,
    "amazon": 0.49,
    "yelp": 0.58,
}
FROZEN, UNIFORM = "hr(alpha*, alpha_frozen)", "hr(alpha*, beta_unif)"
COLOUR = "tab:orange"

EXPECTED = (
    *(
        Expected(f"{name}: {FROZEN}", paper=hr, where="Table 3", margin=0.05, partly=0.1)
        for name, hr in PAPER.items()
    ),
    *(
        Expected(f"{name}: {UNIFORM}", paper=hr, where="Table 3", margin=0.05, partly=0.15)
        for name, hr in PAPER_UNIFORM.items()
    ),
    *(
        Expected(f"{name}: {claim}", paper=1.0, where="Table 3", partly=0.5)
        for name in PAPER
        for claim in ("frozen below beta_unif", "frozen not correlated")
    ),
)


class Curves(NamedTuple):
    """hr of gold attention through training, mean over the other runs."""

    step_E: Tensor
    frozen_ES: Tensor
    uniform_ES: Tensor
    floor_S: Tensor


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train on every set, or read what was trained; each figure with one value a gold run."""
    figures: dict[str, list[float]] = {}
    curves: dict[str, Curves] = {}
    for name in config.sets:
        trained = trained_on(name, config, run, trained=config.trained)
        values, curves[name] = _measure(trained)
        figures |= {f"{name}: {figure}": value_S.tolist() for figure, value_S in values.items()}
    _draw_curves(curves, run)
    _draw_table(figures, config, run)
    return figures


def _measure(trained: Trained) -> tuple[dict[str, Tensor], Curves]:
    row = table_row(trained.of("normal"), trained.of("uniform"))
    frozen_ESR = _pairs(trained, "frozen", "alpha_top", "test")
    uniform_ESR = _pairs(trained, "uniform", "beta_top", "test")
    frozen_S = _chosen(frozen_ESR, _pairs(trained, "frozen", "alpha_top", "validation"))
    uniform_S = _chosen(uniform_ESR, _pairs(trained, "uniform", "beta_top", "validation"))
    half_way_S = (row.floor + row.ceiling) / 2
    values = {
        FROZEN: frozen_S,
        f"{UNIFORM} chosen on validation": uniform_S,
        UNIFORM: row.hr,
        "random baseline": row.floor,
        "ceiling, another normal run": row.ceiling,
        "frozen above the random baseline by": frozen_S - row.floor,
        "frozen below beta_unif": (frozen_S < uniform_S).double(),
        "frozen not correlated": (frozen_S <= half_way_S).double(),
        "frozen best accuracy": best_step(trained.of("frozen")["accuracy"]).value,
    }
    step_E = trained.of("frozen")["step"]
    return values, Curves(step_E, frozen_ESR.mean(-1), uniform_ESR.mean(-1), row.floor)


def _pairs(trained: Trained, variant: Variant, measure: str, texts: str) -> Tensor:
    """hr of every normal run's best attention in every other run's measure, (E, S, R)."""
    best_S = best_step(trained.of("normal")["accuracy"]).evaluation
    gold_SN = at(trained.of("normal", texts)["alpha_peak"], best_S)
    return agreement(gold_SN, trained.of(variant, texts)[measure])


def _chosen(test_ESR: Tensor, validation_ESR: Tensor) -> Tensor:
    """hr on the test texts where it is largest on the validation texts, mean over other runs."""
    return at(test_ESR, best_step(validation_ESR).evaluation).mean(-1)


def _draw_curves(curves: dict[str, Curves], run: Run) -> None:
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


def _draw_table(figures: dict[str, list[float]], config: Config, run: Run) -> None:
    figure, ((axis,),) = panels(1, width=8.0)

    def means(figure: str) -> list[float]:
        return [fmean(figures[f"{name}: {figure}"]) for name in config.sets]

    bars = {
        "frozen": means(FROZEN),
        "frozen, paper": [PAPER[name] for name in config.sets],
        r"$\beta_{unif}$": means(UNIFORM),
        r"$\beta_{unif}$, paper": [PAPER_UNIFORM[name] for name in config.sets],
    }
    colours = (COLOUR, "moccasin", BETA, "lightsteelblue")
    bars_with_baseline(axis, config.sets, bars, means("random baseline"), colours=colours)
    axis.set(ylabel=r"hr with $\alpha^{s*}$")
    save(figure, run, "table3")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(
        sets=("sst",), seeds=2, updates=40, hidden=32, attention=32, rate=5e-3, held_out=100
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)
