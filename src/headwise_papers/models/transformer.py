"""The Transformer for translation: encoder and decoder (Vaswani et al., 2017), pre- or post-norm.

    pre-norm     x + dropout(layer(norm(x))), and one more norm on top of each stack
    post-norm    norm(x + dropout(layer(x)))

Word embeddings are multiplied by sqrt(width) and sinusoidal positions added. Pre-norm with a final
norm is the setting of Voita et al. (2019), post-norm that of the original paper.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise_papers.data.vocabulary import SPECIALS
from headwise_papers.models.attention import (
    MultiHeadAttention,
    Phases,
    check_dropouts,
    check_phases,
    check_size,
    check_vocab,
    recordable,
)
from headwise_papers.models.cache import Cache, FixedCache
from headwise_papers.models.rebuilding import Rebuildable

Norm = Literal["pre", "post"]
Shared = Literal["all", "target", "none"]  # source, target and output; the last two; nothing
WITHIN = (  # a text attends to itself
    "leave cross_attention as it is, and give it as encoder_attention and decoder_attention alone"
)


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a Transformer, and how its three attentions attend.

    >>> TransformerConfig.small(9000, 9000, encoder_attention="topk:8").width
    256
    """

    source_vocab: int = 0  # 0: not known yet, as in the settings of a training
    target_vocab: int = 0
    width: int = 128
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 2
    feed_forward: int = 256  # inner width of the feed-forward layers
    dropout: float = 0.1  # of embeddings and of what each layer adds
    feed_forward_dropout: float = 0.0  # inside the feed-forward layers
    attention_dropout: float = 0.0  # of attention weights
    norm: Norm = "pre"
    max_length: int = 256  # positions of the longest sentence, marks included
    # None is "target", or "all" in a training with one vocabulary
    share_embeddings: Shared | None = None
    encoder_attention: str = "softmax"  # as in headwise_papers.ops.named; of the encoder to itself
    decoder_attention: str = "softmax"  # of the decoder to itself
    cross_attention: str = "softmax"  # of the decoder to the encoder
    sparse_in: Phases = "both"  # "training": softmax in eval mode, whatever is said above

    @classmethod
    def small(
        cls, source_vocab: int = 0, target_vocab: int = 0, **changes: Any
    ) -> "TransformerConfig":
        """Return a size for tens of thousands of sentences, as in Multi30k."""
        sizes: Any = {"width": 256, "heads": 4, "feed_forward": 1024, "dropout": 0.3}
        layers = {"encoder_layers": 3, "decoder_layers": 3}
        return cls(source_vocab, target_vocab, **(sizes | layers | changes))

    @classmethod
    def iwslt(
        cls, source_vocab: int = 0, target_vocab: int = 0, **changes: Any
    ) -> "TransformerConfig":
        """Return a size for 100,000s of sentences: fairseq's `transformer_iwslt_de_en`."""
        sizes: Any = {"width": 512, "heads": 4, "feed_forward": 1024, "dropout": 0.3}
        layers = {"encoder_layers": 6, "decoder_layers": 6}
        return cls(source_vocab, target_vocab, **(sizes | layers | changes))

    @classmethod
    def base(
        cls, source_vocab: int = 0, target_vocab: int = 0, **changes: Any
    ) -> "TransformerConfig":
        """Return a size for millions of sentences: Transformer-base of Vaswani et al. (2017)."""
        sizes: Any = {"width": 512, "heads": 8, "feed_forward": 2048, "dropout": 0.1}
        layers = {"encoder_layers": 6, "decoder_layers": 6}
        return cls(source_vocab, target_vocab, **(sizes | layers | changes))

    @classmethod
    def like(cls, config: Any, **changes: Any) -> "TransformerConfig":
        """Make the settings of layers from another model's, which have fields of these names."""
        shared = {field.name for field in fields(cls)} & {field.name for field in fields(config)}
        return cls(**({name: getattr(config, name) for name in shared} | changes))

    def __post_init__(self) -> None:
        if self.share_embeddings not in (None, *get_args(Shared)):
            raise ValueError(
                f"share_embeddings must be one of {', '.join(get_args(Shared))}, or None, got "
                f"{self.share_embeddings!r}."
            )
        if min(self.source_vocab, self.target_vocab) < 0:
            raise ValueError("source_vocab and target_vocab must not be negative.")
        for name in ("width", "heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        check_size(
            layers=self.encoder_layers + self.decoder_layers,
            width=self.width,
            feed_forward=self.feed_forward,
            rows=self.source_vocab + self.target_vocab + self.max_length,
        )
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                f"width must be even and a multiple of heads, got {self.width} and {self.heads}."
            )
        if self.share_embeddings == "all" and self.source_vocab != self.target_vocab:
            raise ValueError(
                "share_embeddings='all' needs one vocabulary for both languages, got "
                f"source_vocab={self.source_vocab} and target_vocab={self.target_vocab}."
            )
        for which in ("encoder", "decoder", "cross"):
            spec: str = getattr(self, f"{which}_attention")
            check_phases(spec, self.sparse_in, within=which != "cross", instead=WITHIN)
        check_dropouts(
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            feed_forward_dropout=self.feed_forward_dropout,
        )


class EncoderDecoder(Rebuildable):
    """A model that reads a source and generates words, decoded by `greedy` and `beam`.

    Sites are named `encoder.0.self`, `decoder.0.self`, `decoder.0.cross`.

    Args:
        shape: of its layers.
        embed_source: from sources to vectors (B, K, M).
    """

    def __init__(self, shape: TransformerConfig, embed_source: nn.Module) -> None:
        super().__init__()
        self.embed_source = embed_source
        self.encoder = nn.ModuleList(EncoderLayer(i, shape) for i in range(shape.encoder_layers))
        self.encoder_norm = final_norm(shape)
        self.embed_target = Embedding(shape.target_vocab, shape)
        self.decoder = nn.ModuleList(DecoderLayer(i, shape) for i in range(shape.decoder_layers))
        self.decoder_norm = final_norm(shape)
        self.read_out = nn.Linear(shape.width, shape.target_vocab, bias=False)
        self.apply(initialize)
        if shape.share_embeddings != "none":
            self.read_out.weight = self.embed_target.words.weight

    @property
    def fixed_room(self) -> int:
        """Positions for which a step of `decode` can be replayed; see `models.Translator`."""
        own = type(self).decode is EncoderDecoder.decode and "decode" not in vars(self)
        return len(self.embed_target.positions) if own and recordable(self) else 0

    def encode(self, source: Tensor, source_lengths: Int[Tensor, " B"]) -> Float[Tensor, "B K M"]:
        """Return a vector for each source position, for the decoder to attend to.

        Args:
            source: as `embed_source` takes it; padded at the end.
            source_lengths: how many positions of each row are real.
        """
        memory_BKM = self.embed_source(source)
        for layer in self.encoder:
            memory_BKM = layer(memory_BKM, source_lengths)
        return self.encoder_norm(memory_BKM)

    def decode(
        self,
        target: Int[Tensor, "B T"],
        memory: Float[Tensor, "B K M"],
        source_lengths: Int[Tensor, " B"],
        *,
        cache: Cache | FixedCache | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return scores of the word that follows each target position, before the softmax.

        Args:
            target: ids from the beginning mark on; with a cache only those it has not seen.
            memory: from `encode`.
            source_lengths: as given to `encode`.
            cache: remembers keys and values from call to call; cross-attention's are computed once.
        """
        state_BTM = self.embed_target(target, start=cache.start if cache else 0)
        for layer in self.decoder:
            state_BTM = layer(state_BTM, memory, source_lengths, cache)
        if cache is not None:
            cache.advance(target.shape[1])
        return self.read_out(self.decoder_norm(state_BTM))

    def forward(
        self, source: Tensor, source_lengths: Int[Tensor, " B"], target: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Score each next word given the right words before it (teacher forcing)."""
        return self.decode(target, self.encode(source, source_lengths), source_lengths)


class Transformer(EncoderDecoder):
    """Translator: `forward` while training, `encode` once and `decode` step by step afterwards.

    A source is ids, (B, K). Padding goes at the end of a row. Target padding needs no mask: no real
    position attends to a later one.
    """

    def __init__(self, config: TransformerConfig) -> None:
        check_vocab(config.source_vocab, config.target_vocab)
        super().__init__(config, Embedding(config.source_vocab, config))
        self.config = config
        self.embed_source: Embedding
        if config.share_embeddings == "all":
            self.embed_source.words.weight = self.embed_target.words.weight

    def headwise_subject(self, tokenizer: object, special: frozenset[str]) -> Any:
        """Return the subject of `headwise.inspect`; the tokenizer is the pair of codecs."""
        from headwise_papers.recipes.own_subjects import (
            TranslatorSubject,  # lazy: it imports this module
        )

        return TranslatorSubject.of_codecs(self, tokenizer, special)

    def example_inputs(
        self, batch: int, length: int, target_length: int | None = None, *, padding: int = 0
    ) -> dict[str, Tensor]:
        """Return random inputs of `forward`, with which `headwise.pruning` times and exports.

        Args:
            batch: rows.
            length: ids of a source.
            target_length: ids of a target; None is as many.
            padding: how many ids of the last source are padding.
        """
        device, random = self.read_out.weight.device, torch.Generator().manual_seed(0)
        sizes = (self.config.source_vocab, length), (self.config.target_vocab, target_length)
        source, target = (
            torch.randint(len(SPECIALS), vocab, (batch, width or length), generator=random)
            for vocab, width in sizes
        )
        lengths = torch.full((batch,), length)
        lengths[-1] = max(1, length - padding)
        inputs = {"source": source, "source_lengths": lengths, "target": target}
        return {name: tensor.to(device) for name, tensor in inputs.items()}


class Embedding(nn.Module):
    """Words and their positions as vectors: sqrt(width) * word + position, then dropout."""

    positions: Tensor

    def __init__(self, vocab: int, config: TransformerConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, config.width)
        self.dropout = nn.Dropout(config.dropout)
        table_TM = sinusoids(config.max_length, config.width)
        self.register_buffer("positions", table_TM, persistent=False)

    def forward(
        self, ids: Int[Tensor, "B T"], *, start: int | Int[Tensor, " 1"] = 0
    ) -> Float[Tensor, "B T M"]:
        scale = math.sqrt(self.words.embedding_dim)
        if isinstance(start, Tensor):  # of one position, which the host does not know
            return self.dropout(self.words(ids) * scale + self.positions.index_select(0, start))
        end, room = start + ids.shape[1], len(self.positions)
        if end > room:
            raise ValueError(
                f"A sentence of {end} positions does not fit max_length={room}; "
                "shorten it or build the model with a larger max_length."
            )
        return self.dropout(self.words(ids) * scale + self.positions[start:end])


class Residual(nn.Module):
    """Residual connection with the norm before or after."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "B T M"], layer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "B T M"]:
        if self.norm_first:
            return x + self.dropout(layer(self.norm(x)))
        return self.norm(x + self.dropout(layer(x)))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, index: int, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = _attention(f"encoder.{index}.self", config, config.encoder_attention)
        self.feed_forward = feed_forward(config)
        self.add_attention, self.add_feed_forward = Residual(config), Residual(config)

    def forward(
        self, x: Float[Tensor, "B K M"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B K M"]:
        x = self.add_attention(x, partial(self._attend, lengths=lengths))
        return self.add_feed_forward(x, self.feed_forward)

    def _attend(self, x_BKM: Tensor, *, lengths: Tensor) -> Tensor:
        return self.attention(x_BKM, self.attention.keys_values(x_BKM), lengths=lengths)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, and feed-forward."""

    def __init__(self, index: int, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = _attention(f"decoder.{index}.self", config, config.decoder_attention)
        self.cross = _attention(f"decoder.{index}.cross", config, config.cross_attention)
        self.feed_forward = feed_forward(config)
        self.add_attention, self.add_cross = Residual(config), Residual(config)
        self.add_feed_forward = Residual(config)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        memory: Float[Tensor, "B K M"],
        lengths: Int[Tensor, " B"],
        cache: Cache | FixedCache | None = None,
    ) -> Float[Tensor, "B T M"]:
        x = self.add_attention(x, partial(self._attend, cache=cache))
        look = partial(self._look_at_source, memory_BKM=memory, lengths=lengths, cache=cache)
        return self.add_feed_forward(self.add_cross(x, look), self.feed_forward)

    def _attend(self, x_BTM: Tensor, *, cache: Cache | FixedCache | None) -> Tensor:
        new, name = self.attention.keys_values(x_BTM), self.attention.site.name
        seen = new if cache is None else cache.extend(name, new)
        lengths = None if cache is None else cache.lengths
        # the newest word alone may look at everything, but must know that it is the last
        causal = x_BTM.shape[1] > 1 or self.attention.by_place
        return self.attention(x_BTM, seen, causal=causal, lengths=lengths)

    def _look_at_source(
        self,
        x_BTM: Tensor,
        *,
        memory_BKM: Tensor,
        lengths: Tensor,
        cache: Cache | FixedCache | None,
    ) -> Tensor:
        if cache is None:
            return self.cross(x_BTM, self.cross.keys_values(memory_BKM), lengths=lengths)
        # hypotheses of one sentence have the same source, so they ask it together
        beams, name = cache.beams, self.cross.site.name
        seen = cache.once(name, lambda: self.cross.keys_values(memory_BKM[::beams]))
        asking_NQM = x_BTM.reshape(len(x_BTM) // beams, -1, x_BTM.shape[2])
        return self.cross(asking_NQM, seen, lengths=lengths[::beams]).view_as(x_BTM)


def sinusoids(length: int, width: int) -> Float[Tensor, "T M"]:
    """Encode position p as sin(p / 10000^(2i/width)) for each i < width/2, then the cosines.

    >>> sinusoids(2, 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    rate_M = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angle_TM = torch.arange(length)[:, None] * rate_M
    return torch.cat([angle_TM.sin(), angle_TM.cos()], dim=-1)


def _attention(name: str, config: TransformerConfig, spec: str) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.width,
        heads=config.heads,
        name=name,
        dropout=config.attention_dropout,
        attention=spec,
        sparse_in=config.sparse_in,
    )


def feed_forward(config: TransformerConfig) -> nn.Sequential:
    """Make the two layers that follow attention."""
    return nn.Sequential(
        nn.Linear(config.width, config.feed_forward),
        nn.ReLU(),
        nn.Dropout(config.feed_forward_dropout),
        nn.Linear(config.feed_forward, config.width),
    )


def final_norm(config: Any) -> nn.Module:
    """Make the norm after the last layer, which only models with the norm first have."""
    return nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()


def initialize(module: nn.Module) -> None:
    """Start the weights of one layer; hand it to `model.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        # times sqrt(width) this is of unit variance, and tied it gives logits of unit variance
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
