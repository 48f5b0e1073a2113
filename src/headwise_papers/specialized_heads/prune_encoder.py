"""How few heads does the encoder of a translator need, and what do those that stay do?

Figures 7 and 8, sections 6.2.1 and 6.2.2. The heads of the encoder of a trained translator from
English into Russian get gates; encoder and source embedding are trained on, all else is frozen.

    headwise reproduce specialized_heads/prune-encoder --set trained=runs/specialized_heads/prune-all    # half an hour, estimated
    headwise reproduce specialized_heads/prune-encoder --smoke                         # 8 seconds
    headwise reproduce specialized_heads/prune-encoder --set at_once=3 --set steps=2000 --set tokens=4096 \\
        --set prune_steps=800 --set translators=en-ru                # 11 minutes on an H200

`trained` names runs whose translators are taken; without it they are trained first.
`--set at_once=4` trains and prunes four at a time. Each pruned translator is a folder below this
run that `headwise translate` and `headwise inspect` open, with a report of its own beside it;
finished ones are not made again. The data folder must hold tatoeba, opensubtitles, multi30k and
the treebank en_ewt.

A translator whose BLEU is below 15 does not enter, see specialized_heads/importance; the BLEU of every unpruned
translator is a figure. That of subtitles, 12.6 in specialized_heads/syntax, is left out unless asked for.

How it is judged, decided before any result was seen:

1. *10 of 48 heads are enough to stay within 0.15 BLEU* (WMT), *4 lose only 0.25* (subtitles): BLEU
   lost on the test part. Reproduced if the interval over seeds comes within 0.5 of the paper's
   figure, partly within 1.0: test parts here are small.
2. *With 17 heads all functions are still there*: of the functions that heads of the unpruned
   translator have (positional, syntactic, rare words), the share that heads of the pruned one have.
   Reproduced at 1, partly from 0.5.

Where ours deviates: 46,085 pairs of Tatoeba, and 10,678 subtitles to tune on, stand for millions.
The paper does not give its lambdas; ours are figures' names. Functions are found on sentences of
the treebank by `headwise inspect`, with the intervals of specialized_heads/syntax. In addition to lambdas,
numbers of heads are asked for, and reached by steering lambda. Not in the paper: German, from
Tatoeba and from Multi30k, which has not been run here; and a translator that keeps all heads and is
trained as long, as training alone changes BLEU: "BLEU lost to as much training" is what a pruned
one has less than that.

Found so far, by the last command, with translators of 40 million parameters pruned within 800
updates, beside two other experiments on the same device: the encoder can do with few heads. With 17
of 48 0.1 BLEU are lost (-1.3 to 1.4), 0.3 to a translator that was trained as long; with 10 left
0.6 (-0.9 to 2.1), 0.9 to that one, in the paper 0.15; and with 4 left 1.6 (1.1 to 2.0). Lambda 0.01
leaves 9 heads with every seed and loses 0.2 (-0.9 to 1.4), 0.4 less than the 10 that were asked
for (0.05 to 0.7): to steer lambda has its price. 0.05 leaves 2, 1 and 0, and loses 1.6,
1.3 and 2.8: an encoder without any attention keeps nine tenths of the BLEU of these short
sentences. Three seeds leave wide intervals: "reproduced" says little here. Small translators on a
CPU (3.8 million parameters, 200 updates, results/prune/earlier/encoder.json) had lost 0.5, 1.1 and
1.5 with 17, 10 and 4 heads.
Fig. 8 stays open: by the rules of `inspect` no head of these encoders has a function, on 2,000
sentences, neither before pruning nor after, so that there is none to lose. What pruning does to
heads that have one is seen where they were taught it, in specialized_heads/prune-guided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headwise.recording.run import Run
from headwise.reporting.role_groups import group_of
from headwise.workflows.inspect import InspectConfig, inspect_folder
from headwise_papers.core.base import Expected, Experiment
from headwise_papers.specialized_heads._inspecting import entering, short_trees
from headwise_papers.specialized_heads._prune_plots import draw_counts, draw_curves, draw_histograms
from headwise_papers.specialized_heads._training import Job
from headwise_papers.specialized_heads._translators import (
    ENTERING,
    SMALL,
    Cut,
    Figures,
    Pruned,
    Pruning,
    add_losses,
    amounts,
    asked_for,
    jobs_named,
    prune_at_once,
    pruned,
    translator_run,
)

FUNCTIONS = ("positional", "syntactic", "rare words")
ENCODER = "encoder.*"
TOGETHER = 256  # sentences that are looked at together


@dataclass(frozen=True)
class Config(Pruning):
    """Which translators are pruned, and how far; see `Pruning` and `Training`."""

    translators: tuple[str, ...] = ENTERING
    keep: tuple[int, ...] = (48, 17, 10, 4)  # 48 are all of them
    penalties: tuple[float, ...] = (0.01, 0.05)
    trees: int = 2000  # sentences of the treebank on which functions are found
    longest_tree: int = 20


EXPECTED = (
    Expected("en-ru: 10 heads: BLEU lost", 0.15, "Fig. 7, section 6.2.1", margin=0.5, partly=1.0),
    Expected(
        "en-ru subtitles: 4 heads: BLEU lost", 0.25, "Fig. 7, section 6.2.1", margin=0.5, partly=1.0
    ),
    *(
        Expected(f"{name}: 17 heads: functions that are still there", 1.0, "Fig. 8", partly=0.5)
        for name in ("en-ru", "en-ru subtitles")
    ),
)


def reproduce(config: Config, run: Run) -> Figures:
    """Train, prune by every amount, look at what is left, and draw."""
    figures: Figures = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    lambdas: dict[str, list[tuple[float, float]]] = {}
    before: dict[str, list[float]] = {}
    counted: dict[str, dict[str, dict[int, float]]] = {}
    certain: dict[str, list[float]] = {}
    every = [jobs_named(config, name) for name in config.translators]
    _prune_at_once(config, run, [job for jobs in every for job in jobs])
    for jobs in every:
        for job in entering(config, run, jobs, figures):
            left = [_pruned(config, run, Cut(job, amount)) for amount in amounts(config)]
            unpruned = translator_run(config, run, job).folder
            functions = [
                _functions(config, run, job, "unpruned", unpruned),
                *(_functions(config, run, job, one.amount.name, one.folder) for one in left),
            ]
            _add(figures, job, left, functions)
            name = f"{job.name}, seed {job.seed}"
            fixed = [one for one in left if one.amount.penalty is not None]
            curves[name] = _points(asked_for(left))
            if fixed and curves[name] != _points(fixed):
                lambdas[name] = _points(fixed)
            before[name] = [left[0].bleu + left[0].lost]
            counted[name] = _by_function(left, functions)
            certain |= {f"{name}, {one.amount.title}": one.prob_open() for one in fixed}
    if curves:
        across = "heads left in the encoder"
        draw_curves(curves, run, "encoder", across=across, up="BLEU", lines=before, apart=lambdas)
        if any(len(lines) > 1 for lines in counted.values()):  # else no head has a function
            draw_counts(counted, run, "functions", across=across)
        if certain:
            draw_histograms(certain, run, "gates")
    return figures


def _points(some: Sequence[Pruned]) -> list[tuple[float, float]]:
    return [(float(one.counts()["encoder.self"]), one.bleu) for one in some]


def _prune_at_once(config: Config, run: Run, jobs: Sequence[Job]) -> None:
    if config.at_once > 1:
        _trees(config, run)  # which looks share, so that one process writes them
    cuts = [Cut(job, amount) for job in jobs for amount in amounts(config)]
    prune_at_once(config, run, cuts, partial(_prune_and_look, config))


def _prune_and_look(config: Config, run: Run, cut: Cut) -> None:
    one = _pruned(config, run, cut)
    _functions(config, run, cut.job, cut.amount.name, one.folder)
    if cut.amount == amounts(config)[0]:
        unpruned = translator_run(config, run, cut.job).folder
        _functions(config, run, cut.job, "unpruned", unpruned)


def _pruned(config: Config, run: Run, cut: Cut) -> Pruned:
    return pruned(config, run, *cut, where=ENCODER, freeze="decoder", name="encoder")


def _add(
    figures: Figures, job: Job, left: Sequence[Pruned], functions: Sequence[dict[str, int]]
) -> None:
    """Figures of a translator: BLEU, heads and functions for each amount."""
    unpruned, *others = functions
    there = [name for name in FUNCTIONS if unpruned.get(name)]
    having = sum(unpruned.get(name, 0) for name in FUNCTIONS)
    figures.setdefault(f"{job.name}: heads with a function, unpruned", []).append(having)
    add_losses(figures, job, left)
    for one, counts in zip(left, others, strict=True):
        amount = one.amount.title
        name = f"{job.name}: {amount}"
        figures.setdefault(f"{name}: heads left", []).append(one.counts()["encoder.self"])
        if there:
            share = sum(bool(counts.get(function)) for function in there) / len(there)
            figures.setdefault(f"{name}: functions that are still there", []).append(share)


def _functions(config: Config, run: Run, job: Job, name: str, model: Path) -> dict[str, int]:
    """How many heads of the encoder have which function."""
    folder = run.folder / "looked" / job.folder / name
    if not (folder / "figures.json").is_file():  # else the model need not even be opened
        trees = str(_trees(config, run))
        looking = InspectConfig(str(model), trees, sample=0, samples=0, batch_size=TOGETHER)
        inspect_folder(looking, folder)
    counts: dict[str, int] = {}
    for head, row in Run.open(folder).heads():
        if head.site.startswith("encoder"):
            group = group_of(str(row["role"])) if row["role"] else "no role found"
            counts[group] = counts.get(group, 0) + 1
    return counts


def _trees(config: Config, run: Run) -> Path:
    return short_trees(run, longest=config.longest_tree, count=config.trees)


def _by_function(
    left: Sequence[Pruned], functions: Sequence[dict[str, int]]
) -> dict[str, dict[int, float]]:
    """Function -> heads left -> how many of them have it."""
    numbers = [one.counts()["encoder.self"] for one in left]
    ordered = sorted(zip(numbers, functions[1:], strict=True), key=lambda pair: pair[0])
    names = dict.fromkeys(name for counts in functions for name in counts)
    return {
        name: {number: float(counts.get(name, 0)) for number, counts in ordered} for name in names
    }


experiment = Experiment(
    summary=(__doc__ or "").splitlines()[0],
    config=Config(),
    smoke=Config(
        translators=("en-ru",), keep=(8, 3), penalties=(50.0,), trees=8, longest_tree=8, **SMALL
    ),
    reproduce=reproduce,
    expected=EXPECTED,
)
