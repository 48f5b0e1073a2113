"""The settings of `finetune`."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from headwise.training import FitConfig
from headwise.workflows.training_run import Precision
from headwise_papers.data.byte_pieces import FEWEST_PIECES, MOST_PIECES
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.recipes.tuning.starting import NO_MODEL

__all__ = ["FinetuningConfig"]

# updates at least, as each is written with the state of the optimiser; a GPU does so many a minute
CHECKPOINT_EVERY = {"cpu": 500, "cuda": 2000}
SHORTEST = 8  # pieces of a text: a pair has four marks, and some of both must be left
NOT_NEGATIVE = (
    "train_examples",
    "dev_examples",
    "test_examples",
    "folds",
    "learning_rate",
    "weight_decay",
    "clip",
    "patience",
)


@dataclass(frozen=True)
class FinetuningConfig:
    """What is learnt, from what start, and how."""

    task: str = (
        "rte"  # see headwise_papers.data.pair_tasks and tagging; "files" takes the ones below
    )
    train: str = ""  # label TAB text, or label TAB text TAB text; a .conll file holds tagged words
    dev: str = ""
    test: str = ""
    train_examples: int = 0  # only so many of a part; 0 takes all
    dev_examples: int = 0
    test_examples: int = 0
    model: str = NO_MODEL  # folder of a pre-training run or a Hugging Face model; "none": random
    fresh_weights: bool = False  # take shape and tokenizer of the model, and draw its weights anew
    vocab: int = 8000  # pieces; with model=none, as the next four
    layers: int = 12
    width: int = 768
    heads: int = 12
    feed_forward: int = 3072
    length: int = 128  # pieces of a text at most, marks included; 8 or more
    seeds: tuple[int, ...] = (0, 1, 2)  # a training each
    # trainings a seed by cross-validation over all parts; 0 keeps published parts. With model=none
    # all folds share the tokenizer, which is learnt from the published training texts
    folds: int = 0
    epochs: int = 10  # at most
    batch_size: int = 32
    learning_rate: float = 3e-5  # at its peak; it rises in a straight line and falls to 0
    warmup: float = 0.06  # share of all updates in which it rises
    weight_decay: float = 0.01  # of all weights; others leave out biases and norms
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    evaluations: int = 1  # on dev, an epoch
    patience: int = 3  # evaluations without a better one after which to stop; 0 never stops
    precision: Precision = "auto"  # bfloat16 on a GPU, float32 elsewhere
    graphs: bool = True  # replay steps as CUDA graphs on a GPU, those of our own encoders
    keep: Literal["first", "all", "none"] = "first"  # whose weights stay

    def __post_init__(self) -> None:
        smallest = {"length": SHORTEST, "epochs": 1, "batch_size": 1, "evaluations": 1}
        if self.model == NO_MODEL:
            smallest["vocab"] = FEWEST_PIECES
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        if self.vocab > MOST_PIECES:
            raise ValueError(f"vocab must be at most {MOST_PIECES:,}, got {self.vocab}.")
        for name in NOT_NEGATIVE:
            if not getattr(self, name) >= 0:  # nan is not either
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be one or more different numbers, got {self.seeds}.")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share from 0 to below 1, got {self.warmup}.")
        own = [bool(path) for path in (self.train, self.dev, self.test)]
        if any(own) != (self.task == "files") or any(own) != all(own):
            raise ValueError("Files of one's own are train, dev and test, with task='files'.")
        self.shape(1000)

    def shape(self, vocab: int) -> EncoderConfig:
        """The encoder's shape where there is no model to take it from."""
        return EncoderConfig(
            vocab,
            width=self.width,
            heads=self.heads,
            layers=self.layers,
            feed_forward=self.feed_forward,
            max_length=self.length,
        )

    def fit_config(self, per_epoch: int, seed: int, *, replayable: bool = False) -> FitConfig:
        """The settings that `fit` wants.

        A training of up to 500 updates, 2,000 on a GPU, has no checkpoint: stopped, it begins anew.

        Args:
            per_epoch: batches.
            seed: of this training.
            replayable: whether CUDA graphs can be made of steps.
        """
        steps, cuda = self.epochs * per_epoch, torch.cuda.is_available()
        often = max(1, math.ceil(per_epoch / self.evaluations))
        automatic = "bfloat16" if cuda else "float32"
        apart = CHECKPOINT_EVERY["cuda" if cuda else "cpu"]
        return FitConfig(
            steps=steps,
            learning_rate=self.learning_rate,
            schedule="linear",
            warmup=min(steps - 1, round(self.warmup * steps)),
            clip=self.clip,
            epsilon=1e-6,
            weight_decay=self.weight_decay,
            precision=automatic if self.precision == "auto" else self.precision,
            evaluate_every=often,
            checkpoint_every=max(often, apart) if steps > apart else 0,
            graphs=replayable and self.graphs and cuda,
            patience=self.patience,
            better="higher",
            seed=seed,
        )
