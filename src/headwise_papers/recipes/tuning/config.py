"""The settings of `finetune`."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch

from headwise.training import FitConfig
from headwise.workflows.training_run import check_at_least
from headwise_papers.data.subword import MAX_VOCABULARY, MIN_VOCABULARY
from headwise_papers.models.encoder import EncoderConfig
from headwise_papers.recipes.tuning.starting import NO_MODEL

__all__ = ["FinetuningConfig"]

# updates at least, as each is written with the state of the optimiser; a GPU does so many a minute
CHECKPOINT_EVERY = {"cpu": 500, "cuda": 2000}
SHORTEST = 8  # tokens of a text: a pair has four special ones, and some of both must be left
DERIVED = ("steps", "warmup", "evaluate_every", "checkpoint_every", "seed")
FIT = FitConfig(
    learning_rate=3e-5,
    schedule="linear",
    epsilon=1e-6,
    weight_decay=0.01,  # of all weights; others leave out biases and norms
    average=1,
    patience=3,
)


@dataclass(frozen=True)
class FinetuningConfig:
    """What is learnt, from what start, and how."""

    task: str = "rte"  # see headwise_papers.data.tasks and tagging; "files" takes the ones below
    train: str = ""  # label TAB text, or label TAB text TAB text; a .conll file holds tagged words
    dev: str = ""
    test: str = ""
    train_examples: int = 0  # only so many of a part; 0 takes all
    dev_examples: int = 0
    test_examples: int = 0
    model: str = NO_MODEL  # folder of a pre-training run or a Hugging Face model; "none": random
    fresh_weights: bool = False  # take shape and tokenizer of the model, and draw its weights anew
    vocab_size: int = 8000  # tokens; with model=none, as the next
    encoder: EncoderConfig = EncoderConfig()  # the vocabulary and max_length are filled in
    length: int = 128  # tokens of a text at most, special tokens included; 8 or more
    seeds: tuple[int, ...] = (0, 1, 2)  # a training each
    # trainings a seed by cross-validation over all parts; 0 keeps published parts. With model=none
    # all folds share the tokenizer, which is learnt from the published training texts
    folds: int = 0
    epochs: int = 10  # at most
    batch_size: int = 32
    warmup_share: float = 0.06  # of all updates, those in which the learning rate rises
    evaluations: int = 1  # on dev, per epoch
    keep: Literal["first", "all", "none"] = "first"  # whose weights stay
    # steps, warmup and how often to evaluate follow from epochs, warmup_share and evaluations
    fit: FitConfig = FIT

    def __post_init__(self) -> None:
        check_at_least(1, self, "epochs", "batch_size", "evaluations")
        check_at_least(SHORTEST, self, "length")
        check_at_least(0, self, "train_examples", "dev_examples", "test_examples", "folds")
        if self.model == NO_MODEL:
            check_at_least(MIN_VOCABULARY, self, "vocab_size")
        if self.vocab_size > MAX_VOCABULARY:
            raise ValueError(
                f"vocab_size must be at most {MAX_VOCABULARY:,}, got {self.vocab_size}."
            )
        for name in DERIVED:
            if getattr(self.fit, name) != getattr(FIT, name):
                raise ValueError(
                    f"fit.{name} follows from epochs, warmup_share, evaluations and seeds; set those."
                )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be one or more different numbers, got {self.seeds}.")
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share must be 0 to below 1, got {self.warmup_share}.")
        own = [bool(path) for path in (self.train, self.dev, self.test)]
        if any(own) != (self.task == "files") or any(own) != all(own):
            raise ValueError("Files of one's own are train, dev and test, with task='files'.")

    def shape(self, vocab: int) -> EncoderConfig:
        """Return the encoder's settings where there is no model to take them from."""
        return replace(self.encoder, vocab=vocab, max_length=self.length)

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
        apart = CHECKPOINT_EVERY["cuda" if cuda else "cpu"]
        settings = replace(
            self.fit,
            steps=steps,
            warmup=min(steps - 1, round(self.warmup_share * steps)),
            evaluate_every=often,
            checkpoint_every=max(often, apart) if steps > apart else 0,
            better="higher",
            seed=seed,
        )
        return settings.on_device(cuda=cuda, replayable=replayable)
