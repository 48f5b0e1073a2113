"""Table 3: can attention be learned when output relevance is frozen?

A *frozen* classifier learns the layer that scores and nothing else. The best evaluation is chosen
on validation texts. *Not correlated*: hr is at most the best of as many shuffles as there are
evaluations (half-way to another normal run until results were seen).

    headwise reproduce output_relevance/frozen --set embeddings=random --save --part random
    headwise reproduce output_relevance/frozen      # seconds, with the models of `classification`
"""

from typing import TYPE_CHECKING

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
from headwise_papers.measures.relevance import at, best_step
from headwise_papers.models.rnn import Variant
from headwise_papers.output_relevance._classifiers import EVERY_SET, SMOKE, Config, Trained, models
from headwise_papers.output_relevance._runs import (
    HR,
    limit_shares,
    named,
    paired,
    pooled,
    table_row,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {
    "imdb": 0.09,
    "ag_news": 0.17,
    "newsgroups": 0.19,
    "sst": 0.14,
    "amazon": 0.15,
    "yelp_reviews": 0.08,
}
FROZEN, BELOW, UNCORRELATED = (
    "hr(alpha*, alpha_frozen)",
    "frozen below beta_unif",
    "frozen not correlated",
)
CHOSEN = f"{HR} chosen on validation"
MEASURES: tuple[tuple[Variant, str], ...] = (("frozen", "alpha_top"), ("uniform", "beta_top"))


CLAIMS = (
    *(
        Claim.value(
            f"{name}, random: {FROZEN}", hr, margin=0.05, number=28, text=f"frozen hr, {name}"
        )
        for name, hr in PAPER.items()
        if name != "yelp_reviews"
    ),
    *(
        Claim.share(f"all sets, random: {name}", threshold=EVERY_SET, number=number, text=name)
        for number, name in ((29, BELOW), (30, UNCORRELATED))
    ),
    Claim.share(f"all sets: {UNCORRELATED}", threshold=EVERY_SET, text=f"GloVe: {UNCORRELATED}"),
)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Compare frozen with normal and uniform models; one value per normal run."""
    results: dict[str, Result] = {}
    for name in config.sets:
        results |= _results(Trained.on(name, config), config.part(name))
    parts = [config.part(name) for name in config.sets]
    for name in (BELOW, UNCORRELATED):
        results[f"{config.part('all sets')}: {name}"] = pooled(results, name, parts)
    return results


def _results(trained: Trained, part: str) -> dict[str, Result]:
    row = table_row(trained.of("normal"), trained.of("uniform"))
    frozen_S, uniform_S = (
        at(_pairs(trained, *key, "test"), best_step(_pairs(trained, *key, "validation")).evaluation)
        for key in MEASURES
    )
    values = {
        FROZEN: frozen_S,
        CHOSEN: uniform_S,
        HR: row.hr,
        "random baseline": row.floor,
        "random baseline, best of as many shuffles": row.lucky_floor,
        "ceiling, another normal run": row.ceiling,
        BELOW: frozen_S < uniform_S,
        UNCORRELATED: frozen_S <= row.lucky_floor,
        "frozen best accuracy": best_step(trained.of("frozen")["accuracy"]).value,
    }
    over = {"frozen - random baseline": frozen_S - row.floor}
    return named(values, part=part) | named(over, part=part, kind="difference")


def _pairs(trained: Trained, variant: Variant, measure: str, texts: str) -> Tensor:
    """Return hr of normal runs' attention in a measure of the runs paired with them, (E, S)."""
    best_S = best_step(trained.of("normal")["accuracy"]).evaluation
    gold_SN = at(trained.of("normal", texts)["alpha_peak"], best_S)
    return paired(gold_SN, trained.of(variant, texts)[measure])


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw hr through training, and Table 3 as bars with the paper's."""
    config = from_json(Config, out.config())
    through, cells = named_panels(config.sets)
    for name, axes in cells.items():
        trained = Trained.on(name, config)
        step_E = trained.of("frozen")["step"]
        frozen_ES, uniform_ES = (_pairs(trained, *key, "test") for key in MEASURES)
        curves = {"frozen": curve(step_E, frozen_ES), "beta_unif": curve(step_E, uniform_ES)}
        draw_lines(axes, curves, xlabel="update", ylabel="hr with alpha*", title=name)
        limit_shares(axes)

    def found(result: str) -> dict[str, Result]:
        return {name: results[f"{config.part(name)}: {result}"] for name in config.sets}

    table, ((axes,),) = panels(1, width=8.0)
    paper = {name: Result([PAPER[name]]) for name in config.sets if name in PAPER}
    bars = {"frozen": found(FROZEN), "frozen, paper": paper, "beta_unif": found(CHOSEN),
            "random baseline": found("random baseline")}  # fmt: skip
    draw_bars(axes, {name: group for name, group in bars.items() if group}, ylabel="hr")
    return {"frozen-through-training": through, "table3": table}


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
