"""Losses from a model's scores and the right words."""

from typing import NamedTuple

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
