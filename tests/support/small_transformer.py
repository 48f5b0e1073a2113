"""A small model of somebody else: an encoder and a decoder with sites, which pruning can rebuild.

It has what `headwise.pruning.prune` asks of models of one's own: `head_parameters`,
`headwise_rebuild` (of the kind "small", registered here) and `example_inputs`.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.kinds import Kind, register
from headwise.ops import softmax_attention
from headwise.sites import Site


@dataclass(frozen=True)
class SmallConfig:
    """The shape of a SmallTransformer."""

    source_vocab: int = 9
    target_vocab: int = 9
    width: int = 8
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 1
    feed_forward: int = 16
    max_length: int = 32
    share_embeddings: Literal["none", "target", "all"] = "target"


class Attention(nn.Module):
    """Attention whose heads have a temperature each."""

    def __init__(self, name: str, config: SmallConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        layers = (nn.Linear(config.width, config.width) for _ in range(4))
        self.query, self.key, self.value, self.out = layers
        self.temperature = nn.Parameter(torch.linspace(0.5, 1.5, config.heads)[:, None, None])
        self.site = Site(name, config.heads, softmax_attention)

    def head_parameters(self) -> dict[str, int]:
        return {"temperature": 0}

    def forward(self, x: Tensor, seen: Tensor, **options: Any) -> Tensor:
        if not self.site.num_heads:
            return self.out(x.new_zeros(*x.shape[:2], 0))
        q, k, v = (
            layer(y).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer, y in ((self.query, x), (self.key, seen), (self.value, seen))
        )
        out_BHQD = self.site(q * self.temperature.to(q), k, v, **options)
        return self.out(out_BHQD.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two layers."""

    def __init__(self, config: SmallConfig) -> None:
        wide = config.feed_forward
        super().__init__(nn.Linear(config.width, wide), nn.ReLU(), nn.Linear(wide, config.width))


class EncoderLayer(nn.Module):
    """Attention to all real positions."""

    def __init__(self, index: int, config: SmallConfig) -> None:
        super().__init__()
        self.attention = Attention(f"encoder.{index}.self", config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = x + self.attention(x, x, lengths=lengths)
        return x + self.feed_forward(x)


class DecoderLayer(nn.Module):
    """Attention to the positions before, and to the encoder."""

    def __init__(self, index: int, config: SmallConfig) -> None:
        super().__init__()
        self.attention = Attention(f"decoder.{index}.self", config)
        self.cross = Attention(f"decoder.{index}.cross", config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        x = x + self.attention(x, x, causal=True)
        x = x + self.cross(x, memory, lengths=lengths)
        return x + self.feed_forward(x)


class Embedding(nn.Module):
    """Words and positions; the latter are not saved."""

    positions: Tensor

    def __init__(self, vocab: int, config: SmallConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, config.width)
        places = torch.arange(config.max_length)[:, None] / torch.arange(1.0, config.width + 1)
        self.register_buffer("positions", places.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.positions[: ids.shape[1]]


class SmallTransformer(nn.Module):
    """Translate ids to scores of the next ids."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_source = Embedding(config.source_vocab, config)
        self.encoder = nn.ModuleList(EncoderLayer(i, config) for i in range(config.encoder_layers))
        self.encoder_norm = nn.LayerNorm(config.width)
        self.embed_target = Embedding(config.target_vocab, config)
        self.decoder = nn.ModuleList(DecoderLayer(i, config) for i in range(config.decoder_layers))
        self.read_out = nn.Linear(config.width, config.target_vocab, bias=False)
        if config.share_embeddings != "none":
            self.read_out.weight = self.embed_target.words.weight
        if config.share_embeddings == "all":
            self.embed_source.words.weight = self.embed_target.words.weight

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        memory = self.embed_source(source)
        for layer in self.encoder:
            memory = layer(memory, source_lengths)
        return self.decode(target, self.encoder_norm(memory), source_lengths)

    def decode(self, target: Tensor, memory: Tensor, source_lengths: Tensor) -> Tensor:
        x = self.embed_target(target)
        for layer in self.decoder:
            x = layer(x, memory, source_lengths)
        return self.read_out(x)

    def headwise_rebuild(self) -> tuple[str, str, dict[str, Any]]:
        return "small", type(self).__name__, asdict(self.config)

    def example_inputs(
        self, batch: int, length: int, target_length: int | None = None, *, padding: int = 0
    ) -> dict[str, Tensor]:
        source = torch.randint(4, self.config.source_vocab, (batch, length))
        target = torch.randint(4, self.config.target_vocab, (batch, target_length or length))
        lengths = torch.full((batch,), length)
        lengths[-1] = max(1, length - padding)
        return {"source": source, "source_lengths": lengths, "target": target}


def _rebuild(class_name: str, settings: dict[str, Any]) -> SmallTransformer:
    assert class_name == "SmallTransformer"
    return SmallTransformer(SmallConfig(**settings))


register("small", lambda: Kind("small", rebuild=_rebuild))
