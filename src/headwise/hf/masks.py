"""Tags on the masks that transformers makes, for graphs, which cannot look at their contents.

A compiled graph, or a recorded one, cannot read a mask, and elsewhere reading takes time. Three
things are therefore settled when it is made: whether it stands for no mask or for a causal flag,
whether an additive one only hides keys, and whether it hides the same keys from all queries. The
host gets its mask as transformers makes it.

What is settled is an attribute of the mask. Compiling follows attributes of tensors. What a host
computes from a mask, a sum or a part, is another tensor without them; only writing into the mask
itself would make them untrue.
"""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

__all__ = ["implied", "only_hides", "stored_once", "tag_masks"]

HIDES = "headwise_only_hides"  # of additive masks: all 0 or the lowest number
ALIKE = "headwise_alike"  # all queries see the same keys
IMPLIED = "headwise_implied"  # it hides nothing, "full", or what a causal flag hides, "causal"
OWN = {"sdpa": sdpa_mask, "eager": eager_mask}  # transformers' own, the only ones we tag


def tag_masks() -> None:
    """Tag what transformers' mask functions return. Functions of other tools stay as they are."""
    registered = AttentionMaskInterface()
    for name, own in OWN.items():
        if registered[name] is own:
            AttentionMaskInterface.register(name, partial(_tagged, own))


def _tagged(own: Any, *positional: Any, **given: Any) -> Any:
    """Make the host's mask and tag it."""
    mask = own(*positional, **given)
    if not isinstance(mask, Tensor):
        return mask
    if own is eager_mask:
        setattr(mask, HIDES, True)
    if given.get("mask_function") is bidirectional_mask_function:
        setattr(mask, ALIKE, True)
    if not positional and _in_a_graph():
        skips = {"allow_is_causal_skip": own is sdpa_mask}  # its default
        setattr(mask, IMPLIED, _what_it_stands_for(**(skips | given)))
    return mask


def implied(mask: Tensor) -> Literal["full", "causal"] | None:
    """What a mask stands for if no mask is needed for it: no mask at all, or a causal flag."""
    return getattr(mask, IMPLIED, None)


def stored_once(mask: Tensor) -> Tensor:
    """One row of a mask that is the same for all queries, of which kernels read less; else all."""
    return mask[:, :, :1] if getattr(mask, ALIKE, False) else mask


def only_hides(additive: Tensor, added: Tensor) -> bool:
    """Whether an additive mask is no bias.

    Args:
        additive: the mask.
        added: what it adds to scores that it does not hide.
    """
    if torch.compiler.is_compiling() or _in_a_graph():  # exported graphs too
        return getattr(additive, HIDES, False)
    return not bool(added.any())


def _what_it_stands_for(
    *,
    q_length: int,
    kv_length: int,
    allow_is_causal_skip: bool,
    allow_is_bidirectional_skip: bool = False,
    **given: Any,
) -> Literal["full", "causal"] | None:
    """What transformers would have returned no mask for, had it been able to look."""
    if not _unpadded(kv_length, **given):
        return None
    if allow_is_bidirectional_skip:
        return "full"
    return "causal" if allow_is_causal_skip and q_length == kv_length else None


def _unpadded(
    kv_length: int,
    *,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **_: Any,
) -> bool:
    """Whether padding and windows hide nothing, for these lengths alone."""
    return attention_mask is None and (local_size is None or kv_length < local_size)


def _in_a_graph() -> bool:
    """Whether this is compiled, or recorded as a CUDA graph, for these lengths alone.

    An exported or traced graph must serve other lengths too.
    """
    if torch.compiler.is_compiling():
        # is_exporting() says yes in every compiled graph up to torch 2.11
        return not getattr(torch.compiler, "_is_exporting_flag", False)
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
