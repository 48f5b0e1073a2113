"""The linear layers around a site: what its heads read and write, and what pruning a head cuts."""

import inspect
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.hf.naming import interface_forward
from headwise.sites import Site, find_sites

__all__ = [
    "Block",
    "InputProjection",
    "Projection",
    "holder_of",
    "input_projections",
    "output_projection",
]

Block = Literal["query", "key", "value", "gate"]

# What the layer is called in the module that attends: by Headwise, Llama, BART, GPT-2, DistilBERT,
# ModernBERT, T5, ALBERT and GPT-NeoX, and vision models.
NAMES = ("out", "o_proj", "out_proj", "c_proj", "out_lin", "Wo", "wo", "o", "dense", "proj")
# In Hugging Face models alone: by Conformers, Pix2Struct and InternVL.
THEIRS = ("linear_out", "output", "projection_layer")
BESIDE = ("output.dense",)  # beside it, under the same parent: BERT and its kin


@dataclass(frozen=True)
class Layout:
    """A way in which attention modules make queries, keys and values.

    Args:
        layers: {name of a linear layer: what its outputs are, in order}.
        by_head: whether a layer of several blocks has all of them for the first head, then for the
            second, and so on. Else each block holds all heads.
        code: a regular expression that is found in the code of classes with this layout. One layer
            that makes several things may order them in any way, so its name alone says nothing.
        when: an attribute of the module and its value, where one class has several layouts.
    """

    layers: dict[str, tuple[Block, ...]]
    by_head: bool = False
    code: str | None = None
    when: tuple[str, object] | None = None

    def is_of(self, holder: nn.Module) -> bool:
        """Whether an attention module has this layout."""
        layers = [_descend(holder, name) for name in self.layers]
        return (
            all(layer is not None and _is_transposed(layer) is not None for layer in layers)
            and (self.code is None or re.search(self.code, code_of(type(holder))) is not None)
            and (self.when is None or getattr(holder, self.when[0], None) == self.when[1])
        )


Blocks = tuple[Block, ...]
Q: Blocks = ("query",)
K: Blocks = ("key",)
V: Blocks = ("value",)
QKV: Blocks = ("query", "key", "value")
LAYOUTS: tuple[Layout, ...] = (
    Layout({"query": Q, "key": K, "value": V}),  # Headwise, BERT, ALBERT, ViT
    Layout(  # Qwen3-Next, Qwen3.5: a query and the gate of its output
        {"q_proj": ("query", "gate"), "k_proj": K, "v_proj": V},
        by_head=True,
        code=r"self\.q_proj\(hidden_states\)\.view\(\*input_shape, -1, self\.head_dim \* 2\), 2,",
    ),
    Layout({"q_proj": Q, "k_proj": K, "v_proj": V}),  # BART, OPT, Llama
    Layout({"q_lin": Q, "k_lin": K, "v_lin": V}),  # DistilBERT
    Layout({"q": Q, "k": K, "v": V}),  # T5
    Layout({"linear_q": Q, "linear_k": K, "linear_v": V}),  # Conformers
    Layout({"Wq": Q, "Wk": K, "Wv": V}),  # CTRL
    Layout(  # GPT-2, looking elsewhere and at itself
        {"q_attn": Q, "c_attn": ("key", "value")}, code=r"\.split\(self\.split_size, dim=2\)"
    ),
    Layout({"c_attn": QKV}, code=r"\.split\(self\.split_size, dim=2\)"),
    Layout(  # GPTBigCode, with one set of keys and values and with a set a head
        {"c_attn": QKV}, code=r"\(self\.embed_dim, self\.kv_dim", when=("multi_query", True)
    ),
    Layout(
        {"c_attn": QKV},
        by_head=True,
        code=r"self\.num_heads, 3 \* self\.head_dim",
        when=("multi_query", False),
    ),
    Layout({"Wqkv": QKV}, code=r"\.view\(\*input_shape, 3, -1, self\.head_dim\)"),  # ModernBERT
    Layout({"Wqkv": QKV}, code=r"qkv_states\.split\(\s*\[\s*self\.hidden_size,"),  # DBRX
    Layout({"qkv_proj": QKV}, code=r"query_states = qkv\[\.\.\., :query_pos\]"),  # Phi-3
    Layout({"qkv": QKV}, code=r"reshape\(\w+, 3, self\.num_heads, -1\)"),  # Qwen-VL's images
    Layout({"qkv": QKV}, code=r"\[self\.q_dim, self\.kv_dim, self\.kv_dim\]"),  # EXAONE's images
    Layout(  # GPT-NeoX, Persimmon
        {"query_key_value": QKV},
        by_head=True,
        code=r"-1, 3 \* self\.head_size\)|self\.num_heads, 3, self\.head_dim\)",
    ),
)
# Layers that make such a site one of another kind: what they do.
OTHERWISE = {
    "experts": "has projections that are mixtures of experts",
    "kv_b_proj": "makes the keys and values of all heads out of one compressed vector (multi-head "
    "latent attention)",
    "kv_proj": "makes one vector that is key and value of all heads",
}


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
        by_head: whether all blocks of a head lie together; else all heads of a block do.
    """

    path: str
    module: nn.Module
    transposed: bool
    blocks: tuple[Block, ...]
    by_head: bool = False


def output_projection(model: nn.Module, site: Site | str) -> Projection:
    """The linear layer behind a site, in Headwise's models and in adopted ones.

    Args:
        model: anything with sites.
        site: one of them, or its name.

    >>> from headwise_papers.models.attention import MultiHeadAttention
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

    >>> from headwise_papers.models.attention import MultiHeadAttention
    >>> attention = MultiHeadAttention(8, heads=2, name="encoder.0.self")
    >>> [layer.path for layer in input_projections(attention, "encoder.0.self")]
    ['query', 'key', 'value']
    """
    name = site if isinstance(site, str) else site.name
    (found,) = find_sites(model, where=lambda each: each.name == name)
    path, holder = holder_of(model, found)
    layout = next((each for each in LAYOUTS if each.is_of(holder)), None)
    if layout is None:
        raise ValueError(_why_unknown(name, holder))
    return tuple(
        InputProjection(
            f"{path}.{layer}" if path else layer,
            holder.get_submodule(layer),
            bool(_is_transposed(holder.get_submodule(layer))),
            blocks,
            layout.by_head and len(blocks) > 1,
        )
        for layer, blocks in layout.layers.items()
    )


@cache
def code_of(kind: type[nn.Module]) -> str:
    """Return the code of a class and of those it is made of, without how they are built."""
    found: list[str] = []
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, function in vars(base).items():
            if isinstance(function, FunctionType) and name != "__init__":
                with suppress(OSError):  # of code without its text nothing is known
                    found.append(inspect.getsource(inspect.unwrap(function)))
    return "".join(found)


def _why_unknown(name: str, holder: nn.Module) -> str:
    kind = type(holder).__name__
    for layer, why in OTHERWISE.items():
        if hasattr(holder, layer):
            return f"{kind} of {name} {why}, which headwise does not prune; leave this site out."
    known = "; ".join(dict.fromkeys(", ".join(layout.layers) for layout in LAYOUTS))
    return (
        f"No projections to queries, keys and values of {name} are known: {kind} has no linear "
        f"layers named {known}, or orders what they make in another way. Leave this site out."
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
    theirs = THEIRS if interface_forward(type(holder)) is not None else ()
    inside = [(path, holder, name) for name in (*NAMES, *theirs)]
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
