"""The tensors of a model of which every head of a site has a part, and how to cut them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from headwise.hf.naming import Adapter
from headwise.hf.projections import (
    SIBLING,
    InputProjection,
    Projection,
    holder_of,
    input_projections,
    output_projection,
)
from headwise.pruning.obstacles import layer_of_others, named, obstacle
from headwise.pruning.position_bias import TABLE, shares_bias
from headwise.sites import Site
from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.relative import RelativeAttention
from headwise_papers.models.rnn import Seq2Seq

Kind = Literal["query", "shared"]  # a part for each head, or for each group that shares keys
WIDTHS = ("head_width", "head_dim", "attention_head_size", "key_value_proj_dim", "head_size")
# Norms that treat each head alone, but have a weight for every head.
NORMS = ("ChameleonLayerNorm", "CohereLayerNorm", "Cohere2LayerNorm")


class Extra(NamedTuple):
    """A parameter that attention of Hugging Face may have for each head beside its projections."""

    name: str  # in the attention module
    kind: Kind
    wide: bool = False  # whether a head has as many numbers as it is wide, not one
    axis: int = 0


EXTRAS = (
    Extra("sinks", "query"),  # what GPT-OSS can attend to instead of a word
    Extra("g_proj.weight", "query"),  # a factor for the output of each head: Step 3.7
    Extra("gate_proj.weight", "query", wide=True),  # and for each number of it: AFMoE, HRM
    Extra("gate_proj.bias", "query", wide=True),
    Extra("pos_bias_u", "query"),  # what Transformer-XL adds to queries: Conformers
    Extra("pos_bias_v", "query"),
    Extra("bias_u", "query"),  # Parakeet
    Extra("bias_v", "query"),
    Extra("linear_pos.weight", "query", wide=True),  # the keys of distances: Conformers
    Extra("relative_k_proj.weight", "query", wide=True),  # Parakeet
    Extra("relative_position_bias.relative_position_bias_table", "query", axis=1),  # Swin
    Extra("q_norm.weight", "query"),  # of NORMS alone
    Extra("q_norm.bias", "query"),
    Extra("k_norm.weight", "shared"),
    Extra("k_norm.bias", "shared"),
)


@dataclass(frozen=True, eq=False)
class Part:
    """A tensor with a slice a head along one axis.

    Args:
        module: that has it.
        name: of the parameter in the module.
        axis: along which heads lie.
        blocks: what lies there one after the other, each with a slice for every head or group.
        unit: how many numbers a slice has along the axis.
    """

    module: nn.Module
    name: str
    axis: int
    blocks: tuple[Kind, ...]
    unit: int

    @property
    def tensor(self) -> Tensor:
        """The parameter as it is now."""
        return self.module.get_parameter(self.name)

    def size(self, queries: int, groups: int) -> int:
        """How long the axis must be for so many heads."""
        return sum(queries if kind == "query" else groups for kind in self.blocks) * self.unit

    def fits(self, heads: "Heads") -> bool:
        """Whether the axis is as long as it must be."""
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
    """How many heads ask, and how many sets of keys and values they share."""

    queries: int
    groups: int

    @property
    def each(self) -> int:
        """How many heads share one set."""
        return self.queries // self.groups


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A site taken apart: what must be cut for it to have fewer heads."""

    site: Site
    holder: nn.Module  # the module that calls the site
    heads: Heads
    width: int  # of a head
    parts: list[Part]
    output: list[Part]  # those of `parts` that a head's output goes through: where gates fold in


def anatomy(model: nn.Module, site: Site) -> Anatomy:
    """Find every tensor that has a part for each head of a site.

    Raises if the module has something whose share of a head is not known, see `obstacle`: cutting
    the rest would leave it wrong.
    """
    path, holder = holder_of(model, site)
    if isinstance(holder, Seq2Seq):
        return _of_recurrent(site, holder)
    _check_plain(model, path, holder, site)
    inputs, output = input_projections(model, site), output_projection(model, site)
    width = _head_width(holder, output)
    groups = _key_rows(inputs, site, width) // width
    heads = Heads(site.num_heads, groups)
    writes = [Part(output.module, "weight", 0 if output.transposed else 1, ("query",), width)]
    beside = [*_of_ours(model, holder, width), *_of_theirs(holder, heads, width)]
    parts = [*_of_inputs(inputs, width), *writes, *beside]
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


def _of_ours(model: nn.Module, holder: nn.Module, width: int) -> list[Part]:
    """What Headwise's own attention has beside its projections."""
    parts: list[Part] = []
    chosen = getattr(holder, "chosen", None) if isinstance(holder, MultiHeadAttention) else None
    if isinstance(chosen, nn.Module) and hasattr(chosen, "sharpness"):
        parts.append(Part(chosen, "sharpness", 0, ("query",), 1))
    for around in model.modules():
        if isinstance(around, RelativeAttention) and around.heads is holder:
            parts.append(Part(around.distance, "weight", 0, ("query",), width))
            parts.append(Part(around, "content_bias", 0, ("query",), 1))
            parts.append(Part(around, "distance_bias", 0, ("query",), 1))
    return parts


def _of_theirs(holder: nn.Module, heads: Heads, width: int) -> list[Part]:
    """What attention of Hugging Face may have for each head beside its projections."""
    parts: list[Part] = []
    found = dict(holder.named_parameters())
    for extra in EXTRAS:
        path, _, last = extra.name.rpartition(".")
        owner = holder.get_submodule(path) if extra.name in found else holder
        if extra.name in found and (path not in ("q_norm", "k_norm") or named(owner, NORMS)):
            part = Part(owner, last, extra.axis, (extra.kind,), width if extra.wide else 1)
            parts += [part] if part.fits(heads) else []  # else it is an obstacle
    table = getattr(holder, TABLE, None)  # UMT5 has one a layer; T5's is shared
    if isinstance(table, nn.Embedding) and not shares_bias(holder):
        parts.append(Part(table, "weight", 1, ("query",), 1))
    return parts


def _of_recurrent(site: Site, model: Seq2Seq) -> Anatomy:
    names = ("score_weight", "score_bias", "output_weight", "output_bias")
    parts = [Part(model.heads, name, 0, ("query",), 1) for name in names]
    # a gate acts before the output map, so it leaves the output bias alone
    heads = Heads(site.num_heads, site.num_heads)
    return Anatomy(site, model, heads, 1, parts, [parts[2]])


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
    """Refuse layers that are not plain linear ones, with what to do about them."""
    if isinstance(holder, Adapter):  # cutting tells modules with a config of their own alone
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
    """Everything inside must be known to be cut, or to be no head's."""
    cut = [part.tensor for part in found.parts]
    added_after = [getattr(part.module, "bias", None) for part in found.output]
    known = [*cut, *(bias for bias in added_after if isinstance(bias, Tensor))]
    heads, width = found.heads.queries, found.width
    if problem := obstacle(model, found.holder, heads=heads, width=width, known=known):
        raise ValueError(
            f"{type(found.holder).__name__} of {found.site.name} {problem}, so it cannot be pruned."
        )
