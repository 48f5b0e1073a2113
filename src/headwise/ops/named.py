"""Attention ops by name, as a setting or a command line writes them.

softmax          every key gets some weight
topk:8           softmax over the 8 best keys of each query
sparsemax        the projection onto the simplex
entmax:1.5       between the two; alpha above 1
entmax:learned   one alpha a head, learned with the model that holds it
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from headwise.ops._impl import Number
from headwise.ops.attended import Attended
from headwise.ops.entmax import LEAST_ALPHA, entmax_attention
from headwise.ops.softmax import softmax_attention
from headwise.ops.sparsemax import sparsemax_attention
from headwise.ops.topk import topk_attention

__all__ = ["LEARNED", "attention_name", "attention_op", "check_attention"]

LEARNED = "entmax:learned"
CHOICES = f"softmax, topk:8 (or another number of keys), sparsemax, entmax:1.5 or {LEARNED}"


def attention_op(spec: str) -> Callable[..., Attended]:
    """The op of a name.

    "entmax:learned" is no op by itself, because its alphas are parameters of a model:
    `headwise.models.MultiHeadAttention` makes it.

    >>> attention_op("topk:8")
    functools.partial(<function topk_attention at ...>, keep=8)
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
        case _:
            raise ValueError(f"Attention must be {CHOICES}; got {spec!r}.")


def check_attention(spec: str) -> None:
    """Refuse a name that a model cannot make attention of."""
    if spec != LEARNED:
        attention_op(spec)


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
    if function in (softmax_attention, sparsemax_attention) and not options:
        return function.__name__.removesuffix("_attention")
    raise ValueError(f"No name gives {op!r}; names are {CHOICES}.")


def _is_alpha(text: str) -> bool:
    try:
        return LEAST_ALPHA <= float(text) < math.inf
    except ValueError:
        return False
