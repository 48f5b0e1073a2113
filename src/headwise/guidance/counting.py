"""Which queries of an attention call count, and which keys begin a text. Never a (Q, K) tensor."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.scores import Scores


def is_square(scores: Scores) -> bool:
    """Whether query i stands at key i: attention of a stack to itself, without a cache."""
    return scores.shape[2] == scores.shape[3] and scores.first_position == 0


def first_keys(scores: Scores) -> Tensor:
    """The keys at which texts begin, (B, K).

    Those whose own query sees no key before them: not the last one before that its own query sees,
    so that a hole in the mask of a text does not begin another.
    """
    mask_BQK = _mask(scores)
    if not is_square(scores):
        row_BK = mask_BQK[:, 0]
        return row_BK & (row_BK.cumsum(dim=-1) == 1)
    own_BT = mask_BQK.diagonal(dim1=1, dim2=2)
    last_BT = torch.where(own_BT, scores.key_position(), -1).cummax(dim=-1).values
    before_BT = pad(last_BT[:, :-1], (1, 0), value=-1)
    sees_BT = mask_BQK.gather(2, before_BT.clamp(min=0)[..., None])[..., 0]
    return own_BT & ~(sees_BT & (before_BT >= 0))


def own_queries(scores: Scores, *, to_itself: bool) -> Tensor | None:
    """Which queries are real by what the call says of keys, (B, Q); None when all are, or unknown.

    Args:
        scores: the call.
        to_itself: whether queries and keys are of one stack.
    """
    if not to_itself or not is_square(scores):
        return None
    real_BQ = None
    if scores.lengths is not None:
        real_BQ = scores.key_position() < scores.lengths[:, None]
    if scores.mask is not None:
        seen_BQ = _mask(scores).diagonal(dim1=1, dim2=2)
        real_BQ = seen_BQ if real_BQ is None else real_BQ & seen_BQ
    return real_BQ


def sees_ahead(scores: Scores, offset: int) -> bool | None:
    """Whether some query sees the key so far after its own position; None if that cannot be told.

    A causal flag tells it, or the mask, which is looked at: that waits for its device. Where nobody
    sees such a key it must show some query the key before its own, as else texts may only be short.
    """
    if scores.causal:
        return False
    whole = scores.mask is not None and scores.mask.shape[-2:] == scores.shape[2:]
    if scores.mask is None or not whole or not is_square(scores):
        return True
    mask_BQK = scores.mask.flatten(0, -3) if scores.mask.dim() > 2 else scores.mask[None]
    own_BT, ahead_BT, before_BT = (
        mask_BQK.diagonal(shift, dim1=1, dim2=2) for shift in (0, offset, -1)
    )
    if bool((ahead_BT & own_BT[:, : ahead_BT.shape[1]]).any()):
        return True
    return False if bool((before_BT & own_BT[:, 1:]).any()) else None


def holding(ids_BK: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Where one of some tokens stands, (B, K). Comparing with numbers waits for no device."""
    found_BK = ids_BK == tokens[0]
    for token in tokens[1:]:
        found_BK = found_BK | (ids_BK == token)
    return found_BK


def _mask(scores: Scores) -> Tensor:
    """A view of the call's mask as (B, Q, K); with one a head, what any head sees."""
    assert scores.mask is not None
    batch, _, n_queries, n_keys = scores.shape
    mask = scores.mask[(None,) * (4 - scores.mask.dim())]
    mask_BQK = mask[:, 0] if mask.shape[1] == 1 else mask.any(dim=1)
    return torch.broadcast_to(mask_BQK, (batch, n_queries, n_keys))
