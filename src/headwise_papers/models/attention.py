"""Multi-head attention with a site, and checks of the shapes of models."""

import math
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from headwise.ops import Attended, Impl, softmax_attention
from headwise.ops.entmax import entmax_attention
from headwise.ops.scores import WIDEST_HEAD
from headwise.sites import Attend, Site, find_sites
from headwise_papers.models.cache import KeysValues
from headwise_papers.ops.named import (
    INSTEAD,
    LEARNED,
    attention_op,
    check_attention,
    is_graph_safe,
    is_positional,
)

Phases = Literal["both", "training"]


class ChosenAttention(nn.Module):
    """An op that depends on the model: on what it has learned, or on whether it is training.

    With "entmax:learned" each head has an alpha of its own, alpha_h = 1.1 + 0.89 sigmoid(a_h). It
    starts at 1.5 and stays where the Triton kernels are accurate. Correia et al. (2019) have
    1 + sigmoid(a), cut off below 1.01; this has a gradient everywhere.

    Args:
        spec: as in `headwise_papers.ops.named`.
        heads: how many.
        phases: "training" attends with softmax in eval mode.
    """

    def __init__(self, spec: str, *, heads: int, phases: Phases = "both") -> None:
        super().__init__()
        self.fixed = None if spec == LEARNED else attention_op(spec, heads=heads)
        self.only_in_training = phases == "training"
        if spec == LEARNED:
            self.sharpness = nn.Parameter(torch.full((heads,), math.log(0.4 / 0.49)))

    @property
    def alpha(self) -> Float[Tensor, " H"]:
        """The learned alpha of each head."""
        return 1.1 + 0.89 * self.sharpness.float().sigmoid()

    def op(self, impl: Impl = "auto") -> Attend:
        """Return the op in use now; `impl` is for a learned alpha."""
        if self.only_in_training and not self.training:
            return softmax_attention
        if self.fixed is not None:
            return self.fixed
        return partial(entmax_attention, alpha=self.alpha, impl=impl)

    def forward(
        self,
        q: Float[Tensor, "B H Q D"],
        k: Float[Tensor, "B G K D"],
        v: Float[Tensor, "B G K E"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        lengths: Int[Tensor, " B"] | None = None,
        scale: float | None = None,
        cap: float | None = None,
        sink: Float[Tensor, " H"] | None = None,
        dropout: float = 0.0,
    ) -> Attended:
        """Attend, with the options all ops share."""
        narrow = max(q.shape[3], v.shape[3]) <= WIDEST_HEAD
        # By name, as "auto" would have to look whether alpha is in the range of the kernels; it is.
        plain = bias is None and cap is None and sink is None
        fused = q.is_cuda and narrow and plain and q.dtype != torch.float64
        return self.op("triton" if fused else "auto")(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            causal=causal,
            lengths=lengths,
            scale=scale,
            cap=cap,
            sink=sink,
            dropout=dropout,
        )


class Unprojected(nn.Module):
    """Identity in the place of a projection, with the output dtype of that projection."""

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        device = x.device.type
        return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class MultiHeadAttention(nn.Module):
    """Attention of several heads; what happens inside a head is its site's business.

    out = concat_h(site(x Wq_h, y Wk_h, y Wv_h)) Wo

    Attention to fixed distances ("gaussian:…") needs neither Wq nor Wk, and has none.

    Args:
        width: of the input and output; a multiple of `heads`.
        heads: how many.
        name: of the site, like "encoder.0.self".
        dropout: of the attention weights, while training.
        attention: the op's name, as in `headwise_papers.ops.named`.
        sparse_in: "both" phases, or "training" alone with softmax in eval mode.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        name: str,
        dropout: float = 0.0,
        attention: str = "softmax",
        sparse_in: Phases = "both",
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}.")
        self.head_width = width // heads
        self.dropout = dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.by_place = is_positional(attention)
        self.spec, self.sparse_in = attention, sparse_in
        if self.by_place:
            self.query = self.key = Unprojected()
        if attention == LEARNED or sparse_in == "training":
            self.chosen = ChosenAttention(attention, heads=heads, phases=sparse_in)
            self.site = Site(name, heads, self.chosen)
        else:
            self.site = Site(name, heads, attention_op(attention, heads=heads))

    def keys_values(self, seen: Float[Tensor, "B K M"]) -> KeysValues:
        """Project the attended states to keys and values."""
        return KeysValues(self._split(self.key(seen)), self._split(self.value(seen)))

    def forward(
        self,
        asking: Float[Tensor, "B Q M"],
        seen: KeysValues,
        *,
        causal: bool = False,
        lengths: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B Q M"]:
        """Let each position of `asking` attend to `seen`. Options as in `headwise.ops`."""
        if not self.site.num_heads:  # all were pruned
            return self.out(asking.new_zeros(*asking.shape[:2], 0))
        out_BHQD = self.site(
            self._split(self.query(asking)),
            seen.k,
            seen.v,
            causal=causal,
            lengths=lengths,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.out(out_BHQD.transpose(1, 2).flatten(2))

    def to_itself(
        self,
        x: Float[Tensor, "B T M"],
        *,
        mask: Bool[Tensor, "B 1 T T"] | None = None,
        lengths: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B T M"]:
        """Let positions attend to each other: `forward(x, keys_values(x))`, by one wide product.

        A GPU multiplies by three matrices side by side faster than one after the other. They stay
        parameters of their own, which is what pruning cuts.
        """
        if not self.site.num_heads:  # all were pruned
            return self.out(x.new_zeros(*x.shape[:2], 0))
        q, k, v = self._side_by_side(x)
        dropout = self.dropout if self.training else 0.0
        out_BHTD = self.site(q, k, v, mask=mask, lengths=lengths, dropout=dropout)
        return self.out(out_BHTD.transpose(1, 2).flatten(2))

    def head_parameters(self) -> dict[str, int]:
        """Return what each head has besides the projections, for `headwise.pruning.prune`."""
        return {"chosen.sharpness": 0} if self.spec == LEARNED else {}

    @property
    def recordable(self) -> bool:
        """Whether one word's step can be replayed on a GPU for the next: distances change."""
        spec = "softmax" if self.sparse_in == "training" and not self.training else self.spec
        dtype = self.out.weight.dtype
        return not self.by_place and is_graph_safe(spec, width=self.head_width, dtype=dtype)

    def _side_by_side(self, x_BTM: Tensor) -> list[Tensor]:
        layers: list[nn.Module] = [self.query, self.key, self.value]
        plain = [layer for layer in layers if type(layer) is nn.Linear and not _hooked(layer)]
        if len(plain) < len(layers):  # nothing is known of what was put in their place, or watches
            return [self._split(layer(x_BTM)) for layer in layers]
        weight_NM = torch.cat([layer.weight for layer in plain])
        bias_N = torch.cat([layer.bias for layer in plain])
        return [self._split(part) for part in linear(x_BTM, weight_NM, bias_N).chunk(3, dim=-1)]

    def _split(self, flat_BTM: Tensor) -> Tensor:
        return flat_BTM.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


def recordable(model: nn.Module) -> bool:
    """Tell whether a CUDA graph may replay a step of decoding.

    It may not where Python code must run: a site is observed, replaced, gated or tapped, a layer
    has hooks, or a torch dispatch mode is active.
    """
    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    return (
        all(part.recordable for part in attentions)
        and not any(site.changes for site in find_sites(model))
        and not any(map(_hooked, model.modules()))
        and not torch_module._has_any_global_hook()  # pyright: ignore[reportPrivateUsage]
        and not is_in_torch_dispatch_mode()
    )


def _hooked(layer: nn.Module) -> bool:
    """Tell whether a layer has hooks, which a replayed step would not call."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, name) for name in hooks)


MOST_LAYERS, MOST_PARAMETERS = 10_000, 10**11


def check_phases(
    spec: str, sparse_in: Phases, *, within: bool = True, instead: str = INSTEAD
) -> None:
    """Refuse attention that a model cannot have, or not in the phases given.

    Args:
        spec: as in `headwise_papers.ops.named`.
        sparse_in: as `MultiHeadAttention` takes it.
        within: whether a text attends to itself and to all of it.
        instead: what to do where it does not, as the end of a sentence.
    """
    check_attention(spec, within=within, instead=instead)
    if sparse_in not in get_args(Phases):
        raise ValueError(f"sparse_in must be 'both' or 'training', got {sparse_in!r}.")
    if is_positional(spec) and sparse_in == "training":
        raise ValueError(f"{spec!r} learns no scores; give it with sparse_in='both'.")


def check_size(*, layers: int, width: int, feed_forward: int, rows: int) -> None:
    """Refuse a model that no machine could hold, before it is built layer by layer.

    Args:
        layers: of the model.
        width: of what they pass on.
        feed_forward: the inner width.
        rows: of the tables of words and positions.
    """
    parameters = layers * (4 * width**2 + 2 * width * feed_forward) + rows * width
    if layers > MOST_LAYERS or parameters > MOST_PARAMETERS:
        raise ValueError(
            f"A model of at most {MOST_LAYERS:,} layers and {MOST_PARAMETERS:,} parameters was "
            f"wanted, got {layers:,} layers and about {parameters:.3g} parameters; make layers, "
            "width, feed_forward, vocabulary or max_length smaller."
        )


def check_dropouts(**shares: float) -> None:
    """Refuse what cannot be a share that is dropped."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {share}.")


def check_vocab(*sizes: int) -> None:
    """Raise if a vocabulary is empty, as it is in the settings of a training before it begins."""
    for size in sizes:
        if size < 1:
            raise ValueError(f"A vocabulary must have at least 1 word, got {size}.")
