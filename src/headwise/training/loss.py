"""Losses: from a model's scores and what was wanted to one number."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy


def label_smoothed_loss(
    logits: Float[Tensor, "B T V"],
    target: Int[Tensor, "B T"],
    *,
    pad: int,
    smoothing: float = 0.1,
) -> Float[Tensor, ""]:
    """Cross-entropy per target word against (1 - smoothing) * one-hot + smoothing / V.

    Args:
        logits: scores of the word at each position, before the softmax.
        target: the right words.
        pad: id of padding; those positions do not count.
        smoothing: probability spread evenly over the vocabulary (Szegedy et al., 2016).
    """
    return cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=pad, label_smoothing=smoothing
    )
