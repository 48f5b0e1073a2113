"""The linear layers around a site: what its heads read and write, and what pruning a head cuts."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.sites import Site, find_sites

__all__ = [
    "Block",
    "InputProjection",
    "Projection",
    "holder_of",
    "input_projections",
    "output_projection",
]

Block = Literal["query", "key", "value"]

# What the layer is called in the module that attends: by Headwise, Llama, BART, GPT-2, DistilBERT,
# ModernBERT, T5, ALBERT and GPT-NeoX, and vision models.
NAMES = ("out", "o_proj", "out_proj", "c_proj", "out_lin", "Wo", "wo", "o", "dense", "proj")
BESIDE = ("output.dense",)  # beside it, under the same parent: BERT and its kin

# What makes queries, keys and values, and in which order a layer has them side by side: separate
# layers in Headwise, BERT, ALBERT and ViT; BART, OPT and Llama; DistilBERT; T5; then the fused
# ones of GPT-2, looking elsewhere and at itself, and of ModernBERT.
INPUTS: tuple[dict[str, tuple[Block, ...]], ...] = (
    {"query": ("query",), "key": ("key",), "value": ("value",)},
    {"q_proj": ("query",), "k_proj": ("key",), "v_proj": ("value",)},
    {"q_lin": ("query",), "k_lin": ("key",), "v_lin": ("value",)},
    {"q": ("query",), "k": ("key",), "v": ("value",)},
    {"q_attn": ("query",), "c_attn": ("key", "value")},
    {"c_attn": ("query", "key", "value")},
    {"Wqkv": ("query", "key", "value")},
)


@dataclass(frozen=True, eq=False)
class Projection:
    """What maps the heads of a site, side by side, to the width of the model.

    Args:
        path: of the layer in its model, so that one can be put in its place.
        module: the layer.
        heads: how many share its inputs.
        transposed: the weight is (inputs, outputs), as in GPT-2, not (outputs, inputs).
    """

    path: str
    module: nn.Module
    heads: int
    transposed: bool

    @property
    def weight(self) -> Float[Tensor, "M HE"]:
        """As in nn.Linear, (outputs, inputs); a view, so that writing into it changes the model."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight.T if self.transposed else weight

    @property
    def bias(self) -> Float[Tensor, " M"] | None:
        """What is added whatever the heads say, if anything."""
        bias = self.module.bias
        return bias if isinstance(bias, Tensor) else None

    @property
    def by_head(self) -> Float[Tensor, "H M E"]:
        """The part of the weight that each head goes through: out = sum_h by_head[h] out_h + b."""
        return self.weight.unflatten(1, (self.heads, -1)).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class InputProjection:
    """What makes queries, keys or values of a site, or several of them side by side.

    Args:
        path: of the layer in its model.
        module: the layer.
        transposed: the weight is (inputs, outputs), as in GPT-2, not (outputs, inputs).
        blocks: what its outputs are, in order.
    """

    path: str
    module: nn.Module
    transposed: bool
    blocks: tuple[Block, ...]


def output_projection(model: nn.Module, site: Site | str) -> Projection:
    """The linear layer behind a site, in Headwise's models and in adopted ones.

    Args:
        model: anything with sites.
        site: one of them, or its name.

    >>> from headwise.models.attention import MultiHeadAttention
    >>> attention = MultiHeadAttention(8, heads=2, name="encoder.0.self")
    >>> output_projection(attention, "encoder.0.self").by_head.shape
    torch.Size([2, 8, 4])
    """
    name = site if isinstance(site, str) else site.name
    (found,) = find_sites(model, where=lambda each: each.name == name)
    path, holder = holder_of(model, found)
    for place, layer in _candidates(model, path, holder):
        transposed = _is_transposed(layer)
        if transposed is not None and _inputs(layer, transposed) % found.num_heads == 0:
            return Projection(place, layer, found.num_heads, transposed)
    raise ValueError(
        f"No output projection of {name} is known: {type(holder).__name__} has no linear layer "
        f"named {', '.join(NAMES)}, nor {BESIDE[0]} beside it. Leave this site out."
    )


def input_projections(model: nn.Module, site: Site | str) -> tuple[InputProjection, ...]:
    """The linear layers before a site, in Headwise's models and in adopted ones.

    Args:
        model: anything with sites.
        site: one of them, or its name.

    >>> from headwise.models.attention import MultiHeadAttention
    >>> attention = MultiHeadAttention(8, heads=2, name="encoder.0.self")
    >>> [layer.path for layer in input_projections(attention, "encoder.0.self")]
    ['query', 'key', 'value']
    """
    name = site if isinstance(site, str) else site.name
    (found,) = find_sites(model, where=lambda each: each.name == name)
    path, holder = holder_of(model, found)
    for layers in INPUTS:
        held = {layer: _descend(holder, layer) for layer in layers}
        if all(layer is not None and _is_transposed(layer) is not None for layer in held.values()):
            return tuple(
                InputProjection(
                    f"{path}.{layer}" if path else layer,
                    holder.get_submodule(layer),
                    bool(_is_transposed(holder.get_submodule(layer))),
                    blocks,
                )
                for layer, blocks in layers.items()
            )
    known = "; ".join(", ".join(layers) for layers in INPUTS)
    raise ValueError(
        f"No projections to queries, keys and values of {name} are known: "
        f"{type(holder).__name__} has no linear layers named {known}. Leave this site out."
    )


def holder_of(model: nn.Module, site: Site) -> tuple[str, nn.Module]:
    """The module that calls the site, and its path."""
    return next(
        (path, module)
        for path, module in model.named_modules()
        if module.__dict__.get("site") is site
    )


def _candidates(model: nn.Module, path: str, holder: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers of a fitting name, the likeliest first."""
    inside = [(path, holder, name) for name in NAMES]
    parent = path.rpartition(".")[0]
    outside = [(parent, model.get_submodule(parent), name) for name in BESIDE] if path else []
    found: list[tuple[str, nn.Module]] = []
    for start, module, name in inside + outside:
        layer = _descend(module, name)
        if layer is not None:
            found.append((f"{start}.{name}" if start else name, layer))
    return found


def _descend(module: nn.Module, path: str) -> nn.Module | None:
    for name in path.split("."):
        child = getattr(module, name, None)
        if not isinstance(child, nn.Module):
            return None
        module = child
    return module


def _is_transposed(layer: nn.Module) -> bool | None:
    """Whether a linear layer keeps its weight as (inputs, outputs); None if it is not linear."""
    if isinstance(layer, nn.Linear):
        return False
    # transformers' Conv1D, by name: this module works without transformers loaded
    return True if type(layer).__name__ == "Conv1D" and hasattr(layer, "nf") else None


def _inputs(layer: nn.Module, transposed: bool) -> int:
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0 if transposed else 1]
