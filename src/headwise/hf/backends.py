"""Attention functions of transformers in the terms of our ops: scores, masks, caps, sinks.

Statistics, losses and replacements must follow the function that the host really calls, not the
arguments it is given: transformers' sdpa ignores a softcap that eager attention applies. So each
function is classified once, by what its code reads. An unknown function still runs at a site, with
gates; asking for its scores raises `CannotFollow`.

Masks are tagged when they are made, because a compiled or recorded graph cannot read their contents
and reading takes time elsewhere. Three facts become attributes of the mask: whether it stands for
no mask or for a causal flag, whether an additive one only hides keys, and whether it hides the same
keys from all queries. Compilation follows attributes of tensors, and a tensor that a host computes
from a mask has none of them; only writing into the mask itself would make them untrue.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionMaskInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

from headwise.ops.scores import Scores
from headwise.sites import Site

Attention = Callable[..., tuple[Tensor, Tensor | None]]
Kind = Literal["eager", "sdpa", "flex", "flash", "paged", "adapter", "unknown"]
ADAPTER = "headwise adapter"  # the name under which a module with an adapter attends

# An additive mask hides a key with this or less: -10,000 as usual, also rounded to bfloat16.
HIDING = -9e3

DENSE = "headwise_dense"  # the attribute of a BlockMask that keeps it as a tensor
# Arguments that eager attention may have and names that its code may use, if it computes softmax
# attention with the changes listed in `obeys`. All functions of transformers do.
# fmt: off
EAGER_ARGUMENTS = frozenset([
    "module", "query", "key", "value", "query_states", "key_states", "value_states",
    "attention_mask", "scaling", "dropout", "softcap", "position_bias", "sliding_window",
])
EAGER_NAMES = frozenset([
    "torch", "matmul", "transpose", "softmax", "dropout", "training", "nn", "functional",
    "contiguous", "dtype", "to", "float32", "repeat_kv", "num_key_value_groups", "size", "head_dim",
    "F", "reshape", "expand", "shape", "type", "view", "unsqueeze", "getattr", "hasattr",
])
# fmt: on
CAP_NAMES = frozenset({"tanh"})
SINK_NAMES = frozenset({"sinks", "cat", "max", "values", "logsumexp", "sigmoid"})

# Attributes of masks, see `tag_masks`.
ONLY_HIDES = "headwise_only_hides"  # an additive mask holds only 0 and the lowest number
SAME_ROWS = "headwise_same_rows"  # all queries see the same keys
IMPLIED = "headwise_implied"  # "full": hides nothing; "causal": hides as a causal flag does
MASK_FUNCTIONS = {"sdpa": sdpa_mask, "eager": eager_mask}  # of transformers, tagged here


class CannotFollow(ValueError):
    """Error for a site that computes attention in a way Headwise does not follow."""

    def __init__(self, site: Site, why: str):
        super().__init__(
            f"{site.name} cannot be observed, guided or replaced: {why}. Masking and gating heads "
            "work there; leave it out of other verbs with where=, or use eager or sdpa."
        )
        self.site = site


class Backend(NamedTuple):
    """Properties of one attention function.

    Args:
        kind: the backend whose rules for masks and causality it obeys.
        obeys: the arguments that change its scores; "sinks" stands for the module's own sinks.
    """

    kind: Kind
    obeys: tuple[str, ...] = ()


class Visibility(NamedTuple):
    """Mask of a host in the terms of our ops."""

    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    first: int  # position of the first query among the keys


@dataclass(frozen=True, eq=False)
class HostCall:
    """Attention computation as the host asked for it."""

    module: nn.Module
    site: Site
    name: str  # backend
    backend: Backend
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Any  # a tensor, a BlockMask or None
    scaling: float | None
    dropout: float
    others: dict[str, Any]  # other arguments of this host, by name

    def obeyed(self, argument: str) -> Any:
        """Return the value of an argument if the backend obeys it, else None."""
        return self.others.get(argument) if argument in self.backend.obeys else None

    @property
    def cap(self) -> float | None:
        """Bound to which tanh caps the scores, if any."""
        return self.obeyed("softcap")

    @property
    def sink(self) -> Tensor | None:
        """Logit of each head that takes weight and has no value, if any."""
        if "sinks" in self.backend.obeys:
            return cast(Tensor | None, self.module.sinks)
        return self.obeyed("s_aux")


@torch.compiler.assume_constant_result  # takes plain functions only, hence two functions
def classify(name: str, function: Attention, is_default: bool) -> Backend:
    """Classify an attention function, as a constant of compiled graphs."""
    known = _classified_once if isinstance(function, FunctionType) else _classified
    return known(name, function, is_default)


def _classified(name: str, function: Attention, is_default: bool) -> Backend:
    """Classify an attention function.

    Args:
        name: of the backend that the host asked for.
        function: that the host got.
        is_default: whether it is the eager attention of the host's own file.
    """
    if name.startswith("paged|"):
        return Backend("paged")
    if name == ADAPTER:
        return Backend("adapter", ("position_bias",))
    if is_default:
        return _classify_eager(function)
    plain = function.func if isinstance(function, partial) else function
    if plain is sdpa_attention_forward:
        return Backend("sdpa", ("position_bias",))
    if plain is flex_attention_forward:
        return Backend("flex", ("softcap", "s_aux", "position_bias"))
    if plain is flash_attention_forward or name.startswith("flash_attention_"):
        return Backend("flash", ("softcap", "s_aux"))
    return Backend("unknown")


_classified_once = cache(_classified)


def _classify_eager(function: Attention) -> Backend:
    """Classify eager attention by the names in its code; any unknown name makes it unknown."""
    if not inspect.isfunction(function):
        return Backend("unknown")
    code = function.__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = set(code.co_names)
    obeys = [argument for argument in ("softcap", "position_bias") if argument in arguments]
    known = EAGER_NAMES
    if "softcap" in obeys:
        known |= CAP_NAMES
    if "sinks" in names:
        obeys.append("sinks")
        known |= SINK_NAMES
    if code.co_freevars:  # a closure may do anything
        return Backend("unknown")
    if names <= known and EAGER_ARGUMENTS.issuperset(arguments) and not _reads_keywords(function):
        return Backend("eager", tuple(obeys))
    return Backend("unknown")


def _reads_keywords(function: Attention) -> bool:
    """Return whether a function reads its **kwargs."""
    import dis  # lazy: needed once per function

    keywords = inspect.getfullargspec(function).varkw
    return keywords is not None and any(
        keywords in (read.argval if isinstance(read.argval, tuple) else (read.argval,))
        for read in dis.get_instructions(function)
        if read.opname.startswith("LOAD_")
    )


def scores_of(call: HostCall) -> Scores:
    """Return the scores that the host's own function computes."""
    check_followed(call)
    seen = visibility(call)
    return Scores(
        call.query,
        call.key,
        seen.mask,
        seen.bias,
        seen.causal,
        scale=call.scaling,
        first=seen.first,
        **extras_of(call),
    )


def extras_of(call: HostCall) -> dict[str, Any]:
    """Return the cap and the sink of a call as arguments of an op, if it has them."""
    given = {"cap": call.cap, "sink": call.sink}
    return {name: value for name, value in given.items() if value is not None}


def check_followed(call: HostCall) -> None:
    """Raise if the host computes scores in a way that is not known here."""
    if call.backend.kind == "paged":
        why = "its keys come from a paged cache inside the call"
    elif call.backend.kind == "unknown":
        why = f"what the attention function {call.name!r} computes is not known"
    elif call.backend.kind == "flash" and (why := _flash_obstacle(call)):
        pass
    else:
        return
    raise CannotFollow(call.site, why)


def visibility(call: HostCall) -> Visibility:
    """Translate the host's mask: boolean, additive, a BlockMask, or None with a causal flag."""
    bias = call.obeyed("position_bias")
    given = call.attention_mask
    if call.backend.kind == "flash":
        return _flash_visibility(call)
    if given is None:
        return _without_mask(call, bias)
    if not isinstance(given, Tensor):
        given = _flex_mask(call)
    if implied := getattr(given, IMPLIED, None):
        return Visibility(None, bias, implied == "causal", 0)
    one_row = getattr(given, SAME_ROWS, False)  # kernels read less of it
    mask = (given[:, :, :1] if one_row else given)[..., : call.key.shape[2]]
    if mask.dtype == torch.bool and call.backend.kind == "eager":
        mask = mask.to(call.query.dtype)  # eager attention adds it as 0 and 1
    if mask.dtype != torch.bool:
        additive = mask
        mask = additive > HIDING
        added = additive.masked_fill(~mask, 0)
        if not _only_hides(given, added):
            bias = added if bias is None else bias + added
    first = _first_position(call, mask)
    return Visibility(mask, bias, _is_last(call, first), first)


def _flex_mask(call: HostCall) -> Tensor:
    """Return a BlockMask as a boolean tensor."""
    from torch.nn.attention.flex_attention import BlockMask, create_mask

    given = call.attention_mask
    if not isinstance(given, BlockMask):
        raise CannotFollow(call.site, f"its mask is a {type(given).__name__}")
    batch, heads = (int(given.shape[axis]) for axis in (0, 1))
    lengths = call.query.shape[2], call.key.shape[2]
    known: dict[tuple[int, int], Tensor] = given.__dict__.setdefault(DENSE, {})
    if lengths not in known:  # all layers of a pass have one BlockMask
        device = str(call.query.device)
        known[lengths] = create_mask(given.mask_mod, batch, heads, *lengths, device=device)
    return known[lengths]


def _first_position(call: HostCall, mask: Tensor) -> int:
    """Return the position of the first query among the keys.

    In cached decoding the last query sees its own key and none after it. Items may be padded on the
    left, so the furthest key of all items counts.
    """
    n_queries, n_keys = call.query.shape[2], call.key.shape[2]
    if n_queries == n_keys or not _is_decoder_self(call):
        return 0
    last_key = mask[..., -1, :].flatten(0, -2).any(dim=0).nonzero()
    return int(last_key[-1]) - (n_queries - 1) if len(last_key) else n_keys - n_queries


def _is_decoder_self(call: HostCall) -> bool:
    """Return whether this is a decoder's self-attention, whose keys may come from a cache."""
    return call.site.keys == call.site.queries == "decoder"


def _is_last(call: HostCall, first: int) -> bool:
    """Return whether a single query is at the last key, where `causal` hides nothing."""
    n_queries, n_keys = call.query.shape[2], call.key.shape[2]
    return _is_decoder_self(call) and n_queries == 1 and first == n_keys - 1


def _without_mask(call: HostCall, bias: Tensor | None) -> Visibility:
    """Translate a missing mask: sdpa obeys the causal flag, others see all keys."""
    n_queries, n_keys = call.query.shape[2], call.key.shape[2]
    if n_queries == 1 and _is_decoder_self(call):
        return Visibility(None, bias, True, n_keys - 1)
    if call.backend.kind != "sdpa" or not _is_causal(call) or n_queries == 1:
        return Visibility(None, bias, False, 0)
    if n_queries == n_keys:
        return Visibility(None, bias, True, 0)
    position_K = torch.arange(n_keys, device=call.query.device)
    mask = (position_K <= position_K[:n_queries, None])[None, None]
    return Visibility(mask, bias, False, 0)


def _is_causal(call: HostCall) -> bool:
    """Return the causal flag of a call, or else of its module."""
    given = call.others.get("is_causal")
    return bool(getattr(call.module, "is_causal", True) if given is None else given)


def _flash_obstacle(call: HostCall) -> str:
    """Return why a call of a flash function cannot be followed; "" if it can."""
    given = {name for name, value in call.others.items() if value is not None}
    if given & {"indices", "block_indices"}:
        return "its keys are chosen inside the flash function"
    if {"cu_seq_lens_q", "cu_seq_lens_k"} <= given or _is_packed(call):
        return "several sequences are packed into one"
    return ""


def _is_packed(call: HostCall) -> bool:
    """Return whether position ids restart, so that flash attention sees several sequences."""
    position_ids = call.others.get("position_ids")
    if not isinstance(position_ids, Tensor) or call.query.shape[0] != 1:
        return False
    if call.attention_mask is not None or position_ids.dim() != 2 or len(position_ids) != 1:
        return False
    return bool((position_ids.diff(dim=-1) != 1).any())


def _flash_visibility(call: HostCall) -> Visibility:
    """Translate a padding mask (B, K) and a window; queries are at the last keys."""
    n_queries, n_keys = call.query.shape[2], call.key.shape[2]
    causal = _is_causal(call) and n_queries > 1
    first = n_keys - n_queries if causal or _is_decoder_self(call) else 0
    mask = None
    if call.attention_mask is not None:
        mask = call.attention_mask.bool()[:, None, None, :n_keys]
    window = call.others.get("sliding_window")
    if window is not None and n_keys > window:
        position_K = torch.arange(n_keys, device=call.query.device)
        position_Q = position_K[-n_queries:, None]
        near = ((position_Q - position_K).abs() < window)[None, None]
        mask = near if mask is None else mask & near
    return Visibility(mask, None, causal or (n_queries == 1 and _is_decoder_self(call)), first)


def tag_masks() -> None:
    """Tag the masks that functions of transformers make; leave functions of other tools alone."""
    registered = AttentionMaskInterface()
    for name, own in MASK_FUNCTIONS.items():
        if registered[name] is own:
            AttentionMaskInterface.register(name, partial(_tagged, own))


def _tagged(own: Any, *positional: Any, **given: Any) -> Any:
    """Make the host's mask and tag it."""
    mask = own(*positional, **given)
    if not isinstance(mask, Tensor):
        return mask
    if own is eager_mask:
        setattr(mask, ONLY_HIDES, True)
    if given.get("mask_function") is bidirectional_mask_function:
        setattr(mask, SAME_ROWS, True)
    if not positional and _in_graph():
        skips = {"allow_is_causal_skip": own is sdpa_mask}  # its default
        setattr(mask, IMPLIED, _implied_by(**(skips | given)))
    return mask


def _only_hides(additive: Tensor, added: Tensor) -> bool:
    """Return whether an additive mask adds nothing to the scores that it does not hide."""
    if torch.compiler.is_compiling() or _in_graph():  # exported graphs too
        return getattr(additive, ONLY_HIDES, False)
    return not bool(added.any())


def _implied_by(
    *,
    q_length: int,
    kv_length: int,
    allow_is_causal_skip: bool,
    allow_is_bidirectional_skip: bool = False,
    **given: Any,
) -> Literal["full", "causal"] | None:
    """Return "full" or "causal" if transformers would make no mask outside of a graph."""
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
    """Return whether padding and windows hide nothing at these lengths."""
    return attention_mask is None and (local_size is None or kv_length < local_size)


def _in_graph() -> bool:
    """Return whether this is compiled, or recorded as a CUDA graph, for these lengths alone.

    An exported or traced graph must serve other lengths too.
    """
    if torch.compiler.is_compiling():
        # is_exporting() says yes in every compiled graph up to torch 2.11
        return not getattr(torch.compiler, "_is_exporting_flag", False)
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
