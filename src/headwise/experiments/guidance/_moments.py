"""Encoders at moments of their pre-training: before it, after 1 % of its updates, at its end."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from shutil import rmtree

import torch

from headwise.config import from_json
from headwise.data.byte_pieces import BytePieces
from headwise.journeys.pretraining import PretrainingConfig, load_pretrained
from headwise.journeys.pretraining_tasks import fresh_model
from headwise.models.encoder import Encoder
from headwise.recording import Run
from headwise.training.averaging import kept_checkpoints

__all__ = ["KEPT", "SHARES", "PretrainingMoments"]

SHARES = (0, 1, 100)  # per cent of the updates
KEPT = 100  # checkpoints that must be kept for that, one a per cent


@dataclass(frozen=True, eq=False)
class PretrainingMoments:
    """A finished pre-training, from its first weights to its last."""

    run: Run

    @property
    def pieces(self) -> BytePieces:
        """Its tokenizer."""
        return load_pretrained(self.run).pieces

    def encoders(self) -> Iterator[tuple[int, Encoder]]:
        """The encoder at each of `SHARES`, with the per cent; moments that nobody kept left out."""
        model, pieces = load_pretrained(self.run)
        config = from_json(PretrainingConfig, self.run.config())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # as the training began
            yield 0, fresh_model(config, config.shape(len(pieces))).eval().encoder
        if (early := self._nearest(config.steps / 100)) is not None:
            young = fresh_model(config, model.encoder.config)
            kept = self.run.load_tensors(early)
            # beside the weights stands what the training has measured so far
            young.load_state_dict({name: kept[name] for name in young.state_dict()})
            yield 1, young.eval().encoder
        yield 100, model.encoder

    def forget(self) -> None:
        """Delete the weights of all moments but the last."""
        rmtree(self.run.path("checkpoints"), ignore_errors=True)

    def _nearest(self, step: float) -> str | None:
        """The kept weights of a step, or of one that is as good as it."""
        kept = {int(PurePath(name).stem): name for name in kept_checkpoints(self.run)}
        best = min(kept, key=lambda at: abs(at - step), default=None)
        return kept[best] if best is not None and abs(best - step) <= max(1, step / 2) else None
