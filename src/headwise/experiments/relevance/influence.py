"""Is output relevance under uniform attention large where tokens influence the prediction?

The influence of a token is xi_l = -<gradient of the loss by e_l, e_l>, with e_l its embedding: how
fast the loss falls as the embedding is made longer. Section 4.1 of the paper and Fig. 3 say:

- training with uniform attention leads to non-trivial accuracy on every set;
- xi and beta_unif^{s*} are correlated: hr(xi, beta_unif^{s*}), the share of texts whose most
  influential token is among the largest twentieth of output relevance, is above the random baseline
  on every set. (Its bars have no figures in the text, so it is judged as a claim.)
- This is why attention correlates with the importance of tokens.

The commands; data and training are those of relevance/classification:

    headwise reproduce relevance/influence                      # 10 minutes on a GPU
    headwise reproduce relevance/influence --set trained=FOLDER # seconds; of a finished
                                                                # relevance/classification
    headwise reproduce relevance/influence --smoke              # 5 seconds

How it is measured, and where the paper leaves a choice:

1. s* is where a run is most accurate on the test texts, each run its own.
2. The paper does not say in which model xi is taken. Both are given: in the uniform model itself
   (one value a uniform run), and in normal models at their s* (one value a normal run, the mean
   over uniform runs). Both must be above the random baseline of the same run, one shuffle.
3. "Non-trivial accuracy": more than half-way from chance to the best accuracy of normal runs.
4. Beside it, how often the most influential token of a normal run is highly ranked in that run's
   own attention: what the claim is to explain.
5. xi = -gradient: the released script for classification negates twice and ranks by +gradient.
6. Everything else as in relevance/classification.
7. What was found: it holds on every set, though in the uniform model the agreement is largest in
   the first updates, and on 20 Newsgroups nearly gone in the end.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.analysis.relevance import agreement, at, best_step, floor
from headwise.experiments.base import Expected, Experiment
from headwise.experiments.relevance._classification import SETS, Trained, Training, trained_on
from headwise.experiments.relevance._grid import bars_with_baseline, scale_to_means, set_panels
from headwise.experiments.relevance._plots import BETA, OTHER, draw_curve, panels, save
from headwise.recording.run import Run


@dataclass(frozen=True)
class Config(Training):
    """The settings of the training, see `Training`."""

    trained: str = ""  # folder of a finished relevance/classification, read instead of training


OWN, NORMAL = "hr(xi of the uniform run, beta_unif)", "hr(xi of normal runs, beta_unif)"
ATTENTION = "hr(xi, alpha) of normal runs"
COLOUR = "tab:green"

EXPECTED = tuple(
    Expected(f"{name}: {claim}", paper=1.0, where=where, partly=0.5)
    for name in SETS
    for claim, where in (
        (f"{OWN} above the random baseline", "Fig. 3"),
        (f"{NORMAL} above the random baseline", "Fig. 3"),
        ("uniform accuracy is non-trivial", "Sec. 4.1"),
    )
)


class Curve(NamedTuple):
    """hr of a uniform run's influence in its own output relevance, through training."""

    step_E: Tensor
    hr_ER: Tensor
    floor: float


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train on every set, or read what was trained; each figure with one value a run."""
    figures: dict[str, list[float]] = {}
    curves: dict[str, Curve] = {}
    for name in config.sets:
        trained = trained_on(name, config, run, trained=config.trained)
        values, curves[name] = _measure(trained)
        figures |= {f"{name}: {figure}": value_S.tolist() for figure, value_S in values.items()}
    _draw_curves(curves, run)
    _draw_figure_3(figures, config, run)
    return figures


def _measure(trained: Trained) -> tuple[dict[str, Tensor], Curve]:
    uniform, normal = trained.of("uniform"), trained.of("normal")
    best_R, best_S = (best_step(traces["accuracy"]) for traces in (uniform, normal))
    top_RNP = at(uniform["beta_top"], best_R.evaluation)
    own_RN = at(trained.of("uniform", "influence")["peak"], best_R.evaluation)
    normal_SN = at(trained.of("normal", "influence")["peak"], best_S.evaluation)
    own_R = agreement(own_RN, top_RNP[None])[0].diagonal()
    normal_S = agreement(normal_SN, top_RNP[None])[0].mean(-1)
    alpha_SNP = at(normal["alpha_top"], best_S.evaluation)
    generator = torch.Generator().manual_seed(0)
    own_floor_R = floor(own_RN, top_RNP, uniform["lengths"], generator).diagonal()
    normal_floor_S = floor(normal_SN, top_RNP, uniform["lengths"], generator).mean(-1)
    half_way = 0.5 + (best_S.value.mean() - 0.5) / 2
    values = {
        OWN: own_R,
        NORMAL: normal_S,
        "random baseline": (own_floor_R + normal_floor_S) / 2,
        f"{OWN} above the random baseline": (own_R > own_floor_R).double(),
        f"{NORMAL} above the random baseline": (normal_S > normal_floor_S).double(),
        ATTENTION: agreement(normal_SN, alpha_SNP[None])[0].diagonal(),
        "uniform best accuracy": best_R.value,
        "normal best accuracy": best_S.value,
        "uniform accuracy is non-trivial": (best_R.value > half_way).double(),
    }
    return values, Curve(uniform["step"], _through_training(trained), own_floor_R.mean().item())


def _through_training(trained: Trained) -> Tensor:
    """hr(xi, beta_unif) of each uniform run at every evaluation, (E, R)."""
    peak_ERN = trained.of("uniform", "influence")["peak"]
    top_ERNP = trained.of("uniform")["beta_top"]
    pairs = zip(peak_ERN, top_ERNP, strict=True)
    return torch.stack([agreement(peak, top[None])[0].diagonal() for peak, top in pairs])


def _draw_curves(curves: dict[str, Curve], run: Run) -> None:
    figure, cells = set_panels(list(curves))
    for axis, seen in zip(cells, curves.values(), strict=True):
        draw_curve(axis, seen.step_E, seen.hr_ER, colour=BETA, label=r"hr($\xi$, $\beta_{unif}$)")
        axis.axhline(seen.floor, color=OTHER, linestyle="--", label="random baseline")
        scale_to_means(axis, seen.hr_ER)
    cells[0].legend(frameon=False, fontsize=8)
    save(figure, run, "influence-through-training")


def _draw_figure_3(figures: dict[str, list[float]], config: Config, run: Run) -> None:
    figure, ((axis,),) = panels(1, width=8.0)

    def means(figure: str) -> list[float]:
        return [fmean(figures[f"{name}: {figure}"]) for name in config.sets]

    bars = {r"$\xi$ of the uniform run": means(OWN), r"$\xi$ of normal runs": means(NORMAL)}
    floors = means("random baseline")
    bars_with_baseline(axis, config.sets, bars, floors, colours=(BETA, COLOUR))
    axis.set(ylabel=r"hr($\xi$, $\beta_{unif}^{s*}$)")
    save(figure, run, "fig3-influence")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(
        sets=("sst",), seeds=2, updates=40, hidden=32, attention=32, rate=5e-3, held_out=100
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)
