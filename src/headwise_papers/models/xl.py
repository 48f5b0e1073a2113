"""Transformer-XL: a language model that remembers the segments before (Dai et al., 2019).

    score_ij = ((q_i + u) . k_j + (q_i + v) . W r_{i-j}) / sqrt(head width)

Keys are those of the segment and of what each layer saw before it, the memory, through which no
gradient flows. r_d is the sinusoid of the distance d; u and v are learned, a vector each for every
head. As only distances count, a text may be cut anywhere.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise_papers.models.attention import MultiHeadAttention, Phases, check_phases, check_size
from headwise_papers.models.rebuilding import Rebuildable
from headwise_papers.models.transformer import (
    Norm,
    Residual,
    TransformerConfig,
    feed_forward,
    final_norm,
    initialize,
)

__all__ = [
    "Distances",
    "RelativeAttention",
    "TextLoss",
    "TransformerXL",
    "XLConfig",
    "relative_shift",
    "segment_loss",
    "sinusoids_of_distances",
]

Distances = Literal["bias", "folded"]


class RelativeAttention(nn.Module):
    """Causal multi-head attention whose scores depend on content and distance.

    score_ij = ((q_i + u) . k_j + (q_i + v) . W r_{i-j}) / sqrt(head width)

    With "bias" the op is given the scores by distance, a number for each query and key. "folded"
    makes use of sin(a - b) = sin a cos b - cos a sin b, likewise cos: the same scores are a
    product of wider queries and keys, and need no memory of their own. Kernels take those whose
    head width and `distance_width` are together no more than 128; none takes a bias.

    Args, beside those of `MultiHeadAttention`:
        distance_width: of the sinusoids r.
        distances: how they reach the op.
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
        distance_width: int,
        distances: Distances = "bias",
    ) -> None:
        super().__init__()
        self.folded = distances == "folded"
        self.heads = MultiHeadAttention(
            width,
            heads=heads,
            name=name,
            dropout=dropout,
            attention=attention,
            sparse_in=sparse_in,
        )
        self.distance = nn.Linear(distance_width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))  # u
        self.distance_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))  # v

    def head_parameters(self) -> dict[str, int]:
        """Return what each head has besides the projections, for `headwise.pruning.prune`."""
        return {"distance.weight": 0, "content_bias": 0, "distance_bias": 0}

    def forward(
        self,
        asking: Float[Tensor, "B Q M"],
        seen: Float[Tensor, "B K M"],
        distance: Float[Tensor, "C P"],
    ) -> Float[Tensor, "B Q M"]:
        """Let each position attend to itself and to earlier positions.

        Args:
            asking: the segment.
            seen: the memory, then the segment.
            distance: sinusoids of the distances K, K - 1, ..., 0.
        """
        if not self.heads.site.num_heads:  # all were pruned
            return self.heads.out(asking.new_zeros(*asking.shape[:2], 0))
        width = self.heads.head_width
        q_BHQD = self.heads.query(asking).unflatten(-1, (-1, width)).transpose(1, 2)
        k_BHKD, v_BHKD = self.heads.keys_values(seen)
        asks_BHQD = q_BHQD + self.distance_bias.to(q_BHQD)
        q_BHQD, bias_BHQK = q_BHQD + self.content_bias.to(q_BHQD), None
        if self.folded:
            q_BHQD = torch.cat([q_BHQD, self._turned(asks_BHQD, distance)], dim=-1)
            key_KP = distance[:-1].to(k_BHKD)
            k_BHKD = torch.cat([k_BHKD, key_KP.expand(*k_BHKD.shape[:2], -1, -1)], dim=-1)
        else:
            bias_BHQK = self._by_key(asks_BHQD / math.sqrt(width), distance)
        out_BHQD = self.heads.site(
            q_BHQD,
            k_BHKD,
            v_BHKD,
            bias=bias_BHQK,
            causal=True,
            scale=1 / math.sqrt(width),
            dropout=self.heads.dropout if self.training else 0.0,
        )
        return self.heads.out(out_BHQD.transpose(1, 2).flatten(2))

    def _by_key(self, asks_BHQD: Tensor, distance_CP: Tensor) -> Tensor:
        r_CHD = self.distance(distance_CP).unflatten(-1, (-1, asks_BHQD.shape[-1]))
        return relative_shift(torch.einsum("bhqd,chd->bhqc", asks_BHQD, r_CHD))

    def _turned(self, asks_BHQD: Tensor, distance_CP: Tensor) -> Tensor:
        """Shift scores by distance from the query to scores by distance from the end.

        Those are the same for all queries, so they can stand beside the keys.
        """
        weight_HDP = self.distance.weight.unflatten(0, (-1, asks_BHQD.shape[-1]))
        sine, cosine = torch.einsum("bhqd,hdp->bhqp", asks_BHQD, weight_HDP).chunk(2, dim=-1)
        own_QP = distance_CP[-1 - asks_BHQD.shape[2] : -1].to(sine)
        own_sine, own_cosine = own_QP.chunk(2, dim=-1)
        turned = sine * own_cosine + cosine * own_sine, cosine * own_cosine - sine * own_sine
        return torch.cat(turned, dim=-1)


def relative_shift(by_distance: Float[Tensor, "*B Q C"]) -> Float[Tensor, "*B Q K"]:
    """Turn scores by distance into scores by key, as a view: nothing is copied or gathered.

    out[i, j] = score of query i for the distance (K - Q + i) - j, as queries are the last Q of
    K = C - 1 positions. Where a key is later than its query, out holds something meaningless.

    Args:
        by_distance: column c is for the distance K - c, from K, which no query has, to 0.

    >>> relative_shift(torch.tensor([[3, 2, 1, 0], [3, 2, 1, 0]]).float())
    tensor([[1., 0., 3.],
            [2., 1., 0.]])
    """
    # Row i starts Q - i columns in: one less a row, and a row of C numbers is one more than K.
    n_queries, n_columns = by_distance.shape[-2:]
    return by_distance.flatten(-2)[..., n_queries:].unflatten(-1, (n_queries, n_columns - 1))


def sinusoids_of_distances(furthest: int, width: int, like: Tensor) -> Float[Tensor, "C P"]:
    """Return sinusoids of the distances `furthest` to 0, with dtype and device of `like`."""
    rate_P = torch.exp(torch.arange(0, width, 2, device=like.device) * (-math.log(10_000) / width))
    angle_CP = torch.arange(furthest, -1, -1, device=like.device)[:, None] * rate_P
    return torch.cat([angle_CP.sin(), angle_CP.cos()], dim=-1).to(like.dtype)


@final
@dataclass(frozen=True)
class XLConfig:
    """The shape of a Transformer-XL."""

    vocab: int = 256  # bytes
    width: int = 128
    heads: int = 4
    layers: int = 4
    feed_forward: int = 512  # inner width of the feed-forward layers
    memory: int = 128  # positions before a segment that it can see
    dropout: float = 0.1  # of embeddings and of what each layer adds
    feed_forward_dropout: float = 0.0  # inside the feed-forward layers
    attention_dropout: float = 0.0  # of attention weights
    norm: Norm = "post"
    attention: str = "softmax"  # an op by name, see `headwise_papers.ops.named`
    sparse_in: Phases = "both"  # "training": softmax in eval mode
    share_embeddings: bool = True  # the output projection is the embedding
    distance_width: int = 0  # of the sinusoids of distances; 0 is the model's width
    distances: Distances = "bias"  # how they reach the op, see `RelativeAttention`

    def __post_init__(self) -> None:
        for name in ("vocab", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        check_size(
            layers=self.layers,
            width=self.width,
            feed_forward=self.feed_forward,
            rows=self.vocab + self.memory,
        )
        if self.memory < 0:
            raise ValueError(f"memory must not be negative, got {self.memory}.")
        if self.distances not in get_args(Distances):
            raise ValueError(f"distances must be 'bias' or 'folded', got {self.distances!r}.")
        if self.distance_width < 0 or self.distance_width % 2:
            raise ValueError(f"distance_width must be even, got {self.distance_width}.")
        # its op is given scores of distances
        check_phases(self.attention, self.sparse_in, within=False)
        self.stack()

    @classmethod
    def small(cls, vocab: int = 256, **changes: Any) -> "XLConfig":
        """Return a size for some megabytes of text: 6 layers, and memory of 256."""
        shape: dict[str, Any] = {"width": 256, "layers": 6, "feed_forward": 1024, "memory": 256}
        return cls(vocab, **{**shape, **changes})

    @classmethod
    def enwik8(cls, vocab: int = 256, **changes: Any) -> "XLConfig":
        """Return the paper's base size: 12 layers, 41M parameters, segments and memory of 512."""
        shape: dict[str, Any] = {"width": 512, "heads": 8, "layers": 12, "feed_forward": 2048}
        shape.update(feed_forward_dropout=0.1, memory=512)
        return cls(vocab, **{**shape, **changes})

    def stack(self) -> TransformerConfig:
        """Return the settings of the Transformer layers; raise on bad shapes."""
        return TransformerConfig.like(
            self,
            source_vocab=1,
            target_vocab=self.vocab,
            encoder_layers=0,
            decoder_layers=self.layers,
            share_embeddings="target" if self.share_embeddings else "none",
        )


@final
class TransformerXL(Rebuildable):
    """Language model that reads a text by segments. Sites are named `decoder.0.self`.

    >>> model = TransformerXL(XLConfig(vocab=9, width=8, heads=2, layers=3, memory=4))
    >>> memory = model.initial_memory(batch=2)
    >>> logits, memory = model(torch.tensor([[1, 2, 3], [4, 5, 6]]), memory)
    >>> logits.shape, memory.shape
    (torch.Size([2, 3, 9]), torch.Size([3, 2, 3, 8]))
    """

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(XLLayer(index, config) for index in range(config.layers))
        self.norm = final_norm(config)
        self.read_out = nn.Linear(config.width, config.vocab, bias=False)
        self.apply(initialize)
        if config.share_embeddings:
            self.read_out.weight = self.embed.weight

    def initial_memory(
        self, batch: int, device: torch.device | str | None = None
    ) -> Float[Tensor, "L B 0 M"]:
        """Return an empty memory.

        Args:
            batch: how many texts are read side by side.
            device: the model's unless given.
        """
        weight = self.embed.weight
        return weight.new_empty(self.config.layers, batch, 0, self.config.width, device=device)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        memory: Float[Tensor, "L B N M"] | None = None,
        *,
        remember: int | None = None,
    ) -> tuple[Float[Tensor, "B T V"], Float[Tensor, "L B K M"]]:
        """Return scores of the symbol after each position, and the memory for the next segment.

        Args:
            ids: one segment of each text.
            memory: from the segment before, or `initial_memory`, which is meant by none.
            remember: positions to hand on; the config's `memory` unless given. In evaluation
                more than in training may help.
        """
        memory = self.initial_memory(len(ids), ids.device) if memory is None else memory
        self._check(ids, memory)
        state_BTM = self.dropout(self.embed(ids) * math.sqrt(self.config.width))
        furthest = memory.shape[2] + ids.shape[1]
        width = self.config.distance_width or self.config.width
        distance_CP = sinusoids_of_distances(furthest, width, state_BTM)
        seen: list[Tensor] = []
        for layer, memory_BNM in zip(self.layers, memory, strict=True):
            seen.append(torch.cat([memory_BNM, state_BTM.detach()], dim=1))
            state_BTM = layer(state_BTM, memory_BNM.detach(), distance_CP)
        kept = self.config.memory if remember is None else remember
        first = max(0, furthest - kept)
        new_LBKM = torch.stack([seen_BKM[:, first:] for seen_BKM in seen]).detach()
        return self.read_out(self.norm(state_BTM)), new_LBKM

    def _check(self, ids: Tensor, memory: Tensor) -> None:
        wanted = (self.config.layers, len(ids), self.config.width)
        if (*memory.shape[:2], memory.shape[3]) != wanted:
            raise ValueError(
                f"A memory of {wanted[0]} layers, {wanted[1]} texts and width {wanted[2]} was "
                f"wanted, got shape {tuple(memory.shape)}; start with initial_memory."
            )


class XLLayer(nn.Module):
    """Self-attention by distance, and feed-forward."""

    def __init__(self, index: int, config: XLConfig) -> None:
        super().__init__()
        shape = config.stack()
        self.attention = RelativeAttention(
            config.width,
            heads=config.heads,
            name=f"decoder.{index}.self",
            dropout=config.attention_dropout,
            attention=config.attention,
            sparse_in=config.sparse_in,
            distance_width=config.distance_width or config.width,
            distances=config.distances,
        )
        self.feed_forward = feed_forward(shape)
        self.add_attention, self.add_feed_forward = Residual(shape), Residual(shape)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        memory: Float[Tensor, "B N M"],
        distance: Float[Tensor, "C P"],
    ) -> Float[Tensor, "B T M"]:
        residual = self.add_attention
        known_BNM = residual.norm(memory) if residual.norm_first else memory

        def attend(x_BTM: Tensor) -> Tensor:
            return self.attention(x_BTM, torch.cat([known_BNM, x_BTM], dim=1), distance)

        return self.add_feed_forward(residual(x, attend), self.feed_forward)


@dataclass(frozen=True)
class TextLoss:
    """Cross-entropy of a text."""

    nats: float  # the sum of -ln p of the symbols
    symbols: int  # how many were predicted

    @property
    def mean(self) -> float:
        """Cross-entropy per symbol, in nats."""
        return self.nats / self.symbols

    @property
    def bits(self) -> float:
        """Bits a symbol: bits per character where symbols are characters."""
        return self.mean / math.log(2)


@torch.no_grad()
def segment_loss(
    model: TransformerXL,
    ids: Int[Tensor, "B T"],
    *,
    segment: int,
    remember: int | None = None,
) -> TextLoss:
    """Read texts segment by segment with memory; every symbol but the first is predicted.

    Args:
        model: in eval mode.
        ids: one text, or several of one length side by side; they may lie on another device.
        segment: symbols read at a time.
        remember: positions a segment sees before itself; the config's `memory` unless given.

    >>> model = TransformerXL(XLConfig(vocab=256, width=8, heads=2)).eval()
    >>> text = torch.tensor([list(b"To be, or not to be")])
    >>> segment_loss(model, text, segment=8).symbols
    18
    """
    if model.training:
        raise ValueError("Evaluation needs a model without dropout; call model.eval() first.")
    if segment < 1 or ids.shape[1] < 2:
        raise ValueError(
            "Texts of at least 2 symbols and segments of at least 1 were wanted, got "
            f"{ids.shape[1]} and {segment}."
        )
    device = model.embed.weight.device
    memory = model.initial_memory(len(ids), device)
    nats = torch.zeros((), dtype=torch.float64, device=device)
    for start in range(0, ids.shape[1] - 1, segment):
        piece_BT = ids[:, start : start + segment + 1].to(device)
        logits_BTV, memory = model(piece_BT[:, :-1], memory, remember=remember)
        nats += _nats(logits_BTV, piece_BT[:, 1:])
    return TextLoss(nats.item(), len(ids) * (ids.shape[1] - 1))


def _nats(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    return cross_entropy(logits_BTV.flatten(0, 1).float(), ids_BT.flatten(), reduction="sum")
