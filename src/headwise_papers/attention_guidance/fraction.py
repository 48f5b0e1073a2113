"""How many heads should be guided: a quarter, half, three quarters or all?

The paper says that half works well; Table 8 has losses of half and all.

    headwise reproduce attention_guidance/fraction --jobs 4   # H200: 23 minutes, estimated

- One head each goes to [Next] and [Prev], others to [First]. A pattern's loss is the mean over its
  heads, so their number does not change its strength.
- Quarters were trained in `small` alone: 4 layers, 4 heads.
"""

from dataclasses import dataclass
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
    Encoders,
    OneCorpusConfig,
    costs,
    difference,
    draw_losses,
    losses,
    models,
    part_of,
    plateau,
    trained_parts,
)
from headwise_papers.core import Claim, Experiment, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OTHERS = tuple(arm for arm in ARMS if arm not in (MLM, GUIDED))
PAIRS = (*((arm, MLM) for arm in ARMS if arm != MLM), *((GUIDED, arm) for arm in OTHERS))
PAPER = {MLM: 2.47, GUIDED: 2.29, ALL: 2.31}  # validation loss, Table 8
TABLE_8 = ((GUIDED, MLM), (ALL, MLM), (GUIDED, ALL))


@dataclass(frozen=True)
class Config(OneCorpusConfig):
    """Encoders by arm."""

    arms: tuple[str, ...] = tuple(ARMS)

    def encoders(self) -> Encoders:
        """Yield the arms of each seed."""
        for seed in range(self.seeds):
            for arm in self.arms:
                yield self.part, arm, self.encoder(arm, seed)


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


def run(config: Config, out: Run) -> dict[str, Result]:
    """Pre-train all arms and compare them."""
    part = config.part
    runs = trained_parts(config)[part]
    return {**losses(part, runs, PAIRS), **plateau(part, runs), **costs(part, runs)}


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw training losses."""
    return draw_losses(from_json(Config, out.config()), results)


SMOKE = Config(corpus="oromo", layers=1, arms=(MLM, "guided 1/4", ALL), seeds=1, changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
