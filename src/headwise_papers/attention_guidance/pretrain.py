"""Do encoders learn sooner, and further, if half of their heads are guided?

Table 3, Fig. 3: losses of masked tokens; train is over the last twentieth.

    headwise reproduce attention_guidance/pretrain --jobs 2   # H200: 35 minutes, estimated

- Arms share rate and warm-up; the paper tuned plain models.
- Guidance starts at 30, not 10, which did nothing (8 layers: 100).
- Encoders converge, and leave the plateau, a nat below the unigram loss.
- One plain Oromo seed broke.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ENGLISH,
    GUIDED,
    MLM,
    RECIPES,
    STANDS_FOR,
    TINY,
    Encoders,
    EncodersConfig,
    Runs,
    costs,
    difference,
    draw_losses,
    encoder_config,
    losses,
    models,
    not_converged,
    part_of,
    plateau,
    trained_parts,
)
from headwise_papers.core import Claim, Experiment, Result, minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 3, MLM and guided: train, validation and average loss, by claim
PAPER = {
    (ENGLISH, 8): (93, (1.75, 1.74), (2.41, 2.43), (2.48, 2.09)),
    (ENGLISH, 12): (91, (1.86, 1.73), (2.47, 2.29), (2.56, 2.07)),
    (ENGLISH, 16): (94, (6.40, 1.81), (7.28, 2.46), (6.67, 2.24)),
    ("filipino", 8): (96, (3.10, 0.74), (3.22, 0.99), (4.95, 1.20)),
    ("filipino", 12): (95, (5.04, 0.66), (5.06, 0.97), (5.24, 1.16)),
    ("filipino", 16): (97, (5.18, 0.63), (5.05, 0.82), (5.28, 1.11)),
    ("oromo", 8): (99, (3.44, 3.31), (4.06, 3.93), (5.15, 4.52)),
    ("oromo", 12): (98, (6.24, 3.23), (6.74, 3.88), (6.75, 4.52)),
    ("oromo", 16): (100, (6.51, 3.34), (6.93, 3.92), (6.95, 4.62)),
}
ONLY_GUIDED = [(ENGLISH, 16), *((name, n) for name in ("filipino", "oromo") for n in (12, 16))]
ONLY_GUIDED_TEXTS = {
    f"{GUIDED} converges": "Guided converges in five cells",
    f"{MLM} does not converge": "MLM does not converge there",
}
NAMES = {ENGLISH: "English", "filipino": "Filipino", "oromo": "Oromo"}


@dataclass(frozen=True)
class Config(EncodersConfig):
    """Encoders by corpus and depth."""

    corpora: tuple[str, ...] = tuple(RECIPES)
    layers: tuple[int, ...] = (12, 8, 16)  # the first has `seeds`
    other_seeds: int = 1  # of other depths

    def encoders(self) -> Encoders:
        """Yield both arms of each seed, corpus by corpus and depth by depth."""
        for corpus, layers in product(self.corpora, self.layers):
            most = self.seeds if layers == self.layers[0] else self.other_seeds
            for seed in range(min(most, self.seeds)):
                for arm in (MLM, GUIDED):
                    encoder = encoder_config(corpus, layers, arm, seed, self.changes)
                    yield part_of(corpus, layers), arm, encoder


def sooner(part: str) -> str:
    """Return the name of the difference in time on the plateau."""
    return f"{part}: share of updates on the plateau, {MLM} - {GUIDED}"


def _table_3(corpus: str, layers: int) -> Iterator[Claim]:
    number, *rows = PAPER[corpus, layers]
    for what, (plain, guided) in zip(("train", "validation", "average"), rows, strict=True):
        yield Claim.direction(
            difference(part_of(corpus, layers), what, GUIDED, MLM),
            sign=-1 if guided < plain else 1,
            paper=round(guided - plain, 2),
            number=number,
            where="Table 3",
            text=f"Guided - plain, {NAMES[corpus]}, {layers} layers",
            stands_for=STANDS_FOR if corpus == ENGLISH else "",
        )


def _own_questions() -> Iterator[Claim]:
    for corpus, layers in ((ENGLISH, 4), ("wikitext-2", 12)):
        name = difference(part_of(corpus, layers), "validation", GUIDED, MLM)
        yield Claim.direction(name, sign=-1, text="Guidance lowers the validation loss")


CLAIMS = (
    *(claim for corpus, layers in PAPER for claim in _table_3(corpus, layers)),
    Claim.direction(
        sooner(part_of(ENGLISH, 12)),
        number=92,
        where="Fig. 3",
        text="Guided leaves the plateau sooner",
        stands_for=STANDS_FOR,
    ),
    *(
        Claim.share(
            f"{part_of(corpus, layers)}: {what}",
            threshold=0.9,
            paper=1.0,
            number=101,
            where="Section 5.1",
            text=text,
        )
        for corpus, layers in ONLY_GUIDED
        for what, text in ONLY_GUIDED_TEXTS.items()
    ),
    *_own_questions(),
)


def run(config: Config, out: Run) -> dict[str, Result]:
    """Pre-train all encoders and compare both arms."""
    results: dict[str, Result] = {}
    for part, runs in trained_parts(config).items():
        results |= measured(part, runs)
    return results


def measured(part: str, runs: Runs) -> dict[str, Result]:
    """Return the results of one corpus and depth."""
    left = plateau(part, runs)
    shares = [left[f"{part}: share of updates on the plateau, {arm}"] for arm in (MLM, GUIDED)]
    return {
        **losses(part, runs, [(GUIDED, MLM)]),
        **left,
        **not_converged(part, runs, MLM, GUIDED),
        sooner(part): minus(*shares),
        **costs(part, runs),
    }


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 3: training losses."""
    return draw_losses(from_json(Config, out.config()), results)


SMOKE = Config(corpora=("oromo",), layers=(2,), seeds=1, changes=TINY)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
