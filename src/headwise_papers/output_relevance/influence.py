"""Section 4.1, Fig. 3: is output relevance large where tokens influence the prediction?

Influence is xi = -<gradient of the loss by e, e>, with e a token's embedding (GloVe). The paper
does not say in which model: here in the uniform one and in the normal one paired with it, each
where it is most accurate. xi and beta of one model share its output layer and agree before anything
is learned: hence the control *before the first update*, added after results were seen.

    headwise reproduce output_relevance/influence   # seconds, with the models of `classification`
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Result,
    curve,
    draw_bars,
    draw_lines,
    named_panels,
    panels,
)
from headwise_papers.measures.relevance import at, best_step, floor
from headwise_papers.output_relevance._classifiers import EVERY_SET, SMOKE, Config, Trained, models
from headwise_papers.output_relevance._runs import limit_shares, lucky_floor, named, paired, pooled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN, NORMAL = "hr(xi of the uniform run, beta_unif)", "hr(xi of normal runs, beta_unif)"
FLOOR, FIRST = "above the random baseline", "above that before the first update"
BEFORE = "before the first update"
RISING, RISES, LEARNED = (
    "share of positions where beta rises",
    "beta rises on average",
    "uniform accuracy is non-trivial",
)
MEAN, WHERE_UNIFORM, WHERE_NORMAL = (
    "mean over positions",
    "where the uniform run is influenced most",
    "where the normal run is influenced most",
)
FASTER = {where: f"beta rises faster {where}" for where in (WHERE_UNIFORM, WHERE_NORMAL)}
POOLED = (LEARNED, RISES, RISING, *FASTER.values(),
          *(f"{xi} {what}" for what in (FLOOR, FIRST) for xi in (OWN, NORMAL)))  # fmt: skip

SHORT = {OWN: "hr, xi of uniform runs", NORMAL: "hr, xi of normal runs"}
CLAIMS = (
    Claim.share(f"all sets: {LEARNED}", threshold=EVERY_SET, number=31, text=LEARNED),
    Claim.value(f"all sets: {RISING}", 1.0, margin=0.05, number=32, text=RISING),
    *(
        Claim.share(f"all sets: {x}", threshold=EVERY_SET, number=33, text=f"faster {where}")
        for where, x in FASTER.items()
    ),
    *(
        Claim.share(f"all sets: {xi} {FLOOR}", threshold=EVERY_SET, number=34, text=text)
        for xi, text in SHORT.items()
    ),
    *(
        Claim.share(f"all sets: {xi} {FIRST}", threshold=EVERY_SET, text=f"{text}, above the start")
        for xi, text in SHORT.items()
    ),
)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Compare influence with output relevance; one value per run."""
    results: dict[str, Result] = {}
    for name in config.sets:
        trained = Trained.on(name, config)
        values = _agreement(trained) | _rises(trained) | _accuracies(trained)
        results |= named(values, part=config.part(name))
    parts = [config.part(name) for name in config.sets]
    for name in POOLED:
        results[f"{config.part('all sets')}: {name}"] = pooled(results, name, parts)
    return results


def _agreement(trained: Trained) -> dict[str, Tensor]:
    """Return hr(xi, beta_unif) at s*, before the first update, and of shuffles."""
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
        f"{OWN} {BEFORE}": first_R,
        f"{NORMAL} {BEFORE}": first_S,
        "random baseline": (own_floor_R + normal_floor_S) / 2,
        "random baseline, best of as many shuffles": lucky_R,
        f"{OWN} {FLOOR}": own_R > lucky_R,
        f"{NORMAL} {FLOOR}": normal_S > lucky_R,
        f"{OWN} {FIRST}": own_R > first_R,
        f"{NORMAL} {FIRST}": normal_S > first_S,
        "hr(xi, alpha) of normal runs": paired(normal_SN, alpha_SNP[None])[0],
    }


def _rise_curves(trained: Trained) -> dict[str, Tensor]:
    """Return how far beta_unif has risen at every evaluation, (E, R) each."""
    return {
        MEAN: trained.of("uniform", "influence")["rise"],
        WHERE_UNIFORM: trained.rise("uniform", where="uniform"),
        WHERE_NORMAL: trained.rise("uniform", where="normal"),
    }


def _rises(trained: Trained) -> dict[str, Tensor]:
    best_R = best_step(trained.of("uniform")["accuracy"]).evaluation
    rise = {where: at(curve_ER, best_R) for where, curve_ER in _rise_curves(trained).items()}
    return {
        **{f"rise of beta, {where}": value_R for where, value_R in rise.items()},
        RISING: at(trained.of("uniform", "influence")["rising"], best_R),
        RISES: rise[MEAN] > 0,
        **{name: rise[where] > rise[MEAN] for where, name in FASTER.items()},
    }


def _accuracies(trained: Trained) -> dict[str, Tensor]:
    uniform_R, normal_S = (
        best_step(trained.of(x)["accuracy"]).value for x in ("uniform", "normal")
    )
    return {
        "uniform best accuracy": uniform_R,
        "normal best accuracy": normal_S,
        LEARNED: uniform_R > 0.5 + (normal_S.mean() - 0.5) / 2,
    }


def _hr_curve(trained: Trained) -> Tensor:
    """Return hr(xi, beta_unif) of each uniform run at every evaluation, (E, R)."""
    peak_ERN = trained.of("uniform", "influence")["peak"]
    top_ERNP = trained.of("uniform")["beta_top"]
    pairs = zip(peak_ERN, top_ERNP, strict=True)
    return torch.stack([paired(peak, top[None])[0] for peak, top in pairs])


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw hr and the rise of beta through training, and Fig. 3."""
    config = from_json(Config, out.config())
    through, left = named_panels(config.sets)
    rising, right = named_panels(config.sets)
    for name in config.sets:
        trained = Trained.on(name, config)
        step_E = trained.of("uniform")["step"]
        hr = {OWN: curve(step_E, _hr_curve(trained))}
        draw_lines(left[name], hr, xlabel="update", ylabel="hr", title=name, legend=False)
        limit_shares(left[name])
        rises = {where: curve(step_E, x_ER) for where, x_ER in _rise_curves(trained).items()}
        draw_lines(right[name], rises, xlabel="update", ylabel="rise of beta_unif", title=name)

    def found(result: str) -> dict[str, Result]:
        return {name: results[f"{config.part(name)}: {result}"] for name in config.sets}

    bars, ((axes,),) = panels(1, width=8.0)
    groups = (OWN, f"{OWN} {BEFORE}", NORMAL, f"{NORMAL} {BEFORE}", "random baseline")
    draw_bars(axes, {name: found(name) for name in groups}, ylabel="hr(xi, beta_unif)")
    return {
        "fig3-influence": bars,
        "influence-through-training": through,
        "rise-of-relevance": rising,
    }


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
