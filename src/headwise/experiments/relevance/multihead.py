"""Is one good head enough for a model of several heads to learn permutation copying?

Some initial heads learn to copy permutations and some do not (`relevance/copying`). Section 4.2 of
the paper takes 5 good and 5 bad ones and trains all 2^10 - 1 combinations: 22 of the 31 with bad
heads only fail, and 19 of the other 992. Its claims, and how each is judged:

- share of combinations of bad heads only that fail (0.71), and of all others (0.019);
- *one good head is enough*: the share that succeeds with exactly one good head, whatever else is
  there, for which the paper gives 0.98 over all with a good head; and *a good head helps*: the 95 %
  intervals of the two shares do not meet;
- several heads make learning robust: combinations of two or more bad heads fail less often than
  bad heads do alone.

The commands:

    headwise reproduce relevance/multihead           # 4 minutes on an H200; 3 days on a CPU core
    headwise reproduce relevance/multihead --smoke   # 6 seconds

A killed run goes on with the combinations that are not done. What was chosen:

1. A head is its score map and its output map, drawn by a seed of its own. Everything else starts
   the same in all models.
2. Alone, a good head succeeds (accuracy of 0.9 or more at update 200) on each of three streams of
   data, a bad one on none; others are mixed and not used. Candidates are drawn in groups of 40
   until 5 of each are found, and the first 5 of each are taken.
3. Combinations are trained on another stream of data, so that a bad head alone may succeed. More
   streams with `--set data_seeds=3`; a combination then counts once for each.
4. What heads add is summed (Eq. 9). With `--set sum_heads=mean` it is averaged, as in the code of
   the authors' later version.
5. Failure is judged at update 200 on 50 fresh permutations, as in `relevance/copying`.
6. What was found: with one good head no combination of 992 fails. But three bad heads are as good:
   every one or two of the five fail, and every three or more succeed. A lottery, which the paper
   has in mind, would give a share in between that falls with every head. Sums of more heads may
   simply push harder; `--set sum_heads=mean` asks that.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.experiments.base import Estimate, Expected, Experiment
from headwise.experiments.relevance._combining import (
    Pool,
    chunks,
    members_of,
    train_combinations,
)
from headwise.experiments.relevance._plots import panels, save
from headwise.experiments.relevance._stacks import device_of
from headwise.recording.run import Run
from headwise.training.progress import progress_bar

BAD_ONLY, WITH_GOOD = "bad heads only", "one good head or more"
HEADLINE_SECONDS = 600


@dataclass(frozen=True)
class Config:
    """Section 4.2."""

    types: int = 40  # different tokens, and tokens of a sequence
    hidden: int = 256
    batch: int = 128  # sequences of an update
    rate: float = 1e-3
    updates: int = 200
    every: int = 10  # updates between evaluations
    sequences: int = 50  # of an evaluation
    enough: float = 0.9  # the accuracy that is success
    good: int = 5  # heads
    bad: int = 5
    trials: int = 3  # streams of data on which a candidate must always succeed or always fail
    candidates: int = 40  # heads drawn at a time
    rounds: int = 10  # times they are drawn before giving up
    data_seeds: int = 1  # further streams on which all combinations are trained
    sum_heads: Literal["sum", "mean"] = "sum"
    chunk: int = 128  # combinations trained at once, if they fit the memory
    seed: int = 0  # of everything but the heads and the data
    device: str = "auto"  # a GPU where there is one

    def __post_init__(self) -> None:
        if min(self.good, self.bad) < 1:
            raise ValueError(
                f"good and bad must be 1 or more each, got {self.good} and {self.bad}: "
                "the question is what a good head does for bad ones."
            )


EXPECTED = (
    Expected(f"{BAD_ONLY}: share that fails", paper=22 / 31, where="Sec. 4.2", margin=0.1,
             partly=0.3),
    Expected(f"{WITH_GOOD}: share that fails", paper=19 / 992, where="Sec. 4.2", margin=0.02,
             partly=0.1),
    Expected("exactly one good head: share that succeeds", paper=973 / 992, where="Sec. 4.2",
             margin=0.02, partly=0.1),
    Expected("a good head helps", paper=1.0, where="Sec. 4.2"),
    Expected("several bad heads do better than one", paper=1.0, where="Sec. 4.2"),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One training of one combination."""

    good: int  # heads of each kind
    bad: int
    fails: bool


def reproduce(config: Config, run: Run) -> dict[str, list[float]]:
    """Find heads, train all combinations; each figure with one value a combination."""
    device = device_of(config.device)
    verdicts = _candidates(config, run, device)
    chosen = [
        [seed for seed, verdict in enumerate(verdicts) if verdict == kind][:number]
        for kind, number in (("good", config.good), ("bad", config.bad))
    ]
    pool = Pool.drawn(config, _head_seeds(chosen[0] + chosen[1]), seed=config.seed, device=device)
    outcomes, seconds = _combinations(config, run, pool)
    run.log(0, seconds_of_combinations=seconds)
    figures = {
        f"candidates that are {kind}": [float(verdict == kind) for verdict in verdicts]
        for kind in ("good", "bad", "mixed")
    }
    figures |= _figures(outcomes, config)
    figures["all combinations within ten minutes"] = [float(seconds <= HEADLINE_SECONDS)]
    _draw_sizes(outcomes, config, run)
    _draw_grid(outcomes, config, run)
    return figures


def _head_seeds(candidates: list[int]) -> list[int]:
    """Seeds of heads, apart from those of whole models."""
    return [1_000_000 + candidate for candidate in candidates]


def _candidates(config: Config, run: Run, device: torch.device) -> list[str]:
    """Good, bad or mixed, for each head drawn until there are enough of both."""
    verdicts: list[str] = []
    for number in range(config.rounds):
        file = f"candidates/{number:03d}.json"
        if not run.has(file):
            first = number * config.candidates
            accuracy_CT = _alone(config, list(range(first, first + config.candidates)), device)
            run.write_json(file, {"accuracy": accuracy_CT.tolist()})
        succeeds_CT = torch.tensor(run.read_json(file)["accuracy"]) >= config.enough
        for times in succeeds_CT.sum(1).tolist():
            verdicts.append({config.trials: "good", 0: "bad"}.get(times, "mixed"))
        if verdicts.count("good") >= config.good and verdicts.count("bad") >= config.bad:
            return verdicts
    found = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("good", "bad", "mixed"))
    raise ValueError(
        f"{config.good} good and {config.bad} bad heads were wanted, but {len(verdicts)} "
        f"candidates are {found}; draw more with --set rounds={2 * config.rounds}, or start from "
        f"another model with --set seed={config.seed + 1}."
    )


def _alone(config: Config, candidates: list[int], device: torch.device) -> Tensor:
    """(C, T): accuracy of each candidate, alone, on each stream of data."""
    pool = Pool.drawn(config, _head_seeds(candidates), seed=config.seed, device=device)
    trials = [(head, data) for head in range(len(candidates)) for data in range(config.trials)]
    accuracy: list[float] = []
    # a trial stands for a combination of one head here: all that counts is how many fit
    for part in chunks([1] * len(trials), config, most=config.chunk, device=device):
        some = trials[len(accuracy) : len(accuracy) + len(part)]
        heads, data = [[head] for head, _ in some], [data for _, data in some]
        accuracy += train_combinations(pool, heads, data, config, updates=config.updates).accuracy
    return torch.tensor(accuracy).view(len(candidates), config.trials)


def _combinations(config: Config, run: Run, pool: Pool) -> tuple[list[Outcome], float]:
    """Train what is not done yet; all outcomes, and the seconds that all trainings took."""
    everything = range(1, 2 ** (config.good + config.bad))
    with progress_bar(len(everything) * config.data_seeds, label="combinations") as show:
        for data in range(config.trials, config.trials + config.data_seeds):
            done = {x for chunk in _done(run, data) for x in chunk["combinations"]}
            left = [x for x in everything if x not in done]
            for part in chunks(left, config, most=config.chunk, device=pool.device):
                loss = _train_chunk(part, data, config, run, pool)
                trained = sum(len(chunk["combinations"]) for chunk in _done(run))
                show(trained, {"loss": loss})
    results = _done(run)
    low = 2**config.good - 1  # the bits of good heads
    outcomes = [
        Outcome((x & low).bit_count(), (x & ~low).bit_count(), accuracy < config.enough)
        for chunk in results
        for x, accuracy in zip(chunk["combinations"], chunk["accuracy"], strict=True)
    ]
    return outcomes, sum(chunk["seconds"] for chunk in results)


def _done(run: Run, data: int | None = None) -> list[dict[str, Any]]:
    """The chunks that are done, on one stream of data or on all."""
    which = "*" if data is None else f"{data:03d}"
    return [run.read_json(name) for name in run.names(f"combinations/{which}-*.json")]


def _train_chunk(part: list[int], data: int, config: Config, run: Run, pool: Pool) -> float:
    started = time.perf_counter()
    trained = train_combinations(
        pool,
        [members_of(one) for one in part],
        [data] * len(part),
        config,
        updates=config.updates,
        sum_heads=config.sum_heads,
    )
    seconds = time.perf_counter() - started
    name = f"combinations/{data:03d}-{part[0].bit_count():02d}-{part[0]:06d}.json"
    run.write_json(name, {"combinations": part, "accuracy": trained.accuracy, "seconds": seconds})
    return trained.loss


def _figures(outcomes: list[Outcome], config: Config) -> dict[str, list[float]]:
    sets = {
        BAD_ONLY: [x for x in outcomes if not x.good],
        WITH_GOOD: [x for x in outcomes if x.good],
        "one bad head alone": [x for x in outcomes if not x.good and x.bad == 1],
        "one good head alone": [x for x in outcomes if x.good == 1 and not x.bad],
        "two bad heads or more, none good": [x for x in outcomes if not x.good and x.bad > 1],
        "good heads only": [x for x in outcomes if not x.bad],
        **{f"{n} good": [x for x in outcomes if x.good == n] for n in range(config.good + 1)},
        **{f"{n} in all": [x for x in outcomes if x.good + x.bad == n]
           for n in range(1, config.good + config.bad + 1)},
        **{f"{n} bad, none good": [x for x in outcomes if not x.good and x.bad == n]
           for n in range(1, config.bad + 1)},
    }  # fmt: skip
    figures = {f"{name}: share that fails": _fails(some) for name, some in sets.items() if some}
    one = [x for x in outcomes if x.good == 1]
    figures["exactly one good head: share that succeeds"] = [float(not x.fails) for x in one]
    bad, good = (Estimate.of(_fails(sets[name])) for name in (BAD_ONLY, WITH_GOOD))
    figures["a good head helps"] = [float(good.high < bad.low)]
    if several := _fails(sets["two bad heads or more, none good"]):
        alone = Estimate.of(_fails(sets["one bad head alone"])).mean
        figures["several bad heads do better than one"] = [float(Estimate.of(several).mean < alone)]
    return figures


def _fails(outcomes: list[Outcome]) -> list[float]:
    return [float(outcome.fails) for outcome in outcomes]


def _draw_sizes(outcomes: list[Outcome], config: Config, run: Run) -> None:
    """Failure against the number of heads, with 95 % intervals over combinations."""
    figure, ((axis,),) = panels(1, width=5.5, height=3.6)
    kinds = ((BAD_ONLY, False, "tab:red"), (WITH_GOOD, True, "tab:blue"))
    for label, with_good, colour in kinds:
        for_sizes = [
            (size, Estimate.of(_fails(some)))
            for size in range(1, config.good + config.bad + 1)
            if (some := [x for x in outcomes
                         if x.good + x.bad == size and bool(x.good) == with_good])
        ]  # fmt: skip
        sizes, shares = [size for size, _ in for_sizes], [x for _, x in for_sizes]
        means = [x.mean for x in shares]
        errors = [[x.mean - x.low for x in shares], [x.high - x.mean for x in shares]]
        axis.errorbar(sizes, means, yerr=errors, color=colour, label=label, marker="o", capsize=3)
    axis.set(xlabel="heads", ylabel="share of combinations that fail", ylim=(-0.03, 1.03))
    axis.set_xticks(range(1, config.good + config.bad + 1))
    axis.legend(frameon=False, fontsize=8)
    save(figure, run, "sizes")


def _draw_grid(outcomes: list[Outcome], config: Config, run: Run) -> None:
    """Failure by how many good and how many bad heads there are."""
    figure, ((axis,),) = panels(1, width=5.0, height=4.2)
    share = torch.full((config.good + 1, config.bad + 1), torch.nan)
    for good in range(config.good + 1):
        for bad in range(config.bad + 1):
            some = _fails([x for x in outcomes if (x.good, x.bad) == (good, bad)])
            if some:
                share[good, bad] = sum(some) / len(some)
                shown = f"{sum(some):.0f}/{len(some)}"
                dark = "white" if share[good, bad] > 0.6 else "black"
                axis.text(bad, good, shown, ha="center", va="center", fontsize=8, color=dark)
    image = axis.imshow(share.numpy(), vmin=0, vmax=1, cmap="Reds", origin="lower", aspect="auto")
    axis.set(xlabel="bad heads", ylabel="good heads")
    axis.set_xticks(range(config.bad + 1))
    axis.set_yticks(range(config.good + 1))
    figure.colorbar(image, label="share of combinations that fail")
    save(figure, run, "grid")


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(types=8, hidden=48, batch=24, rate=5e-3, updates=74, every=37, sequences=40,
                 good=1, bad=2, trials=2, candidates=4, rounds=1, seed=2),
    reproduce=reproduce,
    expected=EXPECTED,
)  # fmt: skip
