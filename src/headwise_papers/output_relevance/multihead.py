"""Section 4.2: is one good head enough for a model of several heads to learn permutation copying?

All combinations of 5 heads that learn alone and 5 that do not. **Recorded with a deviation**:
`concat`, see copying; the paper's is `pool.setup.combine=context`. Combinations of a *pool* share
initial model, data and heads: claims are judged by one value per pool, and one is recorded. In it
one or two bad heads always fail, three or more never.

    headwise reproduce output_relevance/multihead --set pools=5      # 3 minutes per pool, H200
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, draw_lines, find_or_train, panels
from headwise_papers.output_relevance._copying import SUCCESS, Setup
from headwise_papers.output_relevance._pools import PoolConfig, done_chunks, train_pool

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAIL, PER_POOL = "share that fails", "per pool"
BAD_ONLY, WITH_GOOD, ONE_GOOD = "bad heads only", "one good head or more", "exactly one good head"
ALONE, SEVERAL = "one bad head alone", "two bad heads or more, none good"
HELPS, ROBUST = f"{BAD_ONLY} - {WITH_GOOD}", f"{ALONE} - {SEVERAL}"
CLAIMS = (
    Claim.value(
        f"{PER_POOL}: {BAD_ONLY}, {FAIL}", 22 / 31, margin=0.1, number=38, text="bad heads fail"
    ),
    Claim.value(
        f"{PER_POOL}: {WITH_GOOD}, {FAIL}", 19 / 992, margin=0.02, number=38, text="others fail"
    ),
    Claim.direction(f"{PER_POOL}: {HELPS}", number=38, text="a good head helps"),
    Claim.direction(f"{PER_POOL}: {ROBUST}", number=39, text="several bad heads fail less"),
)


@dataclass(frozen=True)
class Config:
    """Settings of all pools."""

    pool: PoolConfig = field(default_factory=PoolConfig)
    pools: int = 1  # each with an initial model, heads and data of its own

    def __post_init__(self) -> None:
        if self.pools < 1:
            raise ValueError(f"pools must be 1 or more, got {self.pools}.")


SMOKE = Config(
    PoolConfig(
        Setup(types=8, hidden=48, batch=24, rate=5e-3, updates=74, every=37, sequences=40),
        good=1, bad=2, trials=2, candidates=4, rounds=1, seed=2,
    )
)  # fmt: skip


def models(config: Config) -> list[Job]:
    """List the pools."""
    return [Job(train_pool, replace(config.pool, number=n)) for n in range(config.pools)]


class Outcome(NamedTuple):
    """One training of one combination."""

    good: int  # heads of each kind
    bad: int
    fails: bool


def _outcomes(trained: Run, config: PoolConfig) -> list[Outcome]:
    low = 2**config.good - 1  # the bits of good heads
    return [
        Outcome((x & low).bit_count(), (x & ~low).bit_count(), accuracy < SUCCESS)
        for chunk in done_chunks(trained)
        for x, accuracy in zip(chunk["combinations"], chunk["accuracy"], strict=True)
    ]


def run(config: Config, out: Run) -> dict[str, Result]:
    """Train all pools; shares are over combinations of all pools, claims over pools."""
    pools = [find_or_train(*job) for job in models(config)]
    verdicts = [x for pool in pools for x in pool.figures()["verdicts"]]
    results = {
        f"candidates that are {kind}": Result([float(x == kind) for x in verdicts], "share")
        for kind in ("good", "bad", "mixed")
    }
    by_pool = [_fails(_outcomes(pool, config.pool), config.pool) for pool in pools]
    for name in by_pool[0]:
        results[f"{name}: {FAIL}"] = Result([x for fails in by_pool for x in fails[name]], "share")
    good = [1 - x for fails in by_pool for x in fails["1 good"]]
    results[f"{ONE_GOOD}: share that succeeds"] = Result(good, "share")
    return results | per_pool(by_pool)


def _fails(outcomes: list[Outcome], config: PoolConfig) -> dict[str, list[float]]:
    """Return whether each combination fails, for sets of combinations; empty sets are left out."""
    sets: dict[str, Callable[[Outcome], bool]] = {
        BAD_ONLY: lambda x: not x.good,
        WITH_GOOD: lambda x: x.good > 0,
        ALONE: lambda x: not x.good and x.bad == 1,
        SEVERAL: lambda x: not x.good and x.bad > 1,
        "one good head alone": lambda x: x.good == 1 and not x.bad,
        "good heads only": lambda x: not x.bad,
    }
    for n in range(config.good + 1):
        sets[f"{n} good"] = lambda x, n=n: x.good == n
    for n in range(1, config.good + config.bad + 1):
        sets[f"{n} in all"] = lambda x, n=n: x.good + x.bad == n
    for n in range(1, config.bad + 1):
        sets[f"{n} bad, none good"] = lambda x, n=n: not x.good and x.bad == n
    found = {name: [float(x.fails) for x in outcomes if of(x)] for name, of in sets.items()}
    return {name: fails for name, fails in found.items() if fails}


def per_pool(by_pool: list[dict[str, list[float]]]) -> dict[str, Result]:
    """Return what the claims are judged by, one value per pool."""
    means = [{name: fmean(fails) for name, fails in pool.items()} for pool in by_pool]
    found = {
        f"{BAD_ONLY}, {FAIL}": Result([x[BAD_ONLY] for x in means]),
        f"{WITH_GOOD}, {FAIL}": Result([x[WITH_GOOD] for x in means]),
        f"{ONE_GOOD}, share that succeeds": Result([1 - x["1 good"] for x in means]),
        HELPS: Result([x[BAD_ONLY] - x[WITH_GOOD] for x in means], "difference"),
    }
    if SEVERAL in means[0]:
        found[ROBUST] = Result([x[ALONE] - x[SEVERAL] for x in means], "difference")
    return {f"{PER_POOL}: {name}": result for name, result in found.items()}


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw failure by number of heads, and by numbers of good and bad heads."""
    config = from_json(Config, out.config())
    outcomes = [x for job in models(config) for x in _outcomes(find_or_train(*job), config.pool)]
    sizes, ((axes,),) = panels(1, width=5.5, height=3.6)
    by_kind: dict[str, dict[float, list[float]]] = {BAD_ONLY: {}, WITH_GOOD: {}}
    share = torch.full((config.pool.good + 1, config.pool.bad + 1), torch.nan)
    for x in outcomes:
        own = by_kind[WITH_GOOD if x.good else BAD_ONLY].setdefault(float(x.good + x.bad), [])
        own.append(float(x.fails))
    curves = {
        kind: {size: Result(fails, "share") for size, fails in found.items()}
        for kind, found in by_kind.items()
    }
    draw_lines(axes, curves, xlabel="heads", ylabel=FAIL, marker="o")
    axes.set_xticks(range(1, config.pool.good + config.pool.bad + 1))
    grid, ((axes,),) = panels(1, width=5.0, height=4.2)
    for good, bad in {(x.good, x.bad) for x in outcomes}:
        fails = [float(x.fails) for x in outcomes if (x.good, x.bad) == (good, bad)]
        share[good, bad] = fmean(fails)
        colour = "white" if fmean(fails) > 0.6 else "black"
        shown = f"{sum(fails):.0f}/{len(fails)}"
        axes.text(bad, good, shown, ha="center", fontsize=8, color=colour)
    image = axes.imshow(share.numpy(), vmin=0, vmax=1, cmap="Reds", origin="lower", aspect="auto")
    axes.set(xlabel="bad heads", ylabel="good heads")
    axes.set_xticks(range(config.pool.bad + 1))
    axes.set_yticks(range(config.pool.good + 1))
    grid.colorbar(image, label=FAIL)
    return {"sizes": sizes, "grid": grid}


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
