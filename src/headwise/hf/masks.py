"""The masks that adopted hosts make: transformers' own, but for what graphs make of them.

A compiled graph, or a recorded one, cannot look at the contents of a mask, and elsewhere looking
takes time. Three things are therefore settled when it is made: whether there must be one, whether
an additive one only hides keys, and whether it hides the same keys from all queries.

What is settled is an attribute of the mask. Compiling follows attributes of tensors. What a host
computes from a mask, a sum or a part, is another tensor without them; only writing into the mask
itself would make them untrue.
"""

from typing import Any, cast

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

__all__ = ["eager_mask_or_none", "only_hides", "sdpa_mask_or_none", "stored_once"]

HIDES = "headwise_only_hides"  # of additive masks: all 0 or the lowest number
ALIKE = "headwise_alike"  # all queries see the same keys


def sdpa_mask_or_none(**given: Any) -> Tensor | None:
    """The host's mask for SDPA; none where nothing is hidden, or only what a causal flag hides.

    Transformers leaves such masks out itself, except in graphs that are compiled or recorded. There
    the mask, expanded from one number, suits no fused kernel: SDPA computes all scores in float32.
    """
    if _nothing_hidden(**given) or _only_later_hidden(**given):
        return None
    return _marked(sdpa_mask(**given), **given)


def eager_mask_or_none(**given: Any) -> Tensor | None:
    """The host's additive mask, marked as one that only hides keys; none where it hides nothing."""
    if _nothing_hidden(**given):
        return None
    mask = cast(Tensor | None, eager_mask(**given))
    if mask is not None:
        setattr(mask, HIDES, True)
    return _marked(mask, **given)


def _marked(mask: Tensor | None, *, mask_function: Any = None, **_: Any) -> Tensor | None:
    """The mask; of encoders and of attention to them, where padding alone hides keys, as ALIKE."""
    if mask is not None and mask_function is bidirectional_mask_function:
        setattr(mask, ALIKE, True)
    return mask


def stored_once(mask: Tensor) -> Tensor:
    """One row of a mask that is the same for all queries, of which kernels read less; else all."""
    return mask[:, :, :1] if getattr(mask, ALIKE, False) else mask


def only_hides(additive: Tensor, added: Tensor) -> bool:
    """Whether an additive mask is no bias.

    Args:
        additive: the mask.
        added: what it adds to scores that it does not hide.
    """
    if torch.compiler.is_compiling() or _in_a_graph():
        return getattr(additive, HIDES, False)
    return not bool(added.any())


def _nothing_hidden(*, allow_is_bidirectional_skip: bool = False, **given: Any) -> bool:
    return allow_is_bidirectional_skip and _unpadded(**given)


def _only_later_hidden(*, allow_is_causal_skip: bool = True, **given: Any) -> bool:
    return allow_is_causal_skip and given["q_length"] == given["kv_length"] and _unpadded(**given)


def _unpadded(
    *,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **_: Any,
) -> bool:
    """Whether a graph is made, for these lengths alone, in which padding and windows hide nothing.

    Elsewhere transformers decides: an exported or traced graph must serve other lengths too.
    """
    if not _in_a_graph() or attention_mask is not None:
        return False
    return local_size is None or kv_length < local_size


def _in_a_graph() -> bool:
    """Whether this is compiled, or recorded as a CUDA graph."""
    if torch.compiler.is_compiling():
        # is_exporting() says yes in every compiled graph up to torch 2.11
        return not getattr(torch.compiler, "_is_exporting_flag", False)
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
