"""How many heads should be guided: a quarter, half, three quarters or all?

The paper says that half works well; Table 8 has losses of half and all.

    headwise reproduce attention_guidance/fraction --jobs 4   # H200: 23 minutes, estimated

- One head each goes to [Next] and [Prev], others to [First]. A pattern's loss is the mean over its
  heads, so their number does not change its strength.
- Quarters were trained in `small` alone: 4 layers, 4 heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ALL,
    ARMS,
    ENGLISH,
    GUIDED,
    MLM,
    STANDS_FOR,
    TINY,
    Trained,
    costs,
    difference,
    encoder_config,
    finished,
    jobs,
    loss_curves,
    losses,
    part_of,
    plateau,
    trained,
)
from headwise_papers.core import Claim, Experiment, Job, Result
from headwise_papers.recipes.pretraining import PretrainingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OTHERS = tuple(arm for arm in ARMS if arm not in (MLM, GUIDED))
PAIRS = (*((arm, MLM) for arm in ARMS if arm != MLM), *((GUIDED, arm) for arm in OTHERS))
PAPER = {MLM: 2.47, GUIDED: 2.29, ALL: 2.31}  # validation loss, Table 8
TABLE_8 = ((GUIDED, MLM), (ALL, MLM), (GUIDED, ALL))


@dataclass(frozen=True)
class Config:
    """Which encoders are pre-trained."""

    corpus: str = ENGLISH
    layers: int = 12
    arms: tuple[str, ...] = tuple(ARMS)
    seeds: int = 3
    changes: tuple[str, ...] = ()  # of every pre-training, for example fit.steps=500
    finished: str = ""  # folder of finished runs, which are read instead of the cache

    def __post_init__(self) -> None:
        for _ in _settings(self):  # wrong settings raise before there is a folder
            pass


CLAIMS = (
    *(
        Claim.direction(
            difference(part_of(ENGLISH, 12), "validation", *pair),
            sign=-1,
            paper=round(PAPER[pair[0]] - PAPER[pair[1]], 2),
            number=121,
            where="Table 8",
            text="Validation loss: half < all < none",
            stands_for=STANDS_FOR,
        )
        for pair in TABLE_8
    ),
    *(
        Claim.direction(
            difference(part_of(ENGLISH, 4), "validation", GUIDED, arm),
            sign=-1,
            text="Validation loss: half < other shares",
            stands_for="4 layers",
        )
        for arm in OTHERS
    ),
)


def _settings(config: Config) -> Iterator[tuple[str, PretrainingConfig]]:
    for seed in range(config.seeds):
        for arm in config.arms:
            yield arm, encoder_config(config.corpus, config.layers, arm, seed, config.changes)


def models(config: Config) -> Iterator[Job]:
    """List the text and encoders."""
    if not config.finished:
        yield from jobs(encoder for _, encoder in _settings(config))


def _found(config: Config) -> dict[str, list[Trained]]:
    runs: dict[str, list[Trained]] = {arm: [] for arm in config.arms}
    given = Path(config.finished)
    for arm, encoder in _settings(config):
        runs[arm].append(finished(given, arm, encoder) if config.finished else trained(encoder))
    return runs


def run(config: Config, out: Run) -> dict[str, Result]:
    """Pre-train all arms and compare them."""
    runs, part = _found(config), part_of(config.corpus, config.layers)
    return {**losses(part, runs, PAIRS), **plateau(part, runs), **costs(part, runs)}


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw training losses."""
    config = from_json(Config, out.config())
    part = part_of(config.corpus, config.layers)
    floor = results[f"{part}: unigram loss"].mean
    return {"losses": loss_curves({part: _found(config)}, floors={part: floor})}


SMOKE = Config(corpus="oromo", layers=1, arms=(MLM, "guided 1/4", ALL), seeds=1, changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
