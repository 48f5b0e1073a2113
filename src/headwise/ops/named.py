"""Attention ops by name, as a setting or a command line writes them.

softmax          every key gets some weight
topk:8           softmax over the 8 best keys of each query
sparsemax        the projection onto the simplex
entmax:1.5       between the two; alpha above 1
entmax:learned   one alpha a head, learned with the model that holds it
gaussian:-1,1    a bell of width 1 around the token before and the one after: heads take turns
gaussian:0:0.5   and of another width, around the token itself
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from headwise.ops._impl import HAS_TRITON, Number
from headwise.ops.attended import Attended
from headwise.ops.entmax import LEAST_ALPHA, entmax_attention
from headwise.ops.entmax.fused import LEAST_ALPHA as LEAST_FUSED
from headwise.ops.fixed import gaussian_attention
from headwise.ops.scores import WIDEST_HEAD
from headwise.ops.softmax import softmax_attention
from headwise.ops.sparsemax import sparsemax_attention
from headwise.ops.topk import topk_attention

__all__ = [
    "LEARNED",
    "attention_name",
    "attention_op",
    "check_attention",
    "looks_at_places",
    "never_waits",
]

LEARNED = "entmax:learned"
CHOICES = (
    "softmax, topk:8 (or another number of keys), sparsemax, entmax:1.5, gaussian:-1,1 (or other "
    f"distances) or {LEARNED}"
)
INSTEAD = "choose softmax, for example"  # of distances where they have no meaning


def attention_op(spec: str, *, heads: int | None = None) -> Callable[..., Attended]:
    """The op of a name.

    "entmax:learned" is no op by itself, because its alphas are parameters of a model:
    `headwise_papers.models.MultiHeadAttention` makes it.

    Args:
        spec: the name.
        heads: how many there will be, so that they can take turns with the distances of a Gaussian;
            None leaves these as they are.

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
            raise ValueError(f"{LEARNED!r} needs a parameter a head; give it to a model instead.")
        case "gaussian", ":", text if bells := _bells(text):
            offsets, std = bells
            turns = tuple(offsets[head % len(offsets)] for head in range(heads or len(offsets)))
            return partial(gaussian_attention, offset=turns, std=std)
        case _:
            raise ValueError(f"Attention must be {CHOICES}; got {spec!r}.")


def looks_at_places(spec: str) -> bool:
    """Whether a name is of attention to fixed distances, whatever queries and keys are."""
    return spec.startswith("gaussian:")


def never_waits(spec: str, *, width: int, dtype: torch.dtype) -> bool:
    """Whether a GPU attends without asking the host, so that it can be recorded.

    Sparsemax and entmax look at numbers on the way where their kernels cannot run.

    >>> never_waits("entmax:1.5", width=64, dtype=torch.float64), never_waits("topk:8", width=64,
    ...     dtype=torch.float64)
    (False, True)
    """
    if not spec.startswith(("sparsemax", "entmax")):
        return True
    alpha = 2.0 if spec in ("sparsemax", LEARNED) else float(spec.partition(":")[2])
    fits = width <= WIDEST_HEAD and LEAST_FUSED <= alpha <= 2
    return HAS_TRITON and fits and dtype != torch.float64


def check_attention(spec: str, *, within: bool = True, instead: str = INSTEAD) -> None:
    """Refuse a name that a model cannot make attention of.

    Args:
        spec: the name.
        within: whether a text attends to itself and to all of it; else distances have no meaning.
        instead: what to do then, as the end of a sentence.
    """
    if spec != LEARNED:
        attention_op(spec)
    if looks_at_places(spec) and not within:
        raise ValueError(
            f"{spec!r} looks at distances within one text, which there are none of here; {instead}."
        )


def attention_name(op: Callable[..., Attended]) -> str:
    """The name that gives this op again; which implementation it chooses is left out.

    >>> attention_name(attention_op("entmax:1.5"))
    'entmax:1.5'
    >>> attention_name(topk_attention)
    'topk:8'
    """
    function, options = op, dict[str, Any]()
    if isinstance(op, partial):
        function, options = op.func, {**op.keywords}
    options.pop("impl", None)
    if function is topk_attention and options.keys() <= {"keep"}:
        return f"topk:{options.get('keep', 8)}"
    alpha = options.get("alpha", 1.5)
    if function is entmax_attention and options.keys() <= {"alpha"} and isinstance(alpha, Number):
        return f"entmax:{alpha:.12g}"
    if function is gaussian_attention and options.keys() <= {"offset", "std"}:
        return _gaussian_name(options.get("offset", 0.0), options.get("std", 1.0))
    if function in (softmax_attention, sparsemax_attention) and not options:
        return function.__name__.removesuffix("_attention")
    raise ValueError(f"No name gives {op!r}; names are {CHOICES}.")


def _is_alpha(text: str) -> bool:
    try:
        return LEAST_ALPHA <= float(text) < math.inf
    except ValueError:
        return False


def _bells(text: str) -> tuple[tuple[float, ...], float] | None:
    """Distances and the width of "-1,1:0.5"; None where it cannot be read so."""
    places, colon, width = text.partition(":")
    try:
        offsets, std = tuple(map(float, places.split(","))), float(width if colon else 1)
    except ValueError:
        return None
    fine = all(map(math.isfinite, offsets)) and 0 < std < math.inf
    return (offsets, std) if fine else None


def _gaussian_name(offset: Number | Sequence[Number], std: Number) -> str:
    offsets = [offset] if isinstance(offset, Number) else offset
    width = "" if std == 1 else f":{std:.12g}"
    return f"gaussian:{','.join(f'{place:.12g}' for place in offsets)}{width}"
