"""Do gates end open or closed, and is it better to prune a trained model than to train with gates?

    headwise reproduce specialized_heads/gates --jobs 6    # 6 minutes on an H200, after prune-all
    headwise reproduce specialized_heads/gates --smoke     # 6 seconds on a CPU

Figure 6, section 6.1, footnote 8. A gate is decided if it is exactly 0, or exactly 1, with a
probability of 0.9. The recorded run counted P(open) alone, which is above 0.9 before the first
update; so claim 148 waits for another. Pruning a trained translator takes 2,000 more updates, as in
the paper.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.pruning import HardConcrete, logistic
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, minus, panels
from headwise_papers.specialized_heads._models import Model, by_name, scored
from headwise_papers.specialized_heads._pruning import (
    SMALL,
    Amount,
    PruningStudy,
    draw_gates,
    prune_translator,
    pruned,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWS = 200_000
NAME = "en-ru"
APART = "from trained less with gates from the start"
GATES = "trace/gates.json"
LARGEST = "largest difference of formulas and draws"
FOOTNOTE: dict[str, Any] = {"number": 149, "where": "footnote 8", "stands_for": "Tatoeba"}


@dataclass(frozen=True)
class Config(PruningStudy):
    """Settings: how many heads are kept, and weights of the penalty."""

    keep: tuple[int, ...] = (58, 26)
    penalties: tuple[float, ...] = (0.01, 0.05)


CLAIMS = (
    Claim.value(LARGEST, 0.0, margin=0.01, exact=True, where="Fig. 6",
                text="The formulas of P(g = 0) and P(g = 1) agree with draws"),
    Claim.value(f"{NAME}: gates decided by value", 1.0, margin=0.1, number=148,
                where="section 6.1", text="Gates end almost completely open or closed",
                stands_for="Tatoeba"),
    *(
        claim
        for heads in (58, 26)
        for claim in (
            Claim.direction(f"{NAME}: {heads} heads: {APART}", paper=0.4,
                            text="Pruning is better than gates from the start", **FOOTNOTE),
            Claim.value(f"{NAME}: {heads} heads: {APART}", 0.4, margin=0.2,
                        text="It is better by 0.2 to 0.6 BLEU", **FOOTNOTE),
        )
    ),
)  # fmt: skip


def models(config: Config) -> Iterator[Job]:
    yield from config.jobs()
    for count in config.keep:
        for model in config.models(NAME):
            pruning = config.pruning(model, Amount(keep=count), start="untrained")
            yield Job(prune_translator, pruning)


def run(config: Config, run: Run) -> dict[str, Result]:
    """Draw gates, prune with them, and train with them from the start."""
    results = {LARGEST: Result([_largest_difference()])}
    scores, entering = scored(NAME, config.models(NAME), config.least_bleu)
    results |= scores
    gates: dict[str, list[float]] = {}
    decided: list[Result] = []
    for penalty in config.penalties if entering else ():
        some = [pruned(config.pruning(model, Amount(penalty=penalty))) for model in entering]
        titles = [f"seed {seed}, lambda {penalty:g}" for seed in range(len(some))]
        gates |= {title: one.prob_open() for title, one in zip(titles, some, strict=True)}
        found = [
            {
                "heads left": float(sum(one.counts().values())),
                "gates decided by value": one.decided(),
            }
            for one in some
        ]
        results |= by_name(f"{NAME}: lambda {penalty:g}: ", found)
        decided.append(results[f"{NAME}: lambda {penalty:g}: gates decided by value"])
    if decided:
        seeds = zip(*(one.values for one in decided), strict=True)
        results[f"{NAME}: gates decided by value"] = Result([sum(x) / len(x) for x in seeds])
    for count in config.keep if entering else ():
        results |= _compared(config, entering, Amount(keep=count))
    run.write_json(GATES, gates)
    return results


def _largest_difference() -> float:
    gate, random = HardConcrete(), torch.Generator().manual_seed(0)
    apart: list[float] = []
    for value in (-2.0, -1.0, 0.0, 1.0, 2.0):
        log_alpha = torch.full((DRAWS,), value)
        drawn = gate.with_noise(log_alpha, logistic(torch.rand(DRAWS, generator=random)))
        one = log_alpha[:1]
        apart.append(abs(float(gate.prob_zero(one)) - float((drawn == 0).float().mean())))
        apart.append(abs(float(gate.prob_one(one)) - float((drawn == 1).float().mean())))
    return max(apart)


def _compared(config: Config, some: list[Model], amount: Amount) -> dict[str, Result]:
    """Return BLEU from the trained translator, with gates from the start, and the difference."""
    starts: Mapping[str, str] = {
        "BLEU from trained": "trained",
        "BLEU with gates from the start": "untrained",
    }
    results = {
        f"{NAME}: {amount}: {name}": Result(
            [pruned(config.pruning(model, amount, start=start)).bleu for model in some]
        )
        for name, start in starts.items()
    }
    return results | {f"{NAME}: {amount}: {APART}": minus(*results.values())}


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw Figure 6, and the gates at the end of training."""
    return {"hard-concrete": _draw_distribution(), **draw_gates(run.read_json(GATES))}


def _draw_distribution() -> "Figure":
    """Draw how the distribution is stretched and clipped, and gates by log alpha."""
    figure, axes = panels(4, width=3.2, height=2.6)
    random = torch.Generator().manual_seed(0)
    gate = HardConcrete()
    stretched, *others = axes[0]
    _draw_stretched(stretched, gate, logistic(torch.rand(DRAWS, generator=random)))
    for panel, log_alpha in zip(others, (-2.0, 0.0, 2.0), strict=True):
        noise = logistic(torch.rand(DRAWS, generator=random))
        values = gate.with_noise(torch.full((DRAWS,), log_alpha), noise)
        panel.hist(values.numpy(), bins=50, range=(0, 1), density=True)
        panel.set_title(f"log alpha {log_alpha:g}", fontsize=8)
        panel.set_xlabel("gate")
    for panel in axes[0]:
        panel.set_ylabel("density")
    return figure


def _draw_stretched(panel: "Axes", gate: HardConcrete, noise: Tensor) -> None:
    low, high = gate.limits
    concrete = torch.sigmoid(noise / gate.temperature)
    stages = {"Concrete": concrete, "stretched": concrete * (high - low) + low}
    stages["clipped"] = gate.with_noise(torch.zeros(len(noise)), noise)
    for label, values in stages.items():
        panel.hist(
            values.numpy(), 60, range=(low, high), density=True, histtype="step", label=label
        )
    panel.set_title("log alpha 0, step by step", fontsize=8)
    panel.set_xlabel("value")
    panel.legend(fontsize=7)


SMOKE = Config(keep=(9,), penalties=(50.0,), **SMALL)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
