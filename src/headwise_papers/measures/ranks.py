"""Rank correlation (Spearman's), along the last axis."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

__all__ = ["rank_correlation"]


def rank_correlation(
    x: Shaped[Tensor, "*X W"],
    y: Shaped[Tensor, "*X W"],
    *,
    given: Shaped[Tensor, " W"] | None = None,
) -> Float[Tensor, "*X"]:
    """Return Spearman's correlation of x and y; equal values share a rank.

    Args:
        x: any leading axes.
        y: likewise.
        given: what is taken out of both first, as ranks: the partial correlation.

    >>> import torch
    >>> rank_correlation(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([3, 2, 1]))
    tensor(-1., dtype=torch.float64)
    """
    first, second = _centred_ranks(x), _centred_ranks(y)
    if given is not None:
        third = _centred_ranks(given)
        first, second = (
            rank - (rank * third).sum(-1, keepdim=True) / third.square().sum(-1) * third
            for rank in (first, second)
        )
    size = (first.square().sum(-1) * second.square().sum(-1)).sqrt()
    return (first * second).sum(-1) / size


def _centred_ranks(x: Tensor) -> Tensor:
    from scipy.stats import rankdata  # lazy: training does not need scipy

    rank = torch.from_numpy(rankdata(x.numpy(), axis=-1))
    return rank - rank.mean(-1, keepdim=True)
