"""What is in the way of cutting heads out of an attention module, if anything is.

Cutting the projections is right only if nothing else tells heads apart, so what is not known is
refused: parameters, buffers and layers under other names than these, numbers that the module
computes with and that would no longer be true, and biases of heads that are kept elsewhere.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from headwise.hf.naming import interface_forward
from headwise.hf.projections import code_of
from headwise.pruning.headless import NORM
from headwise.pruning.position_bias import TABLE, shares_bias

# The numbers of heads and widths of all heads together that cutting sets anew.
COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
WIDTHS_OF_ALL = ("all_head_size", "inner_dim", "split_size")
SHARED_COUNTS = ("num_key_value_heads", "num_key_value_groups")
# More of them, {class: {attribute: what it is}}, in classes whose code was read.
Number = Literal["query width", "groups", "group width"]
NUMBERS: dict[str, dict[str, Number]] = {
    "DbrxAttention": {"hidden_size": "query width"},
    "Exaone4_5_VisionAttention": {"q_dim": "query width", "kv_dim": "group width"},
    "GPTBigCodeAttention": {
        "embed_dim": "query width",
        "kv_heads": "groups",
        "kv_dim": "group width",
    },
    "InternVLVisionAttention": {"embed_dim": "query width"},
    "JanusVisionAttention": {"embed_dim": "query width"},
    "QianfanOCRVisionAttention": {"embed_dim": "query width"},
}
# Classes that ask their configuration for numbers of heads, and for nothing that follows from them:
# each gets a configuration of its own, see `own_counts`.
ASKS_CONFIG = (
    *("Phi3Attention", "Phi4MultimodalAttention", "MoonshineAttention"),
    *("ParakeetEncoderAttention", "NemotronAsrStreamingEncoderAttention"),
)
WIDTH = re.compile(
    r"^(?!.*(window|grid)).*(dim|size|width)"
)  # what such a width is called elsewhere
# The last size of what a module is given, by the name its code has for it.
INPUT_WIDTH = re.compile(r"^\s*\w+, \w+, ([a-z]\w+) = \w+\.(?:shape|size\(\))\s*$", re.MULTILINE)
BIAS = re.compile(r"(rel|pos|distance|attention|attn)\w*_bias|_rpb_")  # of scores, not of a layer
# Layers that treat all heads alike: norms over the width of a head, as they are called in most
# hosts, in Phi, HunYuan and Idefics; and rotations.
ALIKE = (
    *("q_norm", "k_norm", "v_norm", "qk_norm"),
    *("q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm"),
    *("q_layer_norm", "k_layer_norm"),
)
ROTATION = "rotary_emb"
SCALES = ("scaling", "per_dim_scale")  # parameters: a factor for each number of a head's width
POSITION_TABLE = "relative_position_bias"  # with a bias for each head, and where to find it: Swin
POSITIONS = "distance_embedding"  # a vector of a head's width for each distance
BEFORE = ("sequence_reduction",)  # layers between a module's input and its projections: Segformer
# How the classes of layers with quantised weights are called, and what they are parts of.
QUANTISED = re.compile(r"quant|bitsandbytes|torchao|gptq|awq|hqq|eetq|fp8|fp4|aqlm|vptq")
NORMS = re.compile(r"norm|(^|_)ln($|_)")


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
    theirs = interface_forward(type(holder)) is not None  # else it is Headwise's own
    strange = _strange_parameter(holder, width, known)
    if theirs and strange is None:
        strange = _strange_layer(holder, known)
    if strange is not None and _is_joint_norm(holder, strange, width):
        return (
            f"has {strange.rpartition('.')[0]}, which normalises all heads together: without some "
            "of them the others would no longer be the same"
        )
    if strange is not None:
        return f"has {strange}, of which headwise does not know what belongs to which head"
    if theirs and (number := _stale_number(holder, heads, width)):
        return f"computes with {number}, which pruning would leave wrong"
    if theirs and (outside := _bias_outside(model, holder, heads)):
        return f"is given {outside} from outside, which headwise does not cut"
    return None


def named(module: nn.Module, classes: Collection[str]) -> str | None:
    """Return the first class that a module is of and that is listed by name, if any."""
    return next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in classes), None)


def numbers_of(holder: nn.Module) -> dict[str, Number]:
    """Return the numbers of an attention module that its class alone has, and what they count."""
    listed = named(holder, NUMBERS)
    return {} if listed is None else NUMBERS[listed]


def _strange_parameter(holder: nn.Module, width: int, known: Sequence[Tensor]) -> str | None:
    """A parameter that is neither known nor the same for all heads."""
    ids = {id(tensor) for tensor in known}
    for name, parameter in holder.named_parameters():
        layer, _, last = name.rpartition(".")
        alike = (layer in ALIKE or name in SCALES) and parameter.shape == (width,)
        alike |= layer == POSITIONS and parameter.shape[1:] == (width,)
        of_no_head = layer == NORM or (shares_bias(holder) and (layer, last) == (TABLE, "weight"))
        of_no_head |= layer.split(".")[0] in BEFORE
        if id(parameter) not in ids and not alike and not of_no_head:
            return name
    return None


def _is_joint_norm(holder: nn.Module, name: str, width: int) -> bool:
    """Whether a parameter is that of a norm over the width of several heads, as OLMo 2's."""
    layer = name.rpartition(".")[0]
    if not layer or NORMS.search(layer.lower()) is None:
        return False
    if re.search(rf"self\.{layer}\((hidden|cross_attention)_states\)", code_of(type(holder))):
        return False  # it is over what comes in
    shape = holder.get_parameter(name).shape
    return len(shape) == 1 and shape[0] > width and shape[0] % width == 0


def _strange_layer(holder: nn.Module, known: Sequence[Tensor]) -> str | None:
    """A layer or a buffer that may do something else to each head."""
    ids = {id(tensor) for tensor in known}
    known_layers = {*ALIKE, *BEFORE, ROTATION, NORM, TABLE, POSITIONS}
    for name, child in holder.named_children():
        projects = any(id(tensor) in ids for tensor in child.parameters())
        passive = isinstance(child, nn.Dropout | nn.Identity)
        if not (projects or passive or name in known_layers):
            return name
        known_layers |= {name} if name == POSITION_TABLE and projects else set[str]()
    buffers = (name for name, _ in holder.named_buffers())
    return next((name for name in buffers if name.split(".")[0] not in known_layers), None)


def _stale_number(holder: nn.Module, heads: int, width: int) -> str | None:
    """A number that its code reads, that depends on how many heads there are and is not told."""
    source = code_of(type(holder))
    found = re.search(r"self\.config\.\w*heads\b", source)
    if found and not named(holder, ASKS_CONFIG):
        return found[0]
    for name in INPUT_WIDTH.findall(source):
        if re.search(rf"(?:view|reshape)\([^()]*\b{name}\b|\b{name} // ", source):
            return f"{name}, the width of the model, as that of all heads"
    told = {*COUNTS, *WIDTHS_OF_ALL, *SHARED_COUNTS, *numbers_of(holder)}
    for name in dict.fromkeys(re.findall(r"self\.(\w+)", source)):
        value = holder.__dict__.get(name)
        # with one head left the width of all is that of a head, which stays as it is
        wide = heads > 1 and value == heads * width and WIDTH.search(name) is not None
        if type(value) is int and name not in told and (wide or "heads" in name):
            return f"self.{name}"
    return None


def _bias_outside(model: nn.Module, holder: nn.Module, heads: int) -> str | None:
    """A table of biases with an entry for each head that no attention module has, as BEiT's."""
    holders = {path: each for path, each in model.named_modules() if "site" in each.__dict__}
    inside = {id(parameter) for each in holders.values() for parameter in each.parameters()}
    here = next(path for path, each in holders.items() if each is holder)
    for name, parameter in model.named_parameters():
        per_head = parameter.dim() > 1 and heads in parameter.shape
        if BIAS.search(name) and per_head and id(parameter) not in inside:
            around = name
            while around and not any(path.startswith(f"{around}.") for path in holders):
                around = around.rpartition(".")[0]
            if not around or here.startswith(f"{around}."):  # the stack that the table is a part of
                return name
    return None


def layer_of_others(layers: Mapping[str, nn.Module]) -> str | None:
    """Say of the first layer with an adapter or with quantised weights what is to be done.

    Args:
        layers: of an attention module, by name.
    """
    for name, layer in layers.items():
        kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
        if hasattr(layer, "base_layer") or kind.startswith("peft."):
            return (
                f"has an adapter on {name} ({type(layer).__name__}); merge the adapters first: "
                "model.merge_and_unload()"
            )
        if _is_quantised(layer, kind):
            return f"has a quantised {name} ({type(layer).__name__}); prune before quantising"
    return None


def _is_quantised(layer: nn.Module, kind: str) -> bool:
    weight = getattr(layer, "weight", None)
    narrow = isinstance(weight, Tensor) and (
        not weight.is_floating_point()
        or weight.dtype.itemsize == 1
        or QUANTISED.search(type(weight).__module__) is not None
    )
    return narrow or QUANTISED.search(kind.lower()) is not None or hasattr(layer, "qweight")
