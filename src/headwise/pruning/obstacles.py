"""What is in the way of cutting heads out of an attention module, if anything is.

Cutting the projections is right only if nothing else tells heads apart, so what is not known is
refused: parameters, buffers and layers under other names than these, numbers that the module
computes with and that would no longer be true, and biases of heads that are kept elsewhere.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FunctionType

from torch import Tensor, nn

from headwise.hf.adapters import Adapter
from headwise.hf.naming import interface_forward
from headwise.pruning.headless import NORM
from headwise.pruning.position_bias import TABLE, shares_bias

# The numbers of heads and widths of all heads together that cutting sets anew.
COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
WIDTHS_OF_ALL = ("all_head_size", "inner_dim", "split_size")
SHARED_COUNTS = ("num_key_value_heads", "num_key_value_groups")
WIDTH = re.compile(r"^(?!.*window).*(dim|size|width)")  # what such a width is called elsewhere
BIAS = re.compile(r"(rel|pos|distance|attention|attn)\w*_bias")  # of scores, not of a layer
# Layers that treat all heads alike: norms over the width of a head, as they are called in most
# hosts, in Phi, HunYuan and Idefics; and rotations.
ALIKE = (
    *("q_norm", "k_norm", "v_norm", "qk_norm"),
    *("q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm"),
    *("q_layer_norm", "k_layer_norm"),
)
ROTATION = "rotary_emb"
# Where it is known in which order one layer makes queries, keys and values.
FUSED = ("c_attn", "Wqkv")
KNOWN_FUSED = ("GPT2Attention", "DecisionTransformerGPT2Attention", "ModernBertAttention")


def obstacle(
    model: nn.Module, holder: nn.Module, *, heads: int, width: int, known: Sequence[Tensor]
) -> str | None:
    """Why heads of a module cannot be cut out, as what comes after its name; None if they can.

    Args:
        model: that it is a part of.
        holder: the module, which calls the site.
        heads: how many it has.
        width: of a head.
        known: its parameters of which it is known how to cut them, or that they come after.
    """
    if isinstance(holder, Adapter):  # cutting tells modules with a config of their own alone
        return "computes attention outside transformers' attention interface"
    theirs = interface_forward(type(holder)) is not None  # else it is Headwise's own
    strange = _strange_parameter(holder, width, known)
    if theirs and strange is None:
        strange = _strange_layer(holder, known)
    if strange is not None:
        return f"has {strange}, of which headwise does not know what belongs to which head"
    if theirs and (number := _stale_number(holder, heads, width)):
        return f"computes with {number}, which pruning would leave wrong"
    if theirs and (outside := _bias_outside(model, heads)):
        return f"is given {outside} from outside, which headwise does not cut"
    return None


def _strange_parameter(holder: nn.Module, width: int, known: Sequence[Tensor]) -> str | None:
    """A parameter that is neither known nor the same for all heads."""
    ids = {id(tensor) for tensor in known}
    for name, parameter in holder.named_parameters():
        layer, _, last = name.rpartition(".")
        alike = layer in ALIKE and parameter.shape == (width,)
        of_no_head = layer == NORM or (shares_bias(holder) and (layer, last) == (TABLE, "weight"))
        if id(parameter) not in ids and not alike and not of_no_head:
            return name
    return None


def _strange_layer(holder: nn.Module, known: Sequence[Tensor]) -> str | None:
    """A layer or a buffer that may do something else to each head."""
    if not {kind.__name__ for kind in type(holder).__mro__}.intersection(KNOWN_FUSED):
        fused = [name for name in FUSED if isinstance(getattr(holder, name, None), nn.Module)]
        if fused:
            return fused[0]
    ids = {id(tensor) for tensor in known}
    for name, child in holder.named_children():
        projects = any(id(tensor) in ids for tensor in child.parameters())
        passive = isinstance(child, nn.Dropout | nn.Identity)
        if not (projects or passive or name in {*ALIKE, ROTATION, NORM, TABLE}):
            return name
    buffers = (name for name, _ in holder.named_buffers())
    return next((name for name in buffers if name.split(".")[0] not in (ROTATION, TABLE)), None)


def _stale_number(holder: nn.Module, heads: int, width: int) -> str | None:
    """A number that its code reads, that depends on how many heads there are and is not told."""
    source = "".join(_sources(type(holder)))
    if found := re.search(r"self\.config\.\w*heads\b", source):
        return found[0]
    told = {*COUNTS, *WIDTHS_OF_ALL, *SHARED_COUNTS}
    for name in dict.fromkeys(re.findall(r"self\.(\w+)", source)):
        value = holder.__dict__.get(name)
        # with one head left the width of all is that of a head, which stays as it is
        wide = heads > 1 and value == heads * width and WIDTH.search(name) is not None
        if type(value) is int and name not in told and (wide or "heads" in name):
            return f"self.{name}"
    return None


def _sources(kind: type[nn.Module]) -> Iterator[str]:
    """What a class and those it is made of compute, without how they are built."""
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, function in vars(base).items():
            if isinstance(function, FunctionType) and name != "__init__":
                with suppress(OSError):  # of code without its text nothing is known
                    yield inspect.getsource(function)


def _bias_outside(model: nn.Module, heads: int) -> str | None:
    """A table of biases with an entry for each head that no attention module has, as BEiT's."""
    holders = [module for module in model.modules() if "site" in module.__dict__]
    inside = {id(parameter) for holder in holders for parameter in holder.parameters()}
    for name, parameter in model.named_parameters():
        per_head = parameter.dim() > 1 and heads in parameter.shape
        if BIAS.search(name) and per_head and id(parameter) not in inside:
            return name
    return None
