"""Training Attn-FC and Attn-TC on SST as Section 5.2 of the paper does, for several experiments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from headwise.config import Dataclass
from headwise.recording.run import Run
from headwise_papers.data.bags import Bags, Sst, read_sst
from headwise_papers.measures.sen import class_counts, companions, topic_purity
from headwise_papers.measures.sen_curves import SenCurves
from headwise_papers.models.bag import BagClassifier, BagConfig
from headwise_papers.models.bag_stack import BagStack
from headwise_papers.recipes.descent import Recorder, descend

__all__ = [
    "Corpus",
    "Curves",
    "Settings",
    "Trained",
    "build_stack",
    "device_of",
    "rate_of",
    "read_corpus",
    "train",
]

Classifier = Literal["FC", "TC"]
CHECKPOINT_EVERY = 5000  # epochs; a checkpoint holds every word's embedding twice


@runtime_checkable
class Settings(Dataclass, Protocol):
    """What the training of these experiments needs of their configs."""

    @property
    def fc_width(self) -> int: ...
    @property
    def tc_width(self) -> int: ...
    @property
    def embedding_std(self) -> float: ...
    @property
    def fc_rate(self) -> float: ...
    @property
    def tc_rate(self) -> float: ...
    @property
    def epochs(self) -> int: ...
    @property
    def patience(self) -> int: ...
    @property
    def every(self) -> int: ...
    @property
    def seeds(self) -> int: ...
    @property
    def thin(self) -> int: ...
    @property
    def device(self) -> str: ...


@dataclass(frozen=True)
class Corpus:
    """SST with what its training sentences say about each word."""

    sst: Sst
    occurrence_V: Tensor  # training sentences with the word
    purity_V: Tensor
    m_V: Tensor  # the m of Eq. 10; nan for words that are not in the training sentences

    def number(self, word: str) -> int:
        """The word's number; raises where the vocabulary has no such word."""
        return self.sst.vocabulary.words.index(word)

    def words_in(self, sentences: int) -> Tensor:
        """Numbers of the words that are in at least that many training sentences, with company."""
        return ((self.occurrence_V >= sentences) & self.m_V.isfinite()).nonzero()[:, 0]


def read_corpus(name: Literal["sst2", "sst5"], config: Settings) -> Corpus:
    """Read SST2 or SST5; of its training sentences every `thin`-th."""
    whole = read_sst(name)
    few = Bags(*(x[:, :: config.thin] for x in vars(whole.train).values()))
    sst = Sst(few, whole.dev, whole.test, whole.vocabulary, whole.classes)
    words, classes = len(sst.vocabulary), sst.classes
    tokens, lengths, labels = few.tokens[0], few.lengths[0], few.labels[0]
    counts = class_counts(tokens, labels, vocabulary=words, classes=classes, lengths=lengths)
    return Corpus(
        sst,
        counts.sum(-1),
        topic_purity(tokens, labels, vocabulary=words, classes=classes, lengths=lengths),
        companions(tokens, vocabulary=words, lengths=lengths),
    )


@dataclass(frozen=True)
class Trained:
    """Models of one classifier, a seed each, with the parameters of the best epoch."""

    stack: BagStack
    best_S: Tensor  # the epoch of the lowest validation loss
    stopped_S: Tensor
    accuracy_S: Tensor  # on the test sentences

    def until(self, epoch_E: Tensor) -> int:
        """How many of some recorded epochs belong to training: to the earliest best one."""
        return int((epoch_E <= self.best_S.min()).sum())


@dataclass(frozen=True)
class Curves:
    """Score and norm of some words through training, cut at the earliest best epoch of a seed."""

    epoch_E: Tensor
    score_ESW: Tensor
    norm_ESW: Tensor

    @staticmethod
    def of(recorder: SenCurves, trained: Trained) -> "Curves":
        """What a recorder saw of a training."""
        seen = recorder.tensors()
        end = trained.until(seen["epoch"])
        return Curves(seen["epoch"][:end], seen["score"][:end], seen["norm"][:end])


def build_stack(classifier: Classifier, corpus: Corpus, config: Settings) -> BagStack:
    """Untrained models, the same numbers for the same config."""
    device = device_of(config)
    shape = BagConfig(
        vocabulary=len(corpus.sst.vocabulary),
        classes=corpus.sst.classes,
        width=config.fc_width if classifier == "FC" else config.tc_width,
        classifier=classifier,
        embedding_std=config.embedding_std,
    )
    models = [
        BagClassifier(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
            device
        )
        for seed in range(config.seeds)
    ]
    return BagStack(models)


def device_of(config: Settings) -> str:
    """Where to compute."""
    if config.device != "auto":
        return config.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def rate_of(classifier: Classifier, config: Settings) -> float:
    """The learning rate of a classifier's model."""
    return config.fc_rate if classifier == "FC" else config.tc_rate


def train(
    classifier: Classifier,
    corpus: Corpus,
    config: Settings,
    run: Run,
    *,
    name: str,
    recorders: Sequence[Recorder],
) -> Trained:
    """Gradient descent until the validation loss has not fallen for `patience` epochs.

    Args:
        classifier: what reads the context.
        corpus: from `read_corpus`.
        config: the experiment's.
        run: the experiment's; the training is kept, and resumed, in its folder `name`.
        name: of this training.
        recorders: called at every epoch.
    """
    stack, sst = build_stack(classifier, corpus, config), corpus.sst
    with Run.create(run.path(name), config) as own:
        done = descend(
            stack,
            sst.train.repeated(config.seeds),
            epochs=config.epochs,
            rate=rate_of(classifier, config),
            validation=sst.dev.repeated(config.seeds),
            patience=config.patience,
            recorders=recorders,
            run=own,
            log_every=500,
            checkpoint_every=CHECKPOINT_EVERY,
        )
    tested = stack.evaluate(stack.prepare(sst.test.repeated(config.seeds)))
    return Trained(stack, done.best_epoch, done.stopped, tested.accuracy.cpu())
