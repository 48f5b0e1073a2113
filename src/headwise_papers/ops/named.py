"""Names of attention ops in settings and on the command line.

softmax          every key gets some weight
topk:8           softmax over the 8 best keys of each query
sparsemax        the projection onto the simplex
entmax:1.5       between the two; alpha above 1
entmax:learned   one alpha per head, learned with the model that holds it
gaussian:-1,1    a bell of width 1 around the previous token (even heads) or next one (odd)
gaussian:0:0.5   a bell of width 0.5 around the token itself
"""

import math
from collections.abc import Callable
from functools import partial

import torch

from headwise.ops._impl import HAS_TRITON
from headwise.ops.attended import Attended
from headwise.ops.entmax import (
    LEAST_ALPHA,
    LEAST_KERNEL_ALPHA,
    entmax_attention,
    sparsemax_attention,
)
from headwise.ops.fixed import gaussian_attention
from headwise.ops.scores import WIDEST_HEAD
from headwise.ops.softmax import softmax_attention
from headwise.ops.topk import topk_attention

LEARNED = "entmax:learned"
CHOICES = (
    "softmax, topk:8 (or another number of keys), sparsemax, entmax:1.5, gaussian:-1,1 (or other "
    f"distances) or {LEARNED}"
)
INSTEAD = "choose softmax, for example"


def attention_op(spec: str, *, heads: int | None = None) -> Callable[..., Attended]:
    """Return the op that has a name.

    "entmax:learned" is no op by itself, because its alphas are parameters of a model.

    Args:
        spec: The name.
        heads: Number of heads, over which the distances of a Gaussian are cycled; None leaves
            them as they are.

    >>> attention_op("topk:8")
    functools.partial(<function topk_attention at ...>, keep=8)
    >>> attention_op("gaussian:-1,1", heads=3).keywords
    {'offset': (-1.0, 1.0, -1.0), 'std': 1.0}
    """
    match spec.partition(":"):
        case "softmax", "", "":
            return softmax_attention
        case "sparsemax", "", "":
            return sparsemax_attention
        case "topk", ":", keep if keep.isdecimal() and int(keep) > 0:
            return partial(topk_attention, keep=int(keep))
        case "entmax", ":", alpha if _is_alpha(alpha):
            return partial(entmax_attention, alpha=float(alpha))
        case "entmax", ":", "learned":
            raise ValueError(
                f"An op must have no parameters, got {LEARNED!r}, which has one per head; "
                "give it to a model instead."
            )
        case "gaussian", ":", text if bells := _bells(text):
            offsets, std = bells
            cycled = tuple(offsets[head % len(offsets)] for head in range(heads or len(offsets)))
            return partial(gaussian_attention, offset=cycled, std=std)
        case _:
            raise ValueError(f"Attention must be {CHOICES}; got {spec!r}.")


def is_positional(spec: str) -> bool:
    """Return whether a name means attention to fixed distances, which ignores content."""
    return spec.startswith("gaussian:")


def is_graph_safe(spec: str, *, width: int, dtype: torch.dtype) -> bool:
    """Return whether attention on a GPU never waits for the host, so that a graph can record it.

    Sparsemax and entmax read numbers on the host where their kernels cannot run.

    >>> [is_graph_safe(x, width=64, dtype=torch.float64) for x in ("entmax:1.5", "topk:8")]
    [False, True]
    """
    if not spec.startswith(("sparsemax", "entmax")):
        return True
    alpha = 2.0 if spec in ("sparsemax", LEARNED) else float(spec.partition(":")[2])
    fits = width <= WIDEST_HEAD and LEAST_KERNEL_ALPHA <= alpha <= 2
    return HAS_TRITON and fits and dtype != torch.float64


def check_attention(spec: str, *, within: bool = True, instead: str = INSTEAD) -> None:
    """Raise unless a model can use the attention of this name.

    Args:
        spec: The name.
        within: Whether a text attends to all of itself; otherwise distances have no meaning.
        instead: Advice for the error message, as the end of a sentence.
    """
    if spec != LEARNED:
        attention_op(spec)
    if is_positional(spec) and not within:
        raise ValueError(
            f"Attention must be by content here, got {spec!r}, which attends to distances within "
            f"one text; {instead}."
        )


def _is_alpha(text: str) -> bool:
    try:
        return LEAST_ALPHA <= float(text) < math.inf
    except ValueError:
        return False


def _bells(text: str) -> tuple[tuple[float, ...], float] | None:
    """Parse distances and width, such as "-1,1:0.5"; None if malformed."""
    places, colon, width = text.partition(":")
    try:
        offsets, std = tuple(map(float, places.split(","))), float(width if colon else 1)
    except ValueError:
        return None
    fine = all(map(math.isfinite, offsets)) and 0 < std < math.inf
    return (offsets, std) if fine else None
