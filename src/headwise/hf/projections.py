"""Linear layers around a site: projections to queries, keys and values, and of the output."""

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

Block = Literal["query", "key", "value", "gate"]

# Names of the output projection inside the attention module: Headwise, Llama, BART, GPT-2,
# DistilBERT, ModernBERT, T5, ALBERT and GPT-NeoX, and vision models.
NAMES = ("out", "o_proj", "out_proj", "c_proj", "out_lin", "Wo", "wo", "o", "dense", "proj")
# In Hugging Face models alone: Conformers, Pix2Struct and InternVL.
HF_NAMES = ("linear_out", "output", "projection_layer")
SIBLING = "output.dense"  # under the parent of the attention module: BERT and similar models


@dataclass(frozen=True)
class Layout:
    """Layout of the layers that make queries, keys and values.

    Args:
        layers: {name of a linear layer: its outputs, in order}.
        by_head: whether a layer with several blocks has all of them for the first head, then for
            the second, and so on. Else each block holds all heads.
        code: a regular expression found in the code of classes with this layout. A layer with
            several outputs may order them in any way, so its name alone does not decide.
        when: an attribute of the module and its value, where one class has several layouts.
    """

    layers: dict[str, tuple[Block, ...]]
    by_head: bool = False
    code: str | None = None
    when: tuple[str, object] | None = None

    def is_of(self, holder: nn.Module) -> bool:
        """Return whether an attention module has this layout."""
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
    Layout(  # GPT-2, cross- and self-attention
        {"q_attn": Q, "c_attn": ("key", "value")}, code=r"\.split\(self\.split_size, dim=2\)"
    ),
    Layout({"c_attn": QKV}, code=r"\.split\(self\.split_size, dim=2\)"),
    Layout(  # GPTBigCode, with one set of keys and values, or one per head
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
# Layers of sites that cannot be pruned head by head, and why.
UNSUPPORTED = {
    "experts": "has projections that are mixtures of experts",
    "kv_b_proj": "makes the keys and values of all heads out of one compressed vector (multi-head "
    "latent attention)",
    "kv_proj": "makes one vector that is key and value of all heads",
}


@dataclass(frozen=True, eq=False)
class Projection:
    """Output projection: maps the concatenated heads of a site to the width of the model.

    Args:
        path: of the layer in its model.
        module: the layer.
        heads: number of heads that share its inputs.
        transposed: the weight is (inputs, outputs), as in GPT-2, not (outputs, inputs).
    """

    path: str
    module: nn.Module
    heads: int
    transposed: bool

    @property
    def weight(self) -> Float[Tensor, "M HE"]:
        """Weight as in nn.Linear, (outputs, inputs); writing into this view changes the model."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight.T if self.transposed else weight

    @property
    def bias(self) -> Float[Tensor, " M"] | None:
        """Bias of the layer, if it has one."""
        bias = self.module.bias
        return bias if isinstance(bias, Tensor) else None

    @property
    def by_head(self) -> Float[Tensor, "H M E"]:
        """Weight of each head: out = sum_h by_head[h] out_h + bias."""
        return self.weight.unflatten(1, (self.heads, -1)).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class InputProjection:
    """Input projection: makes queries, keys or values of a site, or several of them.

    Args:
        path: of the layer in its model.
        module: the layer.
        transposed: the weight is (inputs, outputs), as in GPT-2, not (outputs, inputs).
        blocks: its outputs, in order.
        by_head: whether all blocks of a head are adjacent; else all heads of a block are.
    """

    path: str
    module: nn.Module
    transposed: bool
    blocks: tuple[Block, ...]
    by_head: bool = False


def output_projection(model: nn.Module, site: Site | str) -> Projection:
    """Return the linear layer after a site.

    Args:
        model: anything with sites.
        site: one of them, or its name.

    >>> import transformers, headwise as hw
    >>> config = transformers.DistilBertConfig(dim=8, n_heads=2, n_layers=1, vocab_size=9)
    >>> model = hw.adopt(transformers.DistilBertModel(config))
    >>> output_projection(model, "encoder.0.self").by_head.shape
    torch.Size([2, 8, 4])
    """
    found, path, holder = _located(model, site)
    for place, layer in _candidates(model, path, holder):
        transposed = _is_transposed(layer)
        if transposed is not None and _inputs(layer, transposed) % found.num_heads == 0:
            return Projection(place, layer, found.num_heads, transposed)
    raise ValueError(
        f"No output projection of {found.name} is known: {type(holder).__name__} has no linear "
        f"layer named {', '.join(NAMES)}, nor {SIBLING} beside it. Leave this site out."
    )


def input_projections(model: nn.Module, site: Site | str) -> tuple[InputProjection, ...]:
    """Return the linear layers before a site.

    Args:
        model: anything with sites.
        site: one of them, or its name.

    >>> import transformers, headwise as hw
    >>> config = transformers.DistilBertConfig(dim=8, n_heads=2, n_layers=1, vocab_size=9)
    >>> model = hw.adopt(transformers.DistilBertModel(config))
    >>> [layer.path.split(".")[-1] for layer in input_projections(model, "encoder.0.self")]
    ['q_lin', 'k_lin', 'v_lin']
    """
    found, path, holder = _located(model, site)
    layout = next((each for each in LAYOUTS if each.is_of(holder)), None)
    if layout is None:
        raise ValueError(_why_unknown(found.name, holder))
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
    """Return the code of a class and its parents, without their __init__."""
    found: list[str] = []
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, function in vars(base).items():
            if isinstance(function, FunctionType) and name != "__init__":
                with suppress(OSError):  # the source is not at hand
                    found.append(inspect.getsource(inspect.unwrap(function)))
    return "".join(found)


def _why_unknown(name: str, holder: nn.Module) -> str:
    kind = type(holder).__name__
    for layer, why in UNSUPPORTED.items():
        if hasattr(holder, layer):
            return f"{kind} of {name} {why}, which headwise does not prune; leave this site out."
    known = "; ".join(dict.fromkeys(", ".join(layout.layers) for layout in LAYOUTS))
    return (
        f"No projections to queries, keys and values of {name} are known: {kind} has no linear "
        f"layers named {known}, or orders what they make in another way. Leave this site out."
    )


def _located(model: nn.Module, site: Site | str) -> tuple[Site, str, nn.Module]:
    """Return a site, the path of the module that calls it, and the module."""
    name = site if isinstance(site, str) else site.name
    (found,) = find_sites(model, where=lambda each: each.name == name)
    return found, *holder_of(model, found)


def holder_of(model: nn.Module, site: Site) -> tuple[str, nn.Module]:
    """Return the path of the module that calls the site, and the module."""
    return next(
        (path, module)
        for path, module in model.named_modules()
        if module.__dict__.get("site") is site
    )


def _candidates(model: nn.Module, path: str, holder: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return layers with a known name, the likeliest first."""
    names = NAMES + (HF_NAMES if interface_forward(type(holder)) is not None else ())
    inside = [(path, holder, name) for name in names]
    parent = path.rpartition(".")[0]
    outside = [(parent, model.get_submodule(parent), SIBLING)] if path else []
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
    """Return whether a linear layer stores (inputs, outputs); None if it is not linear."""
    if isinstance(layer, nn.Linear):
        return False
    # transformers' Conv1D, as in GPT-2
    return True if type(layer).__name__ == "Conv1D" and hasattr(layer, "nf") else None


def _inputs(layer: nn.Module, transposed: bool) -> int:
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0 if transposed else 1]
