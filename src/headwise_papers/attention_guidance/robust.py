"""Under how many settings does an encoder learn at all, with guidance and without?

Section 4.5: plain encoders are sensitive to rate and warm-up, guided ones are not.

    headwise reproduce attention_guidance/robust --jobs 4   # H200: 35 minutes, estimated

- Cells (rate, warm-up) are compared: one can decide a mean.
- Runs are a hundred times shorter; no encoder of 12 layers converges.
- In `small` guidance lowers the loss in six of eight cells; two are undecided.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from headwise.config import changed, from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ENGLISH,
    GUIDED,
    MLM,
    STANDS_FOR,
    TINY,
    Encoders,
    OneCorpusConfig,
    Trained,
    models,
    part_of,
    trained_parts,
)
from headwise_papers.attention_guidance._grid import (
    MORE,
    Cell,
    Ended,
    by_arm,
    cell_difference,
    compared,
)
from headwise_papers.core import Claim, Experiment, Result, panels, trained_in_parallel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = (MLM, GUIDED)


@dataclass(frozen=True)
class Config(OneCorpusConfig):
    """Grid of settings, each of which is pre-trained with."""

    learning_rates: tuple[float, ...] = (1e-4, 2e-4, 5e-4)
    warmups: tuple[float, ...] = (0.0, 0.05, 0.25)  # shares of the updates
    dropouts: tuple[float, ...] = (0.0, 0.1)  # of attention weights
    seeds: int = 1
    changes: tuple[str, ...] = ("vocab_size=8000", "fit.steps=2000", "batch_size=16")

    def __post_init__(self) -> None:
        if not self.learning_rates or not self.warmups or not self.dropouts:
            raise ValueError("The grid needs one learning rate, warm-up and dropout or more.")
        super().__post_init__()

    @property
    def cells(self) -> list[Cell]:
        """Settings of the grid."""
        return list(product(self.learning_rates, self.warmups, self.dropouts))

    def encoders(self) -> Encoders:
        """Yield both arms of each seed and setting."""
        for seed, (rate, warmup, dropout), arm in product(range(self.seeds), self.cells, ARMS):
            plain = self.encoder(arm, seed)
            changes = {
                "fit.learning_rate": rate,
                "fit.warmup": round(warmup * plain.fit.steps),
                "model.attention_dropout": dropout,
            }
            yield self.part, arm, changed(plain, changes)


def _claims() -> Iterator[Claim]:
    for cell in product((1e-4, 5e-4), (0.0, 0.25), (0.1,)):
        yield Claim.direction(
            f"{part_of(ENGLISH, 12)}: {cell_difference(cell)}",
            sign=-1,
            number=123,
            where="Section 4.5",
            text="Guidance lowers the loss everywhere",
            stands_for=STANDS_FOR,
        )
    for layers, number, stands_for in ((12, 123, STANDS_FOR), (4, None, "4 layers")):
        yield Claim.direction(
            f"{part_of(ENGLISH, layers)}: {MORE}",
            number=number,
            where="Section 4.5",
            text="Guided converges under more settings",
            stands_for=stands_for,
        )


CLAIMS = tuple(_claims())


def run(config: Config, out: Run) -> dict[str, Result]:
    """Train under every setting; results have one value per setting and seed."""
    size = len(config.cells)
    found = {
        arm: [list(map(_ended, runs[at : at + size])) for at in range(0, len(runs), size)]
        for arm, runs in trained_parts(config)[config.part].items()
    }
    results = {**by_arm(config.cells, found), **compared(config.cells, found)}
    return {f"{config.part}: {name}": result for name, result in results.items()}


def _ended(one: Trained) -> Ended:
    if one.diverged:
        return Ended(None, False, one.unigram_loss, None)
    figures = one.run.figures()
    minutes = None if trained_in_parallel([one.run]) else figures["minutes"]
    return Ended(figures["validation_loss"], one.converged, one.unigram_loss, minutes)


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw the loss under every setting: one column per setting, one dot per seed."""
    config = from_json(Config, out.config())
    part, cells, seeds = config.part, config.cells, config.seeds
    figure, ((panel,),) = panels(1, width=max(5.0, 0.8 + 0.5 * len(cells)), height=3.8)
    for column in range(1, len(cells), 2):
        panel.axvspan(column - 0.5, column + 0.5, color="black", alpha=0.05, linewidth=0)
    for arm, side in zip(ARMS, (-0.2, 0.2), strict=True):
        losses = results[f"{part}: {arm}: validation loss"].values
        at = [
            column + side + 0.2 * (seed + 0.5) / seeds - 0.1
            for seed in range(seeds)
            for column in range(len(cells))
        ]
        panel.plot(at, losses, "o", markersize=5, alpha=0.7, markeredgewidth=0, label=arm)
    floor = results[f"{part}: unigram loss"].mean
    panel.axhline(floor, color="grey", linestyle="--", linewidth=1.0, label="unigram loss")
    labels = [f"{rate:g}\n{warmup:.0%}\n{dropout:g}" for rate, warmup, dropout in cells]
    panel.set_xticks(range(len(cells)), labels, fontsize=8)
    panel.tick_params(axis="y", labelsize=8)
    panel.set_xlim(-0.5, len(cells) - 0.5)
    panel.set_xlabel("from above: learning rate, warm-up, attention dropout", fontsize=8)
    panel.set_ylabel("validation loss, one dot per seed", fontsize=8)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return {"grid": figure}


SMOKE = Config(  # one rate is so large that the training diverges
    corpus="oromo",
    layers=1,
    learning_rates=(1e-2, 1e38),
    warmups=(0.1,),
    dropouts=(0.0,),
    changes=TINY,
)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
