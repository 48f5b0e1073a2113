"""Appendix B: does Eq. 10 still describe score and norm when the query is trained too?

The task of `synthetic`, with a query drawn with variance 0.1, 0.5, 1 or 2.

    headwise reproduce training_dynamics/query --jobs 4    # 4 minutes on a CPU core

- Keys and query have width 15; the paper does not say. Variances share everything but the query's
  length, and the rate of 0.1.
- Deviation is the largest at scores from 0.05 to 5, where Fig. 10 ends. The first choice was that
  at the end of training, at scores of 6 to 9, where curves have crossed Eq. 10. Both are judged.
- "Grow together" is a positive rank correlation over epochs.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import Claim, Experiment, Job, Result, draw_paths, minus, panels
from headwise_papers.measures.ranks import rank_correlation
from headwise_papers.models.bag import BagConfig
from headwise_papers.ops.sen import deviation, theoretical_norm
from headwise_papers.training_dynamics._topics import (
    SMALL_TASK,
    TopicModels,
    TopicTraining,
    train_topics,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("FC", "TC", "TL")
VARIANCES = (0.1, 0.5, 1.0, 2.0)  # of the query's entries
REACH = 5.0  # score at which the paper's figure ends
SHOWN = 3  # topic word of Fig. 10
CONFIG = TopicTraining(model=BagConfig(key_width=15, query="trainable"), every=5)
SMOKE = replace(CONFIG, task=SMALL_TASK, epochs=600, seeds=2)

CLAIMS = (
    *(
        Claim.value(f"{model} words with a positive relation", 1.0, margin=0.0, number=64,
                    where="Fig. 10", text="Topic words that grow together")
        for model in MODELS
    ),
    *(
        Claim.direction(f"{model} deviation, variance {more:g} - {less:g}", sign=-1, number=64,
                        where="App. B", text="Deviation falls with the query's variance")
        for model in MODELS
        for less, more in pairwise(VARIANCES)
    ),
    *(
        Claim.direction(f"{model} final deviation, variance {more:g} - {less:g}", sign=-1,
                        number=64, where="App. B",
                        text="The same at the end")
        for model in MODELS
        for less, more in pairwise(VARIANCES)
    ),
)  # fmt: skip


def settings(config: TopicTraining, model: str, variance: float) -> TopicTraining:
    """Return the settings of one classifier with one variance."""
    return config.of(classifier=model, query_std=variance**0.5)


def models(config: TopicTraining) -> Iterator[Job]:
    """List each classifier with each variance."""
    for model in MODELS:
        for variance in VARIANCES:
            yield Job(train_topics, settings(config, model, variance))


def run(config: TopicTraining, out: Run) -> dict[str, Result]:
    """Measure each classifier with each variance."""
    results: dict[str, Result] = {}
    for model in MODELS:
        trained = [TopicModels.of(settings(config, model, variance)) for variance in VARIANCES]
        own = measures(trained, config.task.others)
        results |= {f"{model} {name}": result for name, result in own.items()}
    return results


def measures(trained: list[TopicModels], m: int) -> dict[str, Result]:
    """Return results of one classifier; `trained` is in the order of VARIANCES."""
    rho_XSW = torch.stack([rank_correlation(x.score.movedim(0, -1), x.norm.movedim(0, -1))
                           for x in trained])  # fmt: skip
    accuracy_XS = torch.stack([x.accuracy for x in trained])
    results = {
        "words with a positive relation": Result((rho_XSW > 0).double().mean((0, 2)).tolist()),
        "test accuracy": Result(accuracy_XS.mean(0).tolist()),
    }
    for variance, x in zip(VARIANCES, trained, strict=True):
        within_ESW = x.score.where(x.score <= REACH, 0)  # 0 does not count
        for name, values_S in (
            ("deviation", deviation(within_ESW, x.norm, m).largest.nanmean(-1)),
            ("final deviation", deviation(x.score, x.norm, m).final.nanmean(-1)),
            ("growth of the query", x.query_growth),
        ):
            known_S = values_S[~values_S.isnan()]  # nan: no word's score was large enough
            if len(known_S):
                results[f"{name}, variance {variance:g}"] = Result(known_S.tolist())
    for name in ("deviation", "final deviation"):
        for less, more in pairwise(VARIANCES):
            first, second = (results.get(f"{name}, variance {one:g}") for one in (more, less))
            if first and second and len(first.values) == len(second.values):
                results[f"{name}, variance {more:g} - {less:g}"] = minus(first, second)
    return results


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 10: norm against score of one topic word, by classifier and variance."""
    config = from_json(TopicTraining, out.config())
    figure, rows = panels(len(VARIANCES), len(MODELS), width=3.2, height=2.5)
    theory = partial(theoretical_norm, m=config.task.others)
    for model, row in zip(MODELS, rows, strict=True):
        for variance, axes in zip(VARIANCES, row, strict=True):
            x = TopicModels.of(settings(config, model, variance))
            draw_paths(axes, x.score[..., SHOWN], x.norm[..., SHOWN], theory=theory, label="Eq. 10")
            axes.set(xlabel=f"score (Attn-{model}), variance {variance:g}")
        row[0].set_ylabel("embedding norm")
    rows[0][0].legend(fontsize="small")
    return {"fig10-trained-query": figure}


experiment = Experiment(CONFIG, SMOKE, models, run, draw, CLAIMS)
