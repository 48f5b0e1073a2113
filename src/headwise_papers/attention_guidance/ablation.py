"""Which patterns matter: how much worse is guidance without one of them?

Table 5: the loss with all patterns, and without some.

    headwise reproduce attention_guidance/ablation --jobs 4   # H200: 30 minutes, estimated

- Two of twelve heads are guided to [First], one each to others; without a pattern they are free.
- 2,000 updates for 100,000: differences say how fast encoders learn.
- "Do not converge" counts seeds in which all patterns converge.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.attention_guidance._encoders import (
    ENGLISH,
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
    not_converged,
    paired,
    part_of,
    plateau,
    trained_parts,
)
from headwise_papers.core import Claim, Experiment, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = {"next": 1, "prev": 1, "first": 2, "delim": 1, "period": 1}
ALL, LOCAL = "all", "without next and prev"
FIRST, PERIOD, DELIM = "without first", "without period", "without delim"
LEFT_OUT: dict[str, tuple[str, ...]] = {
    ALL: (),
    LOCAL: ("next", "prev"),
    FIRST: ("first",),
    PERIOD: ("period",),
    DELIM: ("delim",),
    MLM: tuple(HEADS),
}
PAPER = {ALL: 2.99, LOCAL: 7.74, FIRST: 3.02, PERIOD: 3.03, DELIM: 2.99}
NONE = 0.05  # nats that count as no difference


@dataclass(frozen=True)
class Config(OneCorpusConfig):
    """Encoders by arm."""

    arms: tuple[str, ...] = tuple(LEFT_OUT)
    changes: tuple[str, ...] = (  # of every pre-training
        "vocab_size=8000",
        "fit.steps=2000",
        "fit.warmup=200",
        "batch_size=32",
    )

    def __post_init__(self) -> None:
        if unknown := set(self.arms) - set(LEFT_OUT):
            raise ValueError(
                f"There is no arm {min(unknown)!r}; arms are some of {'; '.join(LEFT_OUT)}."
            )
        super().__post_init__()

    def encoders(self) -> Encoders:
        """Yield the arms of each seed."""
        for seed in range(self.seeds):
            for arm in self.arms:
                yield self.part, arm, self.encoder(arm, seed, plan=plan_without(arm))


def plan_without(arm: str) -> str:
    """Return the plan of an arm.

    >>> plan_without("without next and prev")
    'first=2,delim=1,period=1'
    """
    kept = (f"{name}={count}" for name, count in HEADS.items() if name not in LEFT_OUT[arm])
    return ",".join(kept)


def _table_5() -> Iterator[Claim]:
    part, where, stands_for = part_of(ENGLISH, 12), "Table 5", STANDS_FOR
    numbers = {LOCAL: 108, FIRST: 109, PERIOD: 110, DELIM: 110}
    texts = {LOCAL: "[Next] and [Prev]", FIRST: "[First]", PERIOD: "[Period]"}
    for arm, pattern in texts.items():
        yield Claim.direction(
            difference(part, "validation", arm, ALL),
            paper=round(PAPER[arm] - PAPER[ALL], 2),
            number=numbers[arm],
            where=where,
            text=f"Higher loss without {pattern}",
            stands_for=stands_for,
        )
    for arm in (FIRST, PERIOD, DELIM):
        yield Claim.direction(
            difference(part, "validation", LOCAL, arm),
            paper=round(PAPER[LOCAL] - PAPER[arm], 2),
            number=numbers[LOCAL],
            where=where,
            text="[Next] and [Prev] matter most",
            stands_for=stands_for,
        )
    yield Claim.comparable(
        difference(part, "validation", DELIM, ALL),
        margin=NONE,
        number=numbers[DELIM],
        where=where,
        text="[Delim] does not matter",
        stands_for=stands_for,
    )
    yield Claim.share(
        f"{part}: {LOCAL} does not converge",
        threshold=0.9,
        paper=1.0,
        number=numbers[LOCAL],
        where=where,
        text="Without both encoders do not converge",
        stands_for=stands_for,
    )


CLAIMS = tuple(_table_5())


def run(config: Config, out: Run) -> dict[str, Result]:
    """Pre-train all arms and compare them."""
    part = config.part
    runs = trained_parts(config)[part]
    more = {
        difference(part, "validation", LOCAL, arm): Result(found, "difference")
        for arm in (FIRST, PERIOD, DELIM)
        if (found := paired(runs.get(LOCAL, ()), runs.get(arm, ()), "validation_loss"))
    }
    return {
        **losses(part, runs, [(arm, ALL) for arm in runs if arm != ALL]),
        **more,
        **plateau(part, runs),
        **not_converged(part, runs, LOCAL, ALL),
        **costs(part, runs),
    }


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw training losses."""
    return draw_losses(from_json(Config, out.config()), results)


SMOKE = Config(
    corpus="oromo", layers=1, arms=(ALL, LOCAL), seeds=1, changes=(*TINY, "model.heads=8")
)
experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
