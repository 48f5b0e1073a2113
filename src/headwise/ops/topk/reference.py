"""The definition every other implementation is tested against. Clear before fast."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.rows import softmax_rows, weigh_rows


def topk(scores_XK: Tensor, keep: int, ties: str, sink: bool = False) -> Tensor:
    """Softmax over the kept scores. The choice is a constant in the backward pass.

    Args:
        sink: whether the last score is a sink's, which is kept beside the `keep` best others.
    """
    keys_XK = scores_XK.detach()[..., : scores_XK.shape[-1] - int(sink)]
    kept_XK = pad(_kept(keys_XK, min(keep, keys_XK.shape[-1]), ties), (0, int(sink)), value=True)
    return softmax_rows(scores_XK.masked_fill(~kept_XK, -math.inf))


def _kept(scores_XK: Tensor, keep: int, ties: str) -> Tensor:
    if ties == "all":
        # not "at least", which would hide a score that is not a number
        return ~(scores_XK < scores_XK.topk(keep, dim=-1).values[..., -1:])
    order_XK = scores_XK.sort(dim=-1, descending=True, stable=True).indices
    nothing_XK = torch.zeros_like(scores_XK, dtype=torch.bool)
    return nothing_XK.scatter(-1, order_XK[..., :keep], 1)  # True cannot be traced


def selected(scores_XK: Tensor, sink_X1: Tensor | None, keep: int) -> tuple[Tensor, Tensor]:
    """The keys of the `keep` largest scores, -1 where masked, and their softmax; first on ties."""
    score_XK, key_XK = scores_XK.sort(dim=-1, descending=True, stable=True)
    score_XR, key_XR = score_XK[..., :keep], key_XK[..., :keep]
    weights_XR, _ = weigh_rows(score_XR, sink_X1, softmax_rows)
    return key_XR.masked_fill(score_XR == -math.inf, -1).int(), weights_XR
