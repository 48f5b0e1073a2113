"""Does guidance help an encoder that tells replaced tokens from true ones?

Table 6: ELECTRA's discriminator, whose generator draws tokens by frequency.

    headwise reproduce attention_guidance/electra --jobs 2   # H200: 17 minutes, estimated

- Claims count seeds in which an arm ends 0.01 nats below a guess that knows no words.
- With 12 layers and one seed neither arm does, so nothing is measured; nor does `small`.
- `2-layers` does; settings were tuned on the guided arm.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ENGLISH,
    GUIDED,
    LOSSES,
    MLM,
    STANDS_FOR,
    TINY,
    Encoders,
    OneCorpusConfig,
    Runs,
    Trained,
    costs,
    difference,
    draw_losses,
    losses,
    models,
    paired,
    part_of,
    trained_parts,
)
from headwise_papers.core import Claim, Experiment, Result
from headwise_papers.recipes.pretraining import PretrainingConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN = "ELECTRA"
ARMS = {PLAIN: MLM, GUIDED: GUIDED}  # names here, and of the settings
LEARNED = 0.01  # nats below a guess without words: something was learned from words
PAPER = {"train": (0.27, 0.10), "average": (0.32, 0.15)}  # Table 6: plain, guided


@dataclass(frozen=True)
class Config(OneCorpusConfig):
    """Encoders of both arms."""

    changes: tuple[str, ...] = ("fit.steps=1000", "fit.warmup=100", "batch_size=128")

    def encoders(self) -> Encoders:
        """Yield both arms of each seed."""
        for seed in range(self.seeds):
            for arm, same in ARMS.items():
                plain = self.encoder(same, seed)
                yield self.part, arm, replace(plain, objective="electra", next_sentence=False)


def where_learned(part: str, what: str) -> str:
    """Return the name of a difference over seeds that learned something from words."""
    return f"{difference(part, what, GUIDED, PLAIN)}, where words were learned"


def _table_6(layers: int, number: int | None, stands_for: str) -> Iterator[Claim]:
    for what, (plain, guided) in PAPER.items():
        yield Claim.direction(
            where_learned(part_of(ENGLISH, layers), what),
            sign=-1,
            paper=round(guided - plain, 2),
            number=number,
            where="Table 6",
            text="Guidance lowers losses",
            stands_for=stands_for,
        )


CLAIMS = (
    *_table_6(12, 111, STANDS_FOR),
    *_table_6(2, None, "2 layers"),
)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Pre-train both arms and compare them."""
    part = config.part
    runs = trained_parts(config)[part]
    *_, encoder = next(config.encoders())
    share, words = guess_shares(encoder, runs[PLAIN][0].drawn_right)
    guess, floor = guess_loss(share), guess_loss(share, words=words)
    kept = learned(runs, floor)
    more = {
        where_learned(part, what): Result(found, "difference")
        for what in PAPER
        if (found := paired(kept[GUIDED], kept[PLAIN], LOSSES[what]))
    }
    return {
        **losses(part, runs, [(GUIDED, PLAIN)]),
        **more,
        f"{part}: loss from the share alone": Result([guess]),
        f"{part}: loss from share and special tokens alone": Result([floor]),
        **costs(part, runs),
    }


def learned(runs: Runs, floor: float) -> dict[str, list[Trained]]:
    """Return the runs of seeds in which an arm ends below a guess that knows no words."""
    kept: dict[str, list[Trained]] = {arm: [] for arm in runs}
    for both in zip(*runs.values(), strict=False):
        ended = [one.run.figures()["validation_loss"] for one in both if not one.diverged]
        if any(loss <= floor - LEARNED for loss in ended):
            for arm, one in zip(kept, both, strict=True):
                kept[arm].append(one)
    return kept


def guess_shares(settings: PretrainingConfig, drawn_right: float) -> tuple[float, float]:
    """Return the share of tokens that are replaced by others, and of those that can be."""
    block = settings.model.max_length
    drawn = round(settings.masked * block) / block
    return drawn * (1 - drawn_right), (block - 2) / block


def guess_loss(share: float, *, words: float = 1.0) -> float:
    """Return the entropy, in nats, of whether a token was replaced.

    Args:
        share: of all tokens that are.
        words: the share that may be; the others are known not to be.

    >>> round(guess_loss(0.15), 3), round(guess_loss(0.15, words=0.75), 3)
    (0.423, 0.375)
    """
    of_words = share / words
    rest = 1 - of_words
    return -words * (of_words * math.log(of_words) + rest * math.log(rest))


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw training losses."""
    config = from_json(Config, out.config())
    return draw_losses(config, results, floor="loss from the share alone")


SMOKE = Config(corpus="oromo", layers=2, seeds=1, changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
