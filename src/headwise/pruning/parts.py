"""The tensors of a model that have a slice for each head of a site, and what cannot be cut.

Cutting the projections is right only if nothing else tells heads apart. So everything unknown is
refused: parameters, buffers and layers with other names than these, numbers that the module
computes with and that would become wrong, and biases of heads that are stored elsewhere.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from headwise.hf.naming import Adapter, interface_forward
from headwise.hf.projections import (
    SIBLING,
    InputProjection,
    Projection,
    code_of,
    holder_of,
    input_projections,
    output_projection,
)
from headwise.pruning.stand_ins import NORM, TABLE, shares_bias
from headwise.sites import Site

Kind = Literal["query", "shared"]  # a slice for each head, or for each group that shares keys
WIDTHS = ("head_width", "head_dim", "attention_head_size", "key_value_proj_dim", "head_size")
# Norms over the width of a single head that have a weight for every head.
HEAD_NORMS = ("ChameleonLayerNorm", "CohereLayerNorm", "Cohere2LayerNorm")


class Extra(NamedTuple):
    """A parameter besides the projections that Hugging Face attention may have for each head."""

    name: str  # in the attention module
    kind: Kind
    wide: bool = False  # whether a slice is as wide as a head, else it is one number
    axis: int = 0


EXTRAS = (
    Extra("sinks", "query"),  # what GPT-OSS can attend to instead of a token
    Extra("g_proj.weight", "query"),  # a factor for the output of each head: Step 3.7
    Extra("gate_proj.weight", "query", wide=True),  # and for each number of the output: AFMoE, HRM
    Extra("gate_proj.bias", "query", wide=True),
    Extra("pos_bias_u", "query"),  # what Transformer-XL adds to queries: Conformers
    Extra("pos_bias_v", "query"),
    Extra("bias_u", "query"),  # Parakeet
    Extra("bias_v", "query"),
    Extra("linear_pos.weight", "query", wide=True),  # the keys of distances: Conformers
    Extra("relative_k_proj.weight", "query", wide=True),  # Parakeet
    Extra("relative_position_bias.relative_position_bias_table", "query", axis=1),  # Swin
    Extra("q_norm.weight", "query"),  # of HEAD_NORMS alone
    Extra("q_norm.bias", "query"),
    Extra("k_norm.weight", "shared"),
    Extra("k_norm.bias", "shared"),
)


# Numbers of heads, and widths of all heads together, that `prune` updates.
COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
WIDTHS_OF_ALL = ("all_head_size", "inner_dim", "split_size")
SHARED_COUNTS = ("num_key_value_heads", "num_key_value_groups")
# More of them in single classes, {class: {attribute: what it is}}.
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
# Classes that read numbers of heads from their configuration at each call, and nothing that follows
# from these numbers; each module gets a configuration of its own, `OwnCounts`.
ASKS_CONFIG = (
    *("Phi3Attention", "Phi4MultimodalAttention", "MoonshineAttention"),
    *("ParakeetEncoderAttention", "NemotronAsrStreamingEncoderAttention"),
)
WIDTH = re.compile(r"^(?!.*(window|grid)).*(dim|size|width)")  # other names of such widths
# The name that a module's code gives to the last size of its input.
INPUT_WIDTH = re.compile(r"^\s*\w+, \w+, ([a-z]\w+) = \w+\.(?:shape|size\(\))\s*$", re.MULTILINE)
BIAS = re.compile(r"(rel|pos|distance|attention|attn)\w*_bias|_rpb_")  # of scores, not of a layer
# Norms over the width of a head, the same for all heads.
ALIKE = (
    *("q_norm", "k_norm", "v_norm", "qk_norm"),
    *("q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm"),
    *("q_layer_norm", "k_layer_norm"),
)
ROTATION = "rotary_emb"
SCALES = ("scaling", "per_dim_scale")  # parameters as wide as a head
POSITION_TABLE = "relative_position_bias"  # of Swin: biases by head, and their indices
POSITIONS = "distance_embedding"  # a vector as wide as a head for each distance
BEFORE = ("sequence_reduction",)  # layers before the projections: Segformer
# Names of classes and modules of layers with quantised weights.
QUANTISED = re.compile(r"quant|bitsandbytes|torchao|gptq|awq|hqq|eetq|fp8|fp4|aqlm|vptq")
NORMS = re.compile(r"norm|(^|_)ln($|_)")


@dataclass(frozen=True, eq=False)
class Part:
    """A tensor with a slice for each head along one axis.

    Args:
        module: the module that has it.
        name: the name of the parameter in the module.
        axis: the axis of the heads.
        blocks: what is concatenated along the axis, each with a slice for every head or group.
        unit: the size of a slice along the axis.
    """

    module: nn.Module
    name: str
    axis: int
    blocks: tuple[Kind, ...]
    unit: int

    @property
    def tensor(self) -> Tensor:
        """The current parameter."""
        return self.module.get_parameter(self.name)

    def size(self, queries: int, groups: int) -> int:
        """Return the size of the axis for a number of heads and groups."""
        return sum(queries if kind == "query" else groups for kind in self.blocks) * self.unit

    def fits(self, heads: "Heads") -> bool:
        """Return whether the axis has the size that these heads need."""
        tensor, size = self.tensor, self.size(heads.queries, heads.groups)
        return tensor.dim() > self.axis and tensor.shape[self.axis] == size

    def cut(self, queries: Sequence[int], groups: Sequence[int], *, before: "Heads") -> None:
        """Keep the slices of these heads, and of these groups of keys and values."""
        old = self.tensor
        index, start = list[int](), 0
        for kind in self.blocks:
            chosen = queries if kind == "query" else groups
            index += [start + self.unit * n + i for n in chosen for i in range(self.unit)]
            start += self.unit * (before.queries if kind == "query" else before.groups)
        kept = torch.tensor(index, dtype=torch.long, device=old.device)
        new = nn.Parameter(old.detach().index_select(self.axis, kept), old.requires_grad)
        setattr(self.module, self.name, new)


@dataclass(frozen=True)
class Heads:
    """The number of query heads, and of the sets of keys and values that they share."""

    queries: int
    groups: int

    @property
    def each(self) -> int:
        """The number of heads that share one set."""
        return self.queries // self.groups


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The tensors to cut for a site to have fewer heads."""

    site: Site
    holder: nn.Module  # the module that calls the site
    heads: Heads
    width: int  # of a head
    parts: list[Part]
    output: list[Part]  # the parts that multiply the outputs of heads: gates are folded into them


def anatomy(model: nn.Module, site: Site) -> Anatomy:
    """Find every tensor that has a slice for each head of a site.

    Raises if the module has something that may differ between heads in an unknown way; see
    `obstacle`.
    """
    path, holder = holder_of(model, site)
    if has_own_output(holder):
        return _without_projections(site, holder)
    _check_plain(model, path, holder, site)
    inputs, output = input_projections(model, site), output_projection(model, site)
    width = _head_width(holder, output)
    groups = _key_rows(inputs, site, width) // width
    heads = Heads(site.num_heads, groups)
    writes = [Part(output.module, "weight", 0 if output.transposed else 1, ("query",), width)]
    extra = [*_declared(model, path, site), *_of_theirs(holder, heads, width)]
    parts = [*_of_inputs(inputs, width), *writes, *extra]
    found = Anatomy(site, holder, heads, width, parts, writes)
    _check_sizes(found)
    _check_complete(model, found)
    return found


def _of_inputs(inputs: Sequence[InputProjection], width: int) -> list[Part]:
    parts: list[Part] = []
    for layer in inputs:
        kinds: tuple[Kind, ...] = tuple(
            "query" if block == "query" else "shared" for block in layer.blocks
        )
        if layer.by_head:  # the blocks of a head are one slice
            kinds = kinds[:1]
        unit = width * len(layer.blocks) // len(kinds)
        parts.append(Part(layer.module, "weight", int(layer.transposed), kinds, unit))
        if isinstance(layer.module.bias, Tensor):
            parts.append(Part(layer.module, "bias", 0, kinds, unit))
    return parts


def has_own_output(holder: nn.Module) -> bool:
    """Return whether a module says itself where the output of its heads goes; see `prune`."""
    return hasattr(holder, "head_output")


def _declared(model: nn.Module, path: str, site: Site) -> list[Part]:
    """Return the parts that the module with the site, or the one around it, declares."""
    places = dict.fromkeys([path, path.rpartition(".")[0]])
    return [part for place in places for part in _head_parameters(model.get_submodule(place), site)]


def _head_parameters(module: nn.Module, site: Site) -> list[Part]:
    declare: Any = getattr(module, "head_parameters", None)
    parts: list[Part] = []
    for name, axis in declare().items() if declare else ():
        owner, _, last = name.rpartition(".")
        size = module.get_parameter(name).shape[axis]
        parts.append(
            Part(module.get_submodule(owner), last, axis, ("query",), size // site.num_heads)
        )
    return parts


def _of_theirs(holder: nn.Module, heads: Heads, width: int) -> list[Part]:
    """Return the parts besides the projections that a Hugging Face module has."""
    parts: list[Part] = []
    found = dict(holder.named_parameters())
    for extra in EXTRAS:
        path, _, last = extra.name.rpartition(".")
        owner = holder.get_submodule(path) if extra.name in found else holder
        if extra.name in found and (path not in ("q_norm", "k_norm") or named(owner, HEAD_NORMS)):
            part = Part(owner, last, extra.axis, (extra.kind,), width if extra.wide else 1)
            parts += [part] if part.fits(heads) else []  # else it is an obstacle
    table = getattr(holder, TABLE, None)  # UMT5 has one in each layer; T5's is shared
    if isinstance(table, nn.Embedding) and not shares_bias(holder):
        parts.append(Part(table, "weight", 1, ("query",), 1))
    return parts


def _without_projections(site: Site, holder: nn.Module) -> Anatomy:
    """Return the parts of a module without linear projections, which declares all of them."""
    parts, output = _head_parameters(holder, site), cast(Any, holder).head_output()
    weight = holder.get_parameter(output)
    heads = Heads(site.num_heads, site.num_heads)
    found = Anatomy(site, holder, heads, 1, parts, [p for p in parts if p.tensor is weight])
    _check_sizes(found)
    return found


def _head_width(holder: nn.Module, output: Projection) -> int:
    told = (holder.__dict__.get(name) for name in WIDTHS)
    return next((w for w in told if isinstance(w, int)), output.weight.shape[1] // output.heads)


def _key_rows(inputs: Sequence[InputProjection], site: Site, width: int) -> int:
    layer = next(each for each in inputs if "key" in each.blocks)
    weight = layer.module.weight
    assert isinstance(weight, Tensor)
    rows = weight.shape[int(layer.transposed)]
    if "query" in layer.blocks and not layer.by_head:
        rows -= site.num_heads * width
    return rows // sum(block != "query" or layer.by_head for block in layer.blocks)


def _check_sizes(found: Anatomy) -> None:
    queries, groups = found.heads.queries, found.heads.groups
    even = groups > 0 and queries % groups == 0
    if not even or not all(part.fits(found.heads) for part in found.parts):
        raise ValueError(
            f"{found.site.name} has {queries} heads of width {found.width}, which do not make up "
            f"the projections of {type(found.holder).__name__}, so its heads cannot be told "
            "apart."
        )


def _check_plain(model: nn.Module, path: str, holder: nn.Module, site: Site) -> None:
    """Raise if a layer is not a plain linear one, and say what to do."""
    if isinstance(holder, Adapter):  # `prune` cannot update their number of heads
        raise ValueError(
            f"{type(holder).__name__} of {site.name} computes attention outside transformers' "
            "attention interface, so it cannot be pruned."
        )
    layers = dict(holder.named_children())
    parent = model.get_submodule(path.rpartition(".")[0])
    for name in (SIBLING,) if path else ():
        child = getattr(getattr(parent, name.split(".")[0], None), name.split(".")[1], None)
        layers |= {name: child} if isinstance(child, nn.Module) else {}
    if problem := layer_of_others(layers):
        raise ValueError(f"{type(holder).__name__} of {site.name} {problem}.")


def _check_complete(model: nn.Module, found: Anatomy) -> None:
    """Raise if the module has something that is neither cut nor the same for all heads."""
    cut = [part.tensor for part in found.parts]
    added_after = [getattr(part.module, "bias", None) for part in found.output]
    known = [*cut, *(bias for bias in added_after if isinstance(bias, Tensor))]
    heads, width = found.heads.queries, found.width
    if problem := obstacle(model, found.holder, heads=heads, width=width, known=known):
        raise ValueError(
            f"{type(found.holder).__name__} of {found.site.name} {problem}, so it cannot be pruned."
        )


def obstacle(
    model: nn.Module, holder: nn.Module, *, heads: int, width: int, known: Sequence[Tensor]
) -> str | None:
    """Return why heads of a module cannot be cut, as the rest of a sentence; None if they can.

    Args:
        model: the whole model.
        holder: the module that calls the site.
        heads: its number of heads.
        width: the width of a head.
        known: its parameters that are cut, or that come after the heads are mixed.
    """
    theirs = interface_forward(type(holder)) is not None  # of Hugging Face
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
    """Return the name of the first class of a module that is listed, if any."""
    return next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in classes), None)


def numbers_of(holder: nn.Module) -> dict[str, Number]:
    """Return the attributes in which a class of `NUMBERS` stores counts, and what they count."""
    listed = named(holder, NUMBERS)
    return {} if listed is None else NUMBERS[listed]


def _strange_parameter(holder: nn.Module, width: int, known: Sequence[Tensor]) -> str | None:
    """Return a parameter that is neither known nor the same for all heads."""
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
    """Return whether a parameter is that of a norm over several heads together, as OLMo 2's."""
    layer = name.rpartition(".")[0]
    if not layer or NORMS.search(layer.lower()) is None:
        return False
    if re.search(rf"self\.{layer}\((hidden|cross_attention)_states\)", code_of(type(holder))):
        return False  # a norm of the module's input
    shape = holder.get_parameter(name).shape
    return len(shape) == 1 and shape[0] > width and shape[0] % width == 0


def _strange_layer(holder: nn.Module, known: Sequence[Tensor]) -> str | None:
    """Return a layer or buffer that may treat heads differently."""
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
    """Return a number in the module's code that pruning would make wrong and does not update."""
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
        # with one head the width of all heads is the width of a head, which does not change
        wide = heads > 1 and value == heads * width and WIDTH.search(name) is not None
        if type(value) is int and name not in told and (wide or "heads" in name):
            return f"self.{name}"
    return None


def _bias_outside(model: nn.Module, holder: nn.Module, heads: int) -> str | None:
    """Return a table of biases by head outside all attention modules, as BEiT has."""
    holders = {path: each for path, each in model.named_modules() if "site" in each.__dict__}
    inside = {id(parameter) for each in holders.values() for parameter in each.parameters()}
    here = next(path for path, each in holders.items() if each is holder)
    for name, parameter in model.named_parameters():
        per_head = parameter.dim() > 1 and heads in parameter.shape
        if BIAS.search(name) and per_head and id(parameter) not in inside:
            around = name
            while around and not any(path.startswith(f"{around}.") for path in holders):
                around = around.rpartition(".")[0]
            if not around or here.startswith(f"{around}."):  # the table is of this stack
                return name
    return None


def layer_of_others(layers: Mapping[str, nn.Module]) -> str | None:
    """Return what to do about the first layer with an adapter or with quantised weights.

    Args:
        layers: the layers of an attention module by name.
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
