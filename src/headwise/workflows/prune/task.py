"""The task that a model is pruned for: its data, its loss and its quality."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.text.batching import Epochs
from headwise.text.corpus import read_lines
from headwise.training import Summed
from headwise.workflows.inspect.subject import Subject

IGNORED = -100  # the label of a position that does not count
Batch = Mapping[str, Tensor]


class Predicted(NamedTuple):
    """Logits and labels, one row per prediction."""

    logits: Tensor  # (..., V)
    labels: Tensor  # (...), IGNORED where there is nothing to predict


@dataclass(frozen=True, eq=False)
class Data:
    """Tokenised sequences, and a function that makes a batch of some of them."""

    lengths: Sequence[int]
    collate: Callable[[list[int]], Batch]
    tokens: int = 0  # maximum ids of a batch, with padding; 0 counts sequences instead
    multiple: int = 1  # widths of batches are multiples of it

    def epochs(self, *, size: int, seed: int) -> Epochs[Batch]:
        """Return batches in an order that the seed decides; `tokens` takes precedence over size."""
        if not self.tokens:
            return Epochs(self.lengths, self.collate, size=size, seed=seed)
        multiple = self.multiple
        return Epochs(self.lengths, self.collate, tokens=self.tokens, multiple=multiple, seed=seed)


@dataclass(frozen=True, eq=False)
class Task:
    """A model with sites, and everything that pruning it needs.

    Args:
        kind: classification, masked, causal or translation.
        model: trained and pruned in place.
        train: training data.
        dev: data to measure on.
        predict: from model and batch to logits and labels.
        quality: the name of the main metric.
        score: metrics of a model that take longer, such as BLEU.
        save: writes the pruned model into a folder, whole or not at all.
        load: reads it again.
        subject: the same model and its tokenizer, to inspect its heads.
        texts: the sentences of the dev set; for translation, the sources.
        smoothing: label smoothing in training.
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
        """The metric that `evaluate` returns first; it is quick, as BLEU is not."""
        return "accuracy" if self.quality == "accuracy" else "perplexity"

    @property
    def better(self) -> Literal["higher", "lower"]:
        """Whether higher or lower values of `watched` are better."""
        return "higher" if self.watched == "accuracy" else "lower"

    def loss(self, model: nn.Module, batch: Batch) -> Summed:
        """Return the cross-entropy as a sum over predictions."""
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
        """Return loss, perplexity and accuracy on the dev set; `watched` first.

        Args:
            model: evaluated as it is.
            size: sequences of a batch.
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
        """Return all metrics of a model, in eval mode."""
        model.eval()
        return {**self.evaluate(model, size=size), **self.score(model)}


def _sums(predicted: Predicted) -> Tensor:
    """Return the sum of losses, of right predictions, and of all predictions."""
    logits, labels = predicted.logits.flatten(0, -2).float(), predicted.labels.flatten()
    loss = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    right = ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()
    return torch.stack([loss.double(), right.double(), (labels != IGNORED).sum().double()])


def nothing_more(model: Any) -> dict[str, float]:
    """Return no metrics."""
    return {}


class Pairs(NamedTuple):
    """Sentences and their translations."""

    source: list[str]
    target: list[str]

    def first(self, count: int) -> "Pairs":
        """Return the first pairs; 0 returns all."""
        return Pairs(self.source[:count], self.target[:count]) if count else self


class Labelled(NamedTuple):
    """Texts, their classes, and the second texts of pairs."""

    texts: list[str]
    labels: list[int]
    seconds: list[str | None]

    @property
    def joined(self) -> list[str]:
        """Each text or pair as one line."""
        pairs = zip(self.texts, self.seconds, strict=True)
        return [text if second is None else f"{text} {second}" for text, second in pairs]

    def first(self, count: int) -> "Labelled":
        """Return the first texts; 0 returns all."""
        texts, labels, seconds = self
        return Labelled(texts[:count], labels[:count], seconds[:count]) if count else self


def read_sentences(files: Sequence[str]) -> list[str]:
    """Return the lines of one file."""
    return list(read_lines(Path(_only(files))))


def read_labelled(
    files: Sequence[str], classes: dict[str, int], *, reads: str = "text"
) -> Labelled:
    """Read lines `label TAB text [TAB text]`; labels are numbers or names of the model's classes.

    Args:
        files: one file.
        classes: {name: number} of the model.
        reads: "text", in which further TABs are spaces, "pair" or "either".
    """
    path, found = _only(files), Labelled([], [], [])
    numbers = {str(number): number for number in classes.values()}
    for line in read_lines(Path(path)):
        label, *texts = line.split("\t", maxsplit=1 if reads == "text" else 2)
        number = classes.get(label, numbers.get(label))
        if len(texts) < 1 + (reads == "pair") or number is None:
            wanted = "a TAB, a text, a TAB and a text" if reads == "pair" else "a TAB and a text"
            raise ValueError(
                f"{path} must hold a label, {wanted} in each line, where labels are "
                f"{', '.join(classes)} or {', '.join(numbers)}; got {line[:40]!r}."
            )
        text, *second = (text.replace("\t", " ") for text in texts)
        found.texts.append(text)
        found.labels.append(number)
        found.seconds.append(second[0] if second else None)
    return found


def read_pairs(files: Sequence[str]) -> Pairs:
    """Read sentences and their translations: two files, or one with a TAB in each line."""
    if len(files) == 2:
        both = [list(read_lines(Path(path))) for path in files]
        if len(both[0]) != len(both[1]):
            raise ValueError(
                f"{files[0]} has {len(both[0])} lines with text, but {files[1]} has "
                f"{len(both[1])}; line by line they must be translations of each other."
            )
        return Pairs(both[0], both[1])
    path = _only(files)
    pairs = [line.split("\t") for line in read_lines(Path(path))]
    if wrong := next((pair for pair in pairs if len(pair) < 2), None):
        raise ValueError(
            f"{path} must hold a sentence, a TAB and its translation in each line; got "
            f"{wrong[0][:40]!r}. Two files are given one after the other."
        )
    return Pairs([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _only(files: Sequence[str]) -> str:
    if len(files) != 1:
        raise ValueError(f"Expected one file, got {len(files)}: {', '.join(files)}.")
    return files[0]
