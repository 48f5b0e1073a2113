"""Is output relevance under uniform attention large where tokens influence the prediction?

The influence of a token is xi_l = -<gradient of the loss by e_l, e_l>, with e_l its embedding: how
fast the loss falls as the embedding is made longer. Sections 1 and 4.1 of the paper and Fig. 3 say:

- training with uniform attention leads to non-trivial accuracy on every set, so that beta must
  increase on average; it increases for all hidden positions;
- it increases *faster* at positions of more influential tokens;
- xi and beta_unif^{s*} are correlated: hr(xi, beta_unif^{s*}), the share of texts whose most
  influential token is among the largest twentieth of output relevance, is above the random baseline
  on every set. (Its bars have no figures in the text, so it is judged as a claim.)
- This is why attention correlates with the importance of tokens.

The commands; data and training are those of output_relevance/classification:

    headwise reproduce output_relevance/influence                      # 10 minutes on a GPU
    headwise reproduce output_relevance/influence --set trained=FOLDER # seconds; of a finished
                                                                # output_relevance/classification
    headwise reproduce output_relevance/influence --smoke              # 5 seconds

How it is measured, and where the paper leaves a choice:

1. s* is where a run is most accurate on the test texts, each run its own.
2. The paper does not say in which model xi is taken. Both are given: in the uniform model itself,
   and in the normal model of the same number at its own s*. One value a pair.
3. *Above the random baseline*: above the best of as many shuffles as there are evaluations, as in
   output_relevance/classification. (It was one shuffle until results were seen.)
4. xi and beta of one model share its output layer, so that they agree before anything is learnt.
   *Above that before the first update* therefore compares with the same hr, of the same pair, with
   xi and beta of both models as they were drawn. (Added after results were seen.)
5. The rise of beta is beta^s - beta^0 at one position, in the uniform run at its s*, beta^0 before
   the first update: the mean over positions, and the rise at the most influential token. That of
   the uniform run is favoured, as it is found with the same output layer as beta^s; the most
   influential token of the normal run at the same update is not. *Rises faster*: the rise there is
   above the mean over positions. "Share of positions where beta rises" stands for "all positions".
6. "Non-trivial accuracy": more than half-way from chance to the best accuracy of normal runs.
7. Beside it, how often the most influential token of a normal run is highly ranked in that run's
   own attention: what the claim is to explain.
8. xi = -gradient: the released script for classification negates twice and ranks by +gradient.
9. Everything else as in output_relevance/classification.
10. What was found: at s* the most influential token is highly ranked in beta_unif more often than
    by luck, in all 30 pairs for the influence in a normal model (hr 0.37 to 0.69) and in 29 for
    that in the uniform model itself (0.12 on AG News and 20 Newsgroups, to 0.64 on Yelp). The
    former is near the baseline before the first update (0.07 to 0.17) and has risen in all 30
    pairs. The latter begins high, as both share an output layer (0.47 to 0.83), and training lowers
    its mean on every set but Yelp.
11. beta rises on average in every run, but not "for all hidden positions": at 72 % of them on IMDB
    to 94 % on Yelp. At the most influential token of the normal run it rises faster than the mean
    in all 30 runs; at that of the uniform run not surely on AG News (three of five) and 20
    Newsgroups (two of five).
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.measures.relevance import at, best_step, floor
from headwise_papers.output_relevance._classification import SETS, Trained, Training, trained_on
from headwise_papers.output_relevance._grid import bars_with_baseline, scale_to_means, set_panels
from headwise_papers.output_relevance._plots import BETA, OTHER, draw_curve, panels, save
from headwise_papers.output_relevance._table import lucky_floor, paired


@dataclass(frozen=True)
class Config(Training):
    """The settings of the training, see `Training`."""

    trained: str = ""  # folder of a finished output_relevance/classification, read instead of training


OWN, NORMAL = "hr(xi of the uniform run, beta_unif)", "hr(xi of normal runs, beta_unif)"
ATTENTION = "hr(xi, alpha) of normal runs"
RISING = "share of positions where beta rises"
COLOUR = "tab:green"

EXPECTED = (
    *(
        Expected(f"{name}: {claim}", paper=1.0, where=where, partly=0.5)
        for name in SETS
        for claim, where in (
            (f"{OWN} above the random baseline", "Fig. 3"),
            (f"{NORMAL} above the random baseline", "Fig. 3"),
            (f"{OWN} above that before the first update", "Sec. 4.1"),
            (f"{NORMAL} above that before the first update", "Sec. 4.1"),
            ("beta rises on average", "Sec. 4.1"),
            ("beta rises faster where the uniform run is influenced most", "Sec. 4.1"),
            ("beta rises faster where the normal run is influenced most", "Sec. 4.1"),
            ("uniform accuracy is non-trivial", "Sec. 4.1"),
        )
    ),
    *(
        Expected(f"{name}: {RISING}", paper=1.0, where="Sec. 1", margin=0.05, partly=0.3)
        for name in SETS
    ),
)


class Curve(NamedTuple):
    """Of each uniform run through training."""

    step_E: Tensor
    hr_ER: Tensor  # of its influence in its own output relevance
    floor: float
    rises: dict[str, Tensor]  # of beta, (E, R)


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Train on every set, or read what was trained; each figure with one value a run."""
    figures: dict[str, list[float]] = {}
    curves: dict[str, Curve] = {}
    for name in config.sets:
        trained = trained_on(name, config, run, trained=config.trained)
        values, floor_R = _agreement(trained)
        values |= _rises(trained) | _accuracies(trained)
        figures |= {f"{name}: {figure}": value_S.tolist() for figure, value_S in values.items()}
        curves[name] = Curve(
            trained.of("uniform")["step"],
            _through_training(trained),
            floor_R.mean().item(),
            _rise_curves(trained),
        )
    _draw_curves(curves, run)
    _draw_rises(curves, run)
    _draw_figure_3(figures, config, run)
    return figures


def _agreement(trained: Trained) -> tuple[dict[str, Tensor], Tensor]:
    """hr(xi, beta_unif) at s*, before the first update, and of shuffles."""
    uniform, normal = trained.of("uniform"), trained.of("normal")
    best_R, best_S = (best_step(traces["accuracy"]).evaluation for traces in (uniform, normal))
    top_RNP, alpha_SNP = at(uniform["beta_top"], best_R), at(normal["alpha_top"], best_S)
    own_ERN, normal_ESN = (trained.of(x, "influence")["peak"] for x in ("uniform", "normal"))
    own_RN, normal_SN = at(own_ERN, best_R), at(normal_ESN, best_S)
    own_R, normal_S = (paired(peak, top_RNP[None])[0] for peak in (own_RN, normal_SN))
    first_R, first_S = (
        paired(peak[0], uniform["beta_top"][:1])[0] for peak in (own_ERN, normal_ESN)
    )
    lengths, generator = uniform["lengths"], torch.Generator().manual_seed(0)
    own_floor_R, normal_floor_S = (
        floor(peak, top_RNP, lengths, generator).diagonal() for peak in (own_RN, normal_SN)
    )
    lucky_R = lucky_floor(lengths, own_ERN.shape[:2], generator)
    return {
        OWN: own_R,
        NORMAL: normal_S,
        f"{OWN} before the first update": first_R,
        f"{NORMAL} before the first update": first_S,
        "random baseline": (own_floor_R + normal_floor_S) / 2,
        "random baseline, best of as many shuffles": lucky_R,
        f"{OWN} above the random baseline": (own_R > lucky_R).double(),
        f"{NORMAL} above the random baseline": (normal_S > lucky_R).double(),
        f"{OWN} above that before the first update": (own_R > first_R).double(),
        f"{NORMAL} above that before the first update": (normal_S > first_S).double(),
        ATTENTION: paired(normal_SN, alpha_SNP[None])[0],
    }, own_floor_R


def _rise_curves(trained: Trained) -> dict[str, Tensor]:
    """How far beta_unif has risen at every evaluation, on average and where influenced most."""
    return {
        "mean over positions": trained.of("uniform", "influence")["rise"],
        "where the uniform run is influenced most": trained.rise("uniform", where="uniform"),
        "where the normal run is influenced most": trained.rise("uniform", where="normal"),
    }


def _rises(trained: Trained) -> dict[str, Tensor]:
    """The rises at s*, and what the paper says of them."""
    best_R = best_step(trained.of("uniform")["accuracy"]).evaluation
    rise = {where: at(curve_ER, best_R) for where, curve_ER in _rise_curves(trained).items()}
    mean_R = rise["mean over positions"]
    return {
        **{f"rise of beta, {where}": value_R for where, value_R in rise.items()},
        RISING: at(trained.of("uniform", "influence")["rising"], best_R),
        "beta rises on average": (mean_R > 0).double(),
        **{
            f"beta rises faster {where}": (value_R > mean_R).double()
            for where, value_R in rise.items()
            if where.startswith("where")
        },
    }


def _accuracies(trained: Trained) -> dict[str, Tensor]:
    uniform_R, normal_S = (
        best_step(trained.of(x)["accuracy"]).value for x in ("uniform", "normal")
    )
    half_way = 0.5 + (normal_S.mean() - 0.5) / 2
    return {
        "uniform best accuracy": uniform_R,
        "normal best accuracy": normal_S,
        "uniform accuracy is non-trivial": (uniform_R > half_way).double(),
    }


def _through_training(trained: Trained) -> Tensor:
    """hr(xi, beta_unif) of each uniform run at every evaluation, (E, R)."""
    peak_ERN = trained.of("uniform", "influence")["peak"]
    top_ERNP = trained.of("uniform")["beta_top"]
    pairs = zip(peak_ERN, top_ERNP, strict=True)
    return torch.stack([paired(peak, top[None])[0] for peak, top in pairs])


def _draw_curves(curves: dict[str, Curve], run: Run) -> None:
    figure, cells = set_panels(list(curves))
    for axis, seen in zip(cells, curves.values(), strict=True):
        draw_curve(axis, seen.step_E, seen.hr_ER, colour=BETA, label=r"hr($\xi$, $\beta_{unif}$)")
        axis.axhline(seen.floor, color=OTHER, linestyle="--", label="random baseline")
        scale_to_means(axis, seen.hr_ER)
    cells[0].legend(frameon=False, fontsize=8)
    save(figure, run, "influence-through-training")


def _draw_rises(curves: dict[str, Curve], run: Run) -> None:
    figure, cells = set_panels(list(curves))
    for axis, seen in zip(cells, curves.values(), strict=True):
        for (label, rise_ER), colour in zip(seen.rises.items(), (OTHER, BETA, COLOUR), strict=True):
            draw_curve(axis, seen.step_E, rise_ER, colour=colour, label=label)
        means = [rise_ER.mean(1) for rise_ER in seen.rises.values()]
        low, high = (torch.stack(means).min().item(), torch.stack(means).max().item())
        axis.set(ylabel=r"rise of $\beta_{unif}$", ylim=(1.1 * low - 0.1, 1.1 * high + 0.1))
    cells[0].legend(frameon=False, fontsize=7)
    save(figure, run, "rise-of-relevance")


def _draw_figure_3(figures: dict[str, list[float]], config: Config, run: Run) -> None:
    figure, ((axis,),) = panels(1, width=8.0)

    def means(figure: str) -> list[float]:
        return [fmean(figures[f"{name}: {figure}"]) for name in config.sets]

    bars = {
        r"$\xi$ of the uniform run": means(OWN),
        "before update 1": means(f"{OWN} before the first update"),
        r"$\xi$ of normal runs": means(NORMAL),
        "normal, before update 1": means(f"{NORMAL} before the first update"),
    }
    floors = means("random baseline")
    colours = (BETA, "lightsteelblue", COLOUR, "lightgreen")
    bars_with_baseline(axis, config.sets, bars, floors, colours=colours)
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
