"""Can a translator with the heads that pruning left be trained from scratch as well?

    headwise reproduce specialized_heads/prune-scratch --jobs 3    # 15 minutes on an H200
    headwise reproduce specialized_heads/prune-scratch --smoke     # 6 seconds on a CPU

Table 2 (from scratch): translators with the heads that `prune-all` left are trained from random
weights, for 2,000 updates; pruned ones had 2,000 before and 2,000 in pruning.

Deviations: from scratch ends with the mean of the last five checkpoints, pruning with its last
weights, which may be part of the difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from headwise.pruning import rebuild
from headwise.recording import Run
from headwise.training import average_checkpoints, fit
from headwise.workflows.prune import PruneConfig
from headwise_papers.core import Claim, Experiment, Job, Result, find_or_train, lines, minus
from headwise_papers.models import Transformer
from headwise_papers.recipes.pruning import translator_task
from headwise_papers.recipes.training_run import fit_here, training_bar
from headwise_papers.recipes.translation import TranslationConfig
from headwise_papers.recipes.translator import Translator
from headwise_papers.specialized_heads._models import recipe_of, scored, trained
from headwise_papers.specialized_heads._pruning import (
    SMALL,
    Pruning,
    PruningStudy,
    pruned,
    write_pairs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# heads in all: BLEU from scratch less from trained, rows of Table 2
PAPER = {75: -0.15, 58: -0.41, 36: -0.50, 26: -0.49}
APART = "from scratch less from trained"


@dataclass(frozen=True)
class Config(PruningStudy):
    """Settings: translators and how many heads they keep."""

    keep: tuple[int, ...] = (144, *PAPER)


@dataclass(frozen=True)
class Scratch:
    """Settings of a translator of a pruned one's shape."""

    shape: Pruning


CLAIMS = tuple(
    Claim.direction(result, sign=-1, paper=paper, number=150, where="Table 2", stands_for="Tatoeba",
                    text="Translators of the same shapes are worse from scratch")
    for result, paper in (
        *((f"en-ru: {heads} heads: {APART}", paper) for heads, paper in PAPER.items()),
        (f"en-ru: {APART}", -0.39),
    )
)  # fmt: skip


def models(config: Config) -> Iterator[Job]:
    every = list(config.jobs())
    yield from every
    for _, settings in every:
        if isinstance(settings, Pruning):
            yield Job(train_from_scratch, Scratch(settings))


def run(config: Config, run: Run) -> dict[str, Result]:
    """Prune translators, train the same shapes from scratch, and compare."""
    results: dict[str, Result] = {}
    for name in config.translators:
        scores, entering = scored(name, config.models(name), config.least_bleu)
        results |= scores
        if not entering:
            continue
        control: Result | None = None
        rows: list[Result] = []
        for amount in config.amounts():
            metric = f"{name}: {amount}"
            prunings = [config.pruning(model, amount) for model in entering]
            some = [pruned(pruning) for pruning in prunings]
            fresh = Result([_bleu_from_scratch(pruning) for pruning in prunings])
            results[f"{metric}: BLEU from trained"] = Result([one.bleu for one in some])
            results[f"{metric}: BLEU from scratch"] = fresh
            if some[0].is_whole:
                control = fresh
                continue
            rows.append(minus(fresh, results[f"{metric}: BLEU from trained"]))
            results[f"{metric}: {APART}"] = rows[-1]
            if control is not None:
                results[f"{metric}: BLEU lost from scratch"] = minus(control, fresh)
        means = zip(*(row.values for row in rows), strict=True)
        results[f"{name}: {APART}"] = Result([fmean(x) for x in means], "difference")
    return results


def _bleu_from_scratch(pruning: Pruning) -> float:
    return float(find_or_train(train_from_scratch, Scratch(pruning)).figures()["bleu"])


def train_from_scratch(config: Scratch, folder: Path) -> Run:
    """Train a translator of a pruned one's shape as the unpruned one was; return its run."""
    model = config.shape.model
    recipe, shape = recipe_of(model), pruned(config.shape)
    with Run.create(folder, config, "translation") as run:
        known = Translator.load(trained(model))
        torch.manual_seed(recipe.fit.seed)
        fresh = rebuild(Transformer(known.model.config), shape.record)
        translator = Translator(fresh, known.source, known.target)
        run.save_figures({"bleu": _train(run, translator, recipe, write_pairs(run, model))})
    return run


def _train(
    run: Run, translator: Translator, recipe: TranslationConfig, files: tuple[Path, Path]
) -> float:
    """Train in place, keep the translator, and return its BLEU."""
    given = PruneConfig(
        model=str(run.folder),
        data=(str(files[0]),),
        dev=(str(files[1]),),
        keep=0,  # nothing is pruned here: only the task is taken
        tokens=recipe.batch_tokens,
        beams=recipe.beams,
    )
    task = translator_task(given, translator)
    with training_bar(recipe.fit.steps) as show:
        fit(
            translator.model,
            task.loss,
            task.train.epochs(size=given.batch_size, seed=recipe.fit.seed),
            run=run,
            config=fit_here(recipe.fit, replayable=True),
            progress=show,
        )
    translator.model.load_state_dict(average_checkpoints(run))
    translator.save(run)
    return task.score(translator.model)["bleu"]


def draw(results: dict[str, Result], run: Run) -> "dict[str, Figure]":
    """Draw BLEU by heads left, from trained and from scratch."""
    settings = run.config()
    curves = {
        f"{name} {how}": {
            heads: results[f"{name}: {heads} heads: BLEU {how}"] for heads in settings["keep"]
        }
        for name in settings["translators"]
        if results[f"{name}: enters"].mean
        for how in ("from trained", "from scratch")
    }
    return {"scratch": lines(curves, xlabel="heads left", ylabel="BLEU")} if curves else {}


experiment = Experiment(Config(), Config(keep=(24, 9), **SMALL), models, run, draw, CLAIMS)
