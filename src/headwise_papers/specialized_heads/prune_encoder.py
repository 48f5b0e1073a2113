"""How few heads does the encoder of a translator need, and what do those that stay do?

    headwise reproduce specialized_heads/prune-encoder --jobs 3    # 11 minutes on an H200
    headwise reproduce specialized_heads/prune-encoder --smoke     # 8 seconds on a CPU

Figures 7 and 8: encoder heads get gates; all but encoder and source embedding is frozen. BLEU is
compared with a translator that keeps all heads and is trained as long. No head of the recorded
encoders has a function, so that Fig. 8 stays open. On these short sentences an encoder without any
attention keeps nine tenths of the BLEU.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.recording import HeadTable, Run
from headwise.reporting import group_of
from headwise_papers.core import Claim, Experiment, Job, Result, find_or_train, lines
from headwise_papers.specialized_heads._inspection import (
    Inspection,
    inspect_into,
    inspect_model,
    inspected,
    open_inspection,
)
from headwise_papers.specialized_heads._models import SUBTITLES, Model, by_name, scored
from headwise_papers.specialized_heads._pruning import (
    SMALL,
    Amount,
    Pruned,
    Pruning,
    PruningStudy,
    draw_gates,
    losses,
    pruned,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FUNCTIONS = ("positional", "syntactic", "rare words")
GATES = "trace/gates.json"


@dataclass(frozen=True)
class Config(PruningStudy):
    """Settings: translators, how many heads they keep, and the text of inspections."""

    keep: tuple[int, ...] = (48, 17, 10, 4)  # 48 are all of them
    penalties: tuple[float, ...] = (0.01, 0.05)
    trees: int = 2000  # sentences of the treebank
    max_words: int = 20  # of them

    def inspection(self, model: Model) -> Inspection:
        """Return the settings of an inspection, which counts how common words are in its data."""
        return Inspection(model, "trees", self.trees, self.max_words, trained_ranks=False)


@dataclass(frozen=True)
class PrunedInspection:
    """Settings of an inspection of a pruned translator."""

    pruning: Pruning
    like: Inspection  # of the translator before


def inspect_pruned(config: PrunedInspection, folder: Path) -> Run:
    """Inspect a pruned translator as the one before; return the finished run."""
    with Run.create(folder, config) as run:
        inspect_into(run, config.like, pruned(config.pruning).folder)
    return run


def _claims() -> Iterator[Claim]:
    for name, heads, paper, number, data in (
        ("en-ru", 10, 0.15, 151, "Tatoeba"), (SUBTITLES, 4, 0.25, 152, "few subtitles")
    ):  # fmt: skip
        yield Claim.value(f"{name}: {heads} heads: BLEU lost to as much training", paper,
                          margin=0.5, number=number, where="Fig. 7", stands_for=data,
                          text=f"{heads} of 48 encoder heads are enough")  # fmt: skip
    for name in ("en-ru", SUBTITLES):
        yield Claim.value(f"{name}: 17 heads: functions that are still there", 1.0, margin=0.1,
                          number=153, where="Fig. 8", stands_for="Tatoeba",
                          text="With 17 heads all functions are still there")  # fmt: skip


def models(config: Config) -> Iterator[Job]:
    yield from config.jobs(part="encoder")
    for name in config.translators:
        for model in config.models(name):
            yield Job(inspect_model, config.inspection(model))
            yield from (_inspecting(config, model, amount) for amount in config.amounts())


def _inspecting(config: Config, model: Model, amount: Amount) -> Job:
    pruning = config.pruning(model, amount, part="encoder")
    return Job(inspect_pruned, PrunedInspection(pruning, config.inspection(model)))


def run(config: Config, run: Run) -> dict[str, Result]:
    """Prune encoders by every amount, and inspect what is left."""
    results: dict[str, Result] = {}
    gates: dict[str, list[float]] = {}
    for name in config.translators:
        scores, entering = scored(name, config.models(name), config.least_bleu)
        results |= scores
        if not entering:
            continue
        before = [_functions(inspected(config.inspection(model)).table) for model in entering]
        having = [{"heads with a function, unpruned": float(sum(_own(one)))} for one in before]
        results |= by_name(f"{name}: ", having)
        left: list[list[Pruned]] = []
        for amount in config.amounts():
            left.append(
                [pruned(config.pruning(model, amount, part="encoder")) for model in entering]
            )
            seen = [find_or_train(*_inspecting(config, model, amount)) for model in entering]
            after = [_functions(open_inspection(one.path("inspection")).table) for one in seen]
            found = [_kept(*both) for both in zip(left[-1], before, after, strict=True)]
            results |= by_name(f"{name}: {amount}: ", found)
            if amount.penalty is not None:
                titles = [f"{name}, seed {seed}, {amount}" for seed in range(len(entering))]
                gates |= {t: one.prob_open() for t, one in zip(titles, left[-1], strict=True)}
        results |= losses(name, left)
    run.write_json(GATES, gates)
    return results


def _functions(table: HeadTable) -> Counter[str]:
    """Count the encoder's heads by function."""
    return Counter(
        group_of(str(row["role"]))
        for head, row in table
        if head.site.startswith("encoder") and row["role"]
    )


def _own(counts: Mapping[str, int]) -> list[int]:
    return [counts.get(function, 0) for function in FUNCTIONS]


def _kept(one: Pruned, before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Return the heads left, and the share of functions that heads still have."""
    found = {"heads left": float(one.counts()["encoder.self"])}
    there = [function for function in FUNCTIONS if before.get(function)]
    if there:
        share = sum(bool(after.get(function)) for function in there) / len(there)
        found["functions that are still there"] = share
    return found


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw Figure 7, BLEU by heads left, and the gates of fixed lambdas."""
    settings: Mapping[str, Any] = run.config()
    curves = {
        name: {heads: results[f"{name}: {heads} heads: BLEU"] for heads in settings["keep"]}
        for name in settings["translators"]
        if results[f"{name}: enters"].mean
    }
    if not curves:
        return {}
    figure = lines(curves, xlabel="heads left in the encoder", ylabel="BLEU")
    for name in curves:
        level = results[f"{name}: BLEU"].mean
        figure.axes[0].axhline(level, color="grey", linestyle=":", linewidth=1)
    return {"encoder": figure, **draw_gates(run.read_json(GATES))}


SMOKE = Config(keep=(8, 3), penalties=(50.0,), trees=8, max_words=8, **SMALL)
experiment = Experiment(Config(), SMOKE, models, run, draw, tuple(_claims()))
