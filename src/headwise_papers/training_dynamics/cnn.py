"""Appendix A: do score and norm still grow together when attention sees a convolution of words?

Two Markov chains make sentences, each with its own pairs of words that always follow each other.
Attn-TC-CNN attends to convolved pairs. Scores and norms are centred by their initial values.

    headwise reproduce training_dynamics/cnn --jobs 2    # 1 minute on a GPU, 15 on a CPU

- The paper gives neither keys nor query: keys have width 15, the fixed query norm 1 or entries from
  N(0, 1).
- "Nearly unchanged" is less than a tenth of the change of topic pairs, on average.
- "Grow together" is a rank correlation over epochs above 0.9. The paper does not claim Eq. 10 here;
  norms end 1.5 to 2.5 times above it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.config import from_json
from headwise.recording import Run
from headwise_papers.core import (
    Claim,
    Experiment,
    Job,
    Result,
    draw_histogram,
    draw_paths,
    find_or_train,
    panels,
)
from headwise_papers.data.synthetic import PairTask
from headwise_papers.measures.ranks import rank_correlation
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.pair_stack import PairStack
from headwise_papers.models.stacking import best_device
from headwise_papers.ops.sen import theoretical_norm
from headwise_papers.recipes.descent import descend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUERIES = ("unit query", "N(0, 1) query")
TOGETHER = 0.9  # least rank correlation of what grows together
TASK = PairTask()
TRAINED = "trained.safetensors"


@dataclass(frozen=True)
class Config:
    """Settings of the models with one query; the experiment trains them with both."""

    task: PairTask = TASK
    unit_query: bool = True  # whether the query's norm is 1
    rate: float = 0.1
    epochs: int = 3000
    every: int = 10  # epochs between records
    seeds: int = 10


SMOKE = Config(
    PairTask(dictionary=40, length=6, train=200, test=100), rate=0.3, epochs=400, seeds=2
)

CLAIMS = tuple(
    claim
    for query in QUERIES
    for claim in (
        Claim.value(f"{query}: test accuracy", 0.9989, margin=0.001, number=63, where="App. A",
                    text="Test accuracy"),
        Claim.value(f"{query}: topic pairs whose score and norm grow together", 1.0, margin=0.0,
                    number=63, where="Fig. 9", text="Topic pairs that grow together"),
        Claim.value(f"{query}: others' score over topic pairs'", 0.0, margin=0.1, number=63,
                    where="Fig. 8", text="Change of other pairs' score, relative"),
        Claim.value(f"{query}: others' norm over topic pairs'", 0.0, margin=0.1, number=63,
                    where="Fig. 8", text="Change of other pairs' norm, relative"),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """Centred scores and norms of pairs; pair (a, b) has number a * dictionary + b."""

    score_ESW: Tensor  # of topic pairs, through training
    norm_ESW: Tensor
    scores_SP: Tensor  # of all pairs, at the end
    norms_SP: Tensor
    accuracy_S: Tensor
    topic_SP: Tensor  # whether a pair tells a topic
    unrelated_SP: Tensor  # whether it shares no word with one that does

    @staticmethod
    def of(config: Config) -> "Trained":
        """Find the models or train them."""
        run = find_or_train(train_pairs, config)
        curves = run.load_tensors("trace/sen/curves.safetensors")
        return Trained(curves["score"], curves["norm"], **run.load_tensors(TRAINED))


class _Centred:
    """Scores and vectors of some pairs, less what they were when this was made."""

    def __init__(self, stack: PairStack, pairs_SP2: Tensor) -> None:
        self._pairs_SP2 = pairs_SP2.to(stack.parameters["embeddings"].device)
        self._scores_SP = stack.pair_scores(self._pairs_SP2)
        self._vectors_SPD = stack.pair_vectors(self._pairs_SP2)

    def scores(self, stack: PairStack) -> Tensor:
        return stack.pair_scores(self._pairs_SP2) - self._scores_SP

    def vectors(self, stack: PairStack) -> Tensor:
        return stack.pair_vectors(self._pairs_SP2) - self._vectors_SPD


def build_stack(config: Config) -> PairStack:
    """Build untrained models; those of a seed differ in the length of the query alone."""
    shape = BagConfig(
        vocabulary=config.task.dictionary, classes=2, key_width=15, query_std=1.0, convolution=True
    )
    models: list[BagClassifier] = []
    for seed in range(config.seeds):
        generator = torch.Generator().manual_seed(seed)
        own = BagClassifier(shape, generator=generator, dtype=torch.float64)
        if config.unit_query:
            own.query.data.div_(own.query.data.norm())
        models.append(own.to(best_device()))
    return PairStack(models)


def train_pairs(config: Config, folder: Path) -> Run:
    """Train by gradient descent; each seed has its own pairs, sentences and initial parameters."""
    sentences, stack = config.task.draw(range(config.seeds)), build_stack(config)
    pairs_SW2, words = sentences.pairs.flatten(1, 2), torch.arange(config.task.dictionary)
    every_pair = torch.cartesian_prod(words, words).expand(config.seeds, -1, -1)
    topic, every = _Centred(stack, pairs_SW2), _Centred(stack, every_pair)
    curves = SenCurves(
        torch.arange(pairs_SW2.shape[1]),
        scores=topic.scores,
        vectors=topic.vectors,
        every=config.every,
    )
    with Run.create(folder, config) as run:
        descend(
            stack,
            sentences.train,
            epochs=config.epochs,
            rate=config.rate,
            recorders=[curves],
            run=run,
        )
        tested = stack.evaluate(stack.prepare(sentences.test))
        topic_SP, unrelated_SP = topics_and_others(pairs_SW2, config.task.dictionary)
        trained = {
            "scores_SP": every.scores(stack),
            "norms_SP": every.vectors(stack).norm(dim=-1),
            "accuracy_S": tested.accuracy,
            "topic_SP": topic_SP,
            "unrelated_SP": unrelated_SP,
        }
        run.save_tensors(TRAINED, trained)
        run.save_figures({"accuracy": tested.accuracy.mean().item()})
    return run


def topics_and_others(pairs_SW2: Tensor, dictionary: int) -> tuple[Tensor, Tensor]:
    """Return (S, P) each: which pairs tell a topic, and which share no word with those."""
    seeds = len(pairs_SW2)
    seed_S1 = torch.arange(seeds)[:, None]
    topic_SVV = torch.zeros(seeds, dictionary, dictionary, dtype=torch.bool)
    topic_SVV[seed_S1, pairs_SW2[..., 0], pairs_SW2[..., 1]] = True
    strange_SV = torch.ones(seeds, dictionary, dtype=torch.bool)
    strange_SV[seed_S1, pairs_SW2.flatten(1)] = False
    return topic_SVV.flatten(1), (strange_SV[:, :, None] & strange_SV[:, None]).flatten(1)


def settings(config: Config) -> dict[str, Config]:
    """Return the settings by query."""
    return {query: replace(config, unit_query=query == QUERIES[0]) for query in QUERIES}


def models(config: Config) -> Iterator[Job]:
    """List the models with both queries."""
    return (Job(train_pairs, own) for own in settings(config).values())


def run(config: Config, out: Run) -> dict[str, Result]:
    """Measure the models with both queries."""
    results: dict[str, Result] = {}
    for query, own in settings(config).items():
        found = measures(Trained.of(own), config.task.length - 2)
        results |= {f"{query}: {name}": Result(values.tolist()) for name, values in found.items()}
    return results


def measures(trained: Trained, m: int) -> dict[str, Tensor]:
    """Return what is measured of one query, one value per seed."""
    score_ESW, norm_ESW = trained.score_ESW, trained.norm_ESW
    rho_SW = rank_correlation(score_ESW.movedim(0, -1), norm_ESW.movedim(0, -1))
    theory_SW = theoretical_norm(score_ESW[-1], m)
    found = {
        "test accuracy": trained.accuracy_S,
        "topic pairs whose score and norm grow together": (rho_SW > TOGETHER).double().mean(1),
        "rank correlation of score and norm": rho_SW.mean(1),
        "topic score": score_ESW[-1].mean(1),
        "topic norm": norm_ESW[-1].mean(1),
        "norm over Eq. 10's at the end": (norm_ESW[-1] / theory_SW).mean(1),
    }
    others = {"others'": ~trained.topic_SP, "unrelated others'": trained.unrelated_SP}
    for what, values_SP in (("score", trained.scores_SP), ("norm", trained.norms_SP)):
        change_S = mean_among(values_SP.abs(), trained.topic_SP)
        for whose, among_SP in others.items():
            ratio_S = mean_among(values_SP.abs(), among_SP) / change_S
            found[f"{whose} {what} over topic pairs'"] = ratio_S
    return found


def mean_among(values_SP: Tensor, among_SP: Tensor) -> Tensor:
    """Return the mean over some pairs."""
    return (values_SP * among_SP).sum(1) / among_SP.sum(1)


def draw(results: dict[str, Result], out: Run) -> "dict[str, Figure]":
    """Draw Fig. 8 (centred scores and norms of pairs) and Fig. 9 (one topic pair of each seed)."""
    config = from_json(Config, out.config())
    distributions, rows = panels(4, len(QUERIES), width=3.2, height=2.7)
    sen, (sen_row,) = panels(len(QUERIES), width=4.2, height=3.4)
    theory = partial(theoretical_norm, m=config.task.length - 2)
    for row, axes, (query, own) in zip(rows, sen_row, settings(config).items(), strict=True):
        x = Trained.of(own)
        draw_paths(axes, x.score_ESW[..., 0], x.norm_ESW[..., 0], theory=theory, label="Eq. 10")
        axes.set(xlabel=f"score ({query})", ylabel="embedding norm")
        for histogram, values_SP, among_SP, name, bins in (
            (row[0], x.scores_SP, ~x.topic_SP, "centred score of other pairs", 20),
            (row[1], x.scores_SP, x.topic_SP, "centred score of topic pairs", 8),
            (row[2], x.norms_SP, ~x.topic_SP, "centred norm of other pairs", 20),
            (row[3], x.norms_SP, x.topic_SP, "centred norm of topic pairs", 8),
        ):
            chosen = {"Attn-TC": values_SP[among_SP].view(config.seeds, -1)}
            label = f"share of pairs ({query})" if histogram is row[0] else ""
            draw_histogram(histogram, chosen, xlabel=name, ylabel=label, bins=bins)
    sen_row[0].legend(fontsize="x-small", ncols=2)
    return {"fig8-distributions": distributions, "fig9-sen": sen}


experiment = Experiment(Config(), SMOKE, models, run, draw, CLAIMS)
