"""Losses from a model's scores and the right words, and running means of a loss."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy


class Summed(NamedTuple):
    """A loss as a sum and the number it is over.

    The mean over several batches, or several processes, is then over all their words: sum of totals
    / sum of numbers.
    """

    total: Tensor  # a scalar
    number: Tensor | int  # of summands


def label_smoothed_loss(
    logits: Float[Tensor, "B T V"],
    target: Int[Tensor, "B T"],
    *,
    pad: int,
    smoothing: float = 0.1,
) -> Float[Tensor, ""]:
    """Compute the cross-entropy per target word against (1 - smoothing) * one-hot + smoothing / V.

    Args:
        logits: scores of the word at each position, before the softmax.
        target: the right words.
        pad: id of padding; those positions do not count.
        smoothing: probability spread evenly over the vocabulary (Szegedy et al., 2016).
    """
    return cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=pad, label_smoothing=smoothing
    )


def label_smoothed_sum(
    logits: Float[Tensor, "B T V"],
    target: Int[Tensor, "B T"],
    *,
    pad: int,
    smoothing: float = 0.1,
) -> Summed:
    """Compute `label_smoothed_loss` before its division: the sum, and the number of target words.

    For `fit` with batches of unequal numbers of words, where a mean of means would be wrong.

    Args:
        logits: scores of the word at each position, before the softmax.
        target: the right words.
        pad: id of padding; those positions do not count.
        smoothing: probability spread evenly over the vocabulary.

    >>> import torch
    >>> total, number = label_smoothed_sum(torch.zeros(1, 3, 4), torch.tensor([[2, 1, 0]]), pad=0)
    >>> round(total.item(), 4), number.item()  # 2 words, log 4 each
    (2.7726, 2)
    """
    total = cross_entropy(
        logits.flatten(0, 1),
        target.flatten(),
        ignore_index=pad,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return Summed(total, (target != pad).sum())


class RunningLoss:
    """Running means of a loss: over all batches, and over the last ones.

        average_n = average_(n-1) + (x_n - average_(n-1)) / n
        recent_n  = recent_(n-1) + (x_n - recent_(n-1)) / min(n, window)

    Given to `fit` as `extra_state=running.tensors` they are in its checkpoints, so that a resumed
    training has the same means. Nothing waits for a GPU. With several processes each averages its
    own batches, and those of the first are kept.

    >>> running = RunningLoss(window=2)
    >>> for loss in (4.0, 2.0, 0.0):
    ...     running.add(torch.tensor(loss))
    >>> running.average, running.recent
    (2.0, 1.5)

    Args:
        window: number of batches that `recent` is about.
    """

    def __init__(self, *, window: int) -> None:
        self.window = max(window, 1)
        self._held_3 = torch.zeros(3)  # number of batches, mean of all, mean of the last

    def tensors(self) -> dict[str, Tensor]:
        """Return the state, which may be filled in place."""
        return {"running_loss": self._held_3}

    @torch.no_grad()
    def add(self, loss: Tensor) -> None:
        """Add the loss of one more batch, a scalar."""
        if self._held_3.device != loss.device:  # the first time, before a graph is recorded
            self._held_3 = self._held_3.to(loss.device)
        held_3 = self._held_3
        number = held_3[0] + 1
        share_2 = torch.stack([number, number.clamp(max=self.window)]).reciprocal()
        held_3[1:] += (loss.float() - held_3[1:]) * share_2
        held_3[0] = number

    @property
    def average(self) -> float:
        """Mean over all batches so far."""
        return self._held_3[1].item()

    @property
    def recent(self) -> float:
        """Mean over about the last `window` batches, the newest weighted most."""
        return self._held_3[2].item()
