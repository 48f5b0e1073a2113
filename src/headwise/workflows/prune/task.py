"""What a model is pruned for: its data, its loss, and how good it is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.text.batching import Epochs
from headwise.training.loss import Summed
from headwise.workflows.inspect.subject import Subject

__all__ = ["IGNORED", "Batch", "Data", "Predicted", "Task"]

IGNORED = -100  # the label of a position that does not count
Batch = Mapping[str, Tensor]


class Predicted(NamedTuple):
    """Scores and what was right, a row a prediction."""

    logits: Tensor  # (..., V)
    labels: Tensor  # (...), IGNORED where nothing was to be predicted


@dataclass(frozen=True, eq=False)
class Data:
    """Sequences as ids, and how some of them become a batch."""

    lengths: Sequence[int]
    collate: Callable[[list[int]], Batch]
    tokens: int = 0  # the most ids of a batch, padding included; 0: so many sequences
    multiple: int = 1  # of the widths of batches

    def epochs(self, *, size: int, seed: int) -> Epochs[Batch]:
        """Batches in an order that the seed decides; `size` is not asked where `tokens` is set."""
        if not self.tokens:
            return Epochs(self.lengths, self.collate, size=size, seed=seed)
        multiple = self.multiple
        return Epochs(self.lengths, self.collate, tokens=self.tokens, multiple=multiple, seed=seed)


@dataclass(frozen=True, eq=False)
class Task:
    """A model with sites, and all that pruning it asks.

    Args:
        kind: classification, masked, causal or translation.
        model: is trained and pruned in place.
        train: to train on.
        dev: to measure on.
        predict: scores and labels of a batch.
        quality: the figure that says how good a model is.
        score: figures that take longer, such as BLEU, of a model.
        save: writes the pruned model into a folder, all or nothing.
        load: reads it again.
        subject: the same model and how it reads sentences, to look at its heads.
        texts: the sentences of the dev set; of translations, the sources.
        smoothing: of the labels in training.
        replayable: whether steps can be replayed as CUDA graphs; batches then have few shapes.
        as_run: whether `save` writes a run, which the commands of its kind open.
    """

    kind: str
    model: nn.Module
    train: Data
    dev: Data
    predict: Callable[[nn.Module, Batch], Predicted]
    quality: str
    score: Callable[[nn.Module], dict[str, float]]
    save: Callable[[Path], None]
    load: Callable[[Path], nn.Module]
    subject: Subject
    texts: Sequence[str]
    smoothing: float = 0.0
    replayable: bool = False
    as_run: bool = False

    @property
    def watched(self) -> str:
        """The figure that `evaluate` tells first: it is quick, as BLEU is not."""
        return "accuracy" if self.quality == "accuracy" else "perplexity"

    @property
    def better(self) -> Literal["higher", "lower"]:
        """Which of two values of `watched` is that of the better model."""
        return "higher" if self.watched == "accuracy" else "lower"

    def loss(self, model: nn.Module, batch: Batch) -> Summed:
        """The cross-entropy, as a sum over predictions."""
        logits, labels = self.predict(model, batch)
        total = cross_entropy(
            logits.flatten(0, -2).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        return Summed(total, (labels != IGNORED).sum())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, *, size: int) -> dict[str, float]:
        """Loss, perplexity and accuracy on the dev set; `watched` first.

        Args:
            model: evaluated as it is.
            size: sequences read together.
        """
        device = next(model.parameters()).device
        batches = self.dev.epochs(size=size, seed=0)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        for number in range(len(batches)):
            there = {name: tensor.to(device) for name, tensor in batches(number).items()}
            sums += _sums(self.predict(model, there))
        loss, right, count = sums.tolist()
        if not count:
            raise ValueError("The dev set holds nothing to predict; give more of it.")
        accuracy, mean = right / count, loss / count
        if self.watched == "accuracy":
            return {"accuracy": accuracy, "validation_loss": mean}
        perplexity = math.exp(min(mean, 50.0))
        return {"perplexity": perplexity, "validation_loss": mean, "accuracy": accuracy}

    def measure(self, model: nn.Module, *, size: int) -> dict[str, float]:
        """Everything that is told of a model, in eval mode."""
        model.eval()
        return {**self.evaluate(model, size=size), **self.score(model)}


def _sums(predicted: Predicted) -> Tensor:
    """Loss, right predictions, and how many there were."""
    logits, labels = predicted.logits.flatten(0, -2).float(), predicted.labels.flatten()
    loss = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    right = ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()
    return torch.stack([loss.double(), right.double(), (labels != IGNORED).sum().double()])


def nothing_more(model: Any) -> dict[str, float]:
    """No figures that take longer."""
    return {}
