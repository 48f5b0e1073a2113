"""Encoders at moments of their pre-training: before it, after 1 % of its updates, at its end."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from shutil import rmtree

import torch

from headwise.config import from_json
from headwise.recording import Run
from headwise.training.averaging import FOLDER
from headwise_papers.data.subword import ByteLevelCodec
from headwise_papers.models.encoder import Encoder
from headwise_papers.recipes.pretraining import PretrainingConfig, load_pretrained
from headwise_papers.recipes.pretraining_tasks import fresh_model

__all__ = ["SHARES", "PretrainingMoments", "one_per_cent"]

SHARES = (0, 1, 100)  # per cent of the updates


def one_per_cent(steps: int) -> int:
    """The update after which 1 % of a training is done.

    >>> one_per_cent(3000), one_per_cent(250), one_per_cent(40)
    (30, 3, 1)
    """
    return math.ceil(steps / 100)


@dataclass(frozen=True, eq=False)
class PretrainingMoments:
    """A finished pre-training, from its first weights to its last."""

    run: Run

    @property
    def pieces(self) -> ByteLevelCodec:
        """Its tokenizer."""
        return load_pretrained(self.run).pieces

    def encoders(self) -> Iterator[tuple[int, Encoder]]:
        """The encoder at each of `SHARES`, with the per cent; moments that nobody kept left out."""
        model, pieces = load_pretrained(self.run)
        config = from_json(PretrainingConfig, self.run.config())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.fit.seed)  # as the training began
            yield 0, fresh_model(config, config.shape(len(pieces))).eval().encoder
        if self.run.has(early := f"{FOLDER}/{one_per_cent(config.fit.steps)}.safetensors"):
            young = fresh_model(config, model.encoder.config)
            young.load_state_dict(self.run.load_tensors(early))
            yield 1, young.eval().encoder
        yield 100, model.encoder

    def forget(self) -> None:
        """Delete the weights of all moments but the last."""
        rmtree(self.run.path(FOLDER), ignore_errors=True)
