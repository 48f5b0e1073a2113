"""Training on sentences with one topic word each (Section 5.1), for several experiments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.recording import Run
from headwise_papers.core import find_or_train
from headwise_papers.data.synthetic import TopicTask
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.models.bag import BagConfig
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.recipes.descent import descend

TASK, MODEL = TopicTask(), BagConfig()  # the paper's
SMALL_TASK = TopicTask(dictionary=300, others=5, train=200, test=50)
TRAINED = "trained.safetensors"


@dataclass(frozen=True)
class TopicTraining:
    """Settings of one classifier, trained with several seeds."""

    task: TopicTask = TASK
    model: BagConfig = MODEL  # its vocabulary and classes are those of the task
    rate: float = 0.1  # the paper's eta, where the norm of the query is 1
    epochs: int = 5000
    every: int = 1  # epochs between records of scores and norms
    seeds: int = 5

    def of(self, **changes: Any) -> "TopicTraining":
        """Return these settings with changes to the model."""
        return replace(self, model=replace(self.model, **changes))


@dataclass(frozen=True)
class TopicModels:
    """Trained models, and their topic words through training."""

    epoch: Tensor  # (E,) where scores and norms were recorded
    score: Tensor  # (E, S, W)
    norm: Tensor  # (E, S, W)
    loss: Tensor  # (epochs + 1, S) on the training sentences after 0, 1, 2, ... updates
    accuracy: Tensor  # (S,) on the test sentences
    final_scores: Tensor  # (S, V) of all words
    final_norms: Tensor  # (S, V)
    first_norms: Tensor  # (S, V)
    query_growth: Tensor  # (S,) the query's norm at the end, over that at the start

    @staticmethod
    def of(config: TopicTraining) -> "TopicModels":
        """Find the models or train them."""
        run = find_or_train(train_topics, config)
        curves = run.load_tensors("trace/sen/curves.safetensors")
        return TopicModels(
            curves["epoch"], curves["score"], curves["norm"], **run.load_tensors(TRAINED)
        )


def build_stack(config: TopicTraining) -> BagStack:
    """Build the untrained models, the same numbers for the same settings."""
    words, classes = config.task.vocabulary, config.task.topics
    return BagStack.seeded(replace(config.model, vocabulary=words, classes=classes), config.seeds)


def train_topics(config: TopicTraining, folder: Path) -> Run:
    """Train by gradient descent; each seed has its own sentences and initial parameters."""
    stack, sentences = build_stack(config), config.task.draw(range(config.seeds))
    first_norms, first_query = stack.word_vectors().norm(dim=-1), stack.query_norms().clone()
    curves = SenCurves(torch.arange(config.task.topic_words), every=config.every)
    with Run.create(folder, config) as run:
        descent = descend(
            stack,
            sentences.train,
            epochs=config.epochs,
            rate=config.rate,
            recorders=[curves],
            run=run,
            checkpoint_every=10_000,
        )
        last = stack.evaluate(stack.prepare(sentences.train)).loss.cpu()
        tested = stack.evaluate(stack.prepare(sentences.test))
        trained: Mapping[str, Tensor] = {
            "loss": torch.cat([descent.loss, last[None]]),
            "accuracy": tested.accuracy,
            "final_scores": stack.word_scores(),
            "final_norms": stack.word_vectors().norm(dim=-1),
            "first_norms": first_norms,
            "query_growth": stack.query_norms() / first_query,
        }
        run.save_tensors(TRAINED, trained)
        run.save_figures({"accuracy": tested.accuracy.mean().item()})
    return run
