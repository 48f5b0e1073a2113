"""Training Attn-FC and Attn-TC on SST (Section 5.2), for several experiments.

Training keeps what any of them needs: score and norm of all words in three or more training
sentences, the same of a few words ten times as often, and the attended word of each sentence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headwise.recording import Run
from headwise_papers.core import Job, find_or_train
from headwise_papers.data.bags import Bags, Sst, read_sst
from headwise_papers.measures.sen_curves import AttendedWords, SenCurves
from headwise_papers.models.bag import BagConfig
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.ops.sen import class_counts, companions, topic_purity
from headwise_papers.recipes.descent import descend

Data = Literal["sst2", "sst5"]
MINIMUM = 3  # training sentences of a word that is followed
# the one whose weights Fig. 5 shows; its words are followed closely
SENTENCE = ["a", "powerful", "sequel", "and", "one", "of", "the", "best", "films", "of", "the",
            "year"]  # fmt: skip
TRAINED = "trained.safetensors"


@dataclass(frozen=True)
class SstTraining:
    """Settings of one classifier on one data set, trained with several seeds."""

    classifier: Literal["FC", "TC"] = "TC"
    width: int = 200  # of embeddings; Attn-FC needs no more than there are classes
    rate: float = 0.1
    data: Data = "sst2"
    epochs: int = 60_000  # at most
    patience: int = 100  # epochs to wait for a lower validation loss
    every: int = 100  # epochs between records
    seeds: int = 5
    thin: int = 1  # takes every n-th training sentence


FC = SstTraining("FC", rate=1.0)  # ten times the paper's, see training_dynamics/sst
TC = SstTraining("TC")


@dataclass(frozen=True)
class SstConfig:
    """Settings of both classifiers."""

    fc: SstTraining = FC
    tc: SstTraining = TC

    def trainings(self, data: Data = "sst2") -> dict[str, SstTraining]:
        """Return the settings on a data set by classifier."""
        return {"FC": replace(self.fc, data=data), "TC": replace(self.tc, data=data)}

    def models(self) -> Iterator[Job]:
        """List the models on SST2."""
        return (Job(train_sst, training) for training in self.trainings().values())


SMOKE = SstConfig(  # the whole of training, with long steps
    SstTraining("FC", width=2, rate=80.0, epochs=400, patience=10, every=20, seeds=1),
    SstTraining("TC", width=4, rate=8.0, epochs=400, patience=10, every=20, seeds=1),
)


@dataclass(frozen=True)
class Corpus:
    """SST with what its training sentences say about each word."""

    sst: Sst
    occurrence_V: Tensor  # training sentences with the word
    purity_V: Tensor
    m_V: Tensor  # the m of Eq. 10; nan for words that are not in the training sentences

    def numbers(self, words: list[str]) -> Tensor:
        """Return the numbers of words; raises where the vocabulary lacks one."""
        return torch.tensor([self.sst.vocabulary.words.index(word) for word in words])

    def words_in(self, sentences: int) -> Tensor:
        """Return the words that are in so many training sentences, with other words in them."""
        return ((self.occurrence_V >= sentences) & self.m_V.isfinite()).nonzero()[:, 0]


def read_corpus(training: SstTraining) -> Corpus:
    """Read the data that a training reads."""
    return _read_corpus(training.data, training.thin)


@lru_cache(maxsize=2)
def _read_corpus(data: Data, thin: int) -> Corpus:
    whole = read_sst(data)
    few = Bags(*(x[:, ::thin] for x in vars(whole.train).values()))
    sst = replace(whole, train=few)
    words, classes = len(sst.vocabulary), sst.classes
    tokens, lengths, labels = few.tokens[0], few.lengths[0], few.labels[0]
    counts = class_counts(tokens, labels, vocabulary=words, classes=classes, lengths=lengths)
    return Corpus(
        sst,
        counts.sum(-1),
        topic_purity(tokens, labels, vocabulary=words, classes=classes, lengths=lengths),
        companions(tokens, vocabulary=words, lengths=lengths),
    )


def build_stack(training: SstTraining, corpus: Corpus) -> BagStack:
    """Build untrained models, the same numbers for the same settings."""
    shape = BagConfig(
        vocabulary=len(corpus.sst.vocabulary),
        classes=corpus.sst.classes,
        width=training.width,
        classifier=training.classifier,
    )
    return BagStack.seeded(shape, training.seeds)


def train_sst(config: SstTraining, folder: Path) -> Run:
    """Train by gradient descent until the validation loss has not fallen for `patience` epochs."""
    corpus = read_corpus(config)
    stack, sst = build_stack(config, corpus), corpus.sst
    often = max(1, config.every // 10)
    with Run.create(folder, config) as run:
        done = descend(
            stack,
            sst.train.repeated(config.seeds),
            epochs=config.epochs,
            rate=config.rate,
            validation=sst.dev.repeated(config.seeds),
            patience=config.patience,
            recorders=[
                SenCurves(corpus.words_in(MINIMUM), every=config.every, name="common"),
                SenCurves(corpus.numbers(SENTENCE), every=often, name="sentence"),
                AttendedWords(sst.train, every=config.every),
            ],
            run=run,
            log_every=500,
            checkpoint_every=5000,  # a checkpoint holds every word's embedding twice
        )
        tested = stack.evaluate(stack.prepare(sst.test.repeated(config.seeds)))
        run.save_tensors(
            TRAINED,
            {
                "score_SV": stack.word_scores(),
                "best_S": done.best_epoch,
                "stopped_S": done.stopped,
                "accuracy_S": tested.accuracy,
            },
        )
        run.save_figures({"accuracy": tested.accuracy.mean().item()})
    return run


@dataclass(frozen=True)
class Curves:
    """Score and norm of some words through training."""

    word_W: Tensor
    epoch_E: Tensor
    score_ESW: Tensor
    norm_ESW: Tensor


@dataclass(frozen=True)
class Trained:
    """Models with the parameters of their best epochs; records end at the earliest of these."""

    run: Run
    score_SV: Tensor  # of every word
    best_S: Tensor  # epoch of the lowest validation loss
    stopped_S: Tensor
    accuracy_S: Tensor  # on the test sentences

    @staticmethod
    def of(training: SstTraining) -> "Trained":
        """Find the models or train them."""
        run = find_or_train(train_sst, training)
        return Trained(run, **run.load_tensors(TRAINED))

    def curves(self, name: Literal["common", "sentence"]) -> Curves:
        """Return the curves of all common words, or those of SENTENCE, which are finer."""
        seen = self._recorded(name)
        return Curves(seen["words"], seen["epoch"], seen["score"], seen["norm"])

    def attended(self) -> tuple[Tensor, Tensor]:
        """Return epochs (E,) and the attended word of each training sentence (E, S, N)."""
        seen = self._recorded("attended")
        return seen["epoch"], seen["word"].long()

    def _recorded(self, name: str) -> dict[str, Tensor]:
        seen = self.run.load_tensors(f"trace/{name}/curves.safetensors")
        end = int((seen["epoch"] <= self.best_S.min()).sum())
        return {key: x if key == "words" else x[:end] for key, x in seen.items()}
