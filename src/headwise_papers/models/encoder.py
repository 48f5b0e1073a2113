"""The encoder of BERT (Devlin et al., 2019) and of RoBERTa and ELECTRA.

    x = norm(words + positions + token types)
    x = norm(x + attention(x))
    x = norm(x + W2 gelu(W1 x))          the last two once a layer; dropout on what is added

Under autocast x has the dtype of what the layers add to it, bfloat16, where the usual
implementations keep float32. Heads for pre-training and for tasks are in `encoder_heads`.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headwise_papers.models.attention import (
    MultiHeadAttention,
    Phases,
    check_dropouts,
    check_phases,
    check_size,
    check_vocab,
)
from headwise_papers.models.rebuilding import Rebuildable

__all__ = ["Encoder", "EncoderConfig", "Family", "initialize_normal", "training_flops"]

Family = Literal["roberta", "bert", "electra"]
ROWS = 64  # the table of words has a multiple of so many rows: products with others are slow


@final
@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder.

    >>> EncoderConfig.roberta(52_000, layers=16).heads
    16
    """

    vocab: int = 0  # 0: not known yet, as in the settings of a training
    width: int = 768
    heads: int = 12
    layers: int = 12
    feed_forward: int = 3072  # inner width of the feed-forward layers
    dropout: float = 0.1  # of embeddings and of what each layer adds
    attention_dropout: float = 0.1  # of attention weights
    max_length: int = 512  # positions of the longest text, marks included
    embedding_width: int = 0  # of words and positions, for ELECTRA; 0 is the model's width
    token_types: int = 1  # 2 where the halves of a pair are told apart
    padding_id: int = 1
    norm_eps: float = 1e-5
    init_std: float = 0.02
    attention: str = "softmax"  # an op by name, see `headwise_papers.ops.named`
    sparse_in: Phases = "both"  # "training": softmax in eval mode
    family: Family = "roberta"  # what `to_hugging_face` makes, and the activation of classifiers

    @classmethod
    def roberta(cls, vocab: int = 0, *, layers: int = 12, **changes: Any) -> "EncoderConfig":
        """Return RoBERTa-base; 16 layers have 16 heads, as in Deshpande and Narasimhan (2020)."""
        heads: Any = {"heads": 16 if layers == 16 else 12}
        return cls(vocab, layers=layers, **(heads | changes))

    @classmethod
    def bert(cls, vocab: int = 0, **changes: Any) -> "EncoderConfig":
        """Return the settings of BERT-base."""
        return cls(vocab, **(_OF_BERT | {"family": "bert"} | changes))

    @classmethod
    def electra(cls, vocab: int = 0, **changes: Any) -> "EncoderConfig":
        """Return the settings of ELECTRA's discriminator of the size of BERT-base."""
        return cls(vocab, **(_OF_BERT | {"family": "electra"} | changes))

    @classmethod
    def tiny(cls, vocab: int = 0, **changes: Any) -> "EncoderConfig":
        """Return the settings of a tiny RoBERTa for tests and trials."""
        sizes: Any = {"width": 32, "heads": 4, "layers": 2, "feed_forward": 64, "max_length": 64}
        return cls(vocab, **(sizes | changes))

    def __post_init__(self) -> None:
        for name in ("width", "heads", "layers", "feed_forward", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        check_size(
            layers=self.layers,
            width=self.width,
            feed_forward=self.feed_forward,
            rows=self.vocab + self.max_length,
        )
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got {self.width} and {self.heads}."
            )
        if self.token_types < 1 or self.embedding_width < 0:
            raise ValueError(
                "token_types must be at least 1 and embedding_width at least 0, got "
                f"{self.token_types} and {self.embedding_width}."
            )
        if self.vocab < 0 or not 0 <= self.padding_id < (self.vocab or math.inf):
            raise ValueError(f"padding_id must be below vocab={self.vocab}, got {self.padding_id}.")
        if self.family not in get_args(Family):
            raise ValueError(f"family must be roberta, bert or electra, got {self.family!r}.")
        check_phases(self.attention, self.sparse_in)
        check_dropouts(dropout=self.dropout, attention_dropout=self.attention_dropout)

    def in_family(self, family: Family) -> "EncoderConfig":
        """Return the same sizes with the details of RoBERTa, BERT or ELECTRA."""
        return replace(self, family=family, **({} if family == "roberta" else _OF_BERT))

    @property
    def embedded(self) -> int:
        """The width of embeddings."""
        return self.embedding_width or self.width

    @property
    def rows(self) -> int:
        """How many rows the table of words has; those from `vocab` on are never used."""
        return -(-self.vocab // ROWS) * ROWS


_OF_BERT: Any = {"token_types": 2, "padding_id": 0, "norm_eps": 1e-12}


class Encoder(Rebuildable):
    """A vector for every position of a text. Sites are named `encoder.0.self`.

    Args:
        config: its shape.
        checkpointing: compute the layers again in the backward pass, instead of remembering them:
            a third more time for far less memory.
    """

    def __init__(self, config: EncoderConfig, *, checkpointing: bool = False) -> None:
        super().__init__()
        check_vocab(config.vocab)
        self.config = config
        self.checkpointing = checkpointing
        self.embed = TextEmbedding(config)
        self.layers = nn.ModuleList(PostNormLayer(i, config) for i in range(config.layers))
        self.apply(partial(initialize_normal, std=config.init_std))

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        token_types: Int[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T M"]:
        """Return the states of the last layer.

        Args:
            ids: padded at the end.
            lengths: how many of each row are real. None says that all are, and is fastest.
            token_types: of each position, for pairs; None is 0 everywhere.
            documents: the number of the text that each position belongs to, where several are
                packed into a row: they do not see each other, and each begins at position 0.
        """
        mask_B1TT = None if documents is None else _same_document(documents)
        places_BT = None if documents is None else _places_in_documents(documents)
        x_BTM = self.embed(ids, token_types, places_BT)
        for layer in self.layers:
            if self.checkpointing and torch.is_grad_enabled():
                x_BTM = checkpoint(layer, x_BTM, mask_B1TT, lengths, use_reentrant=False)
            else:
                x_BTM = layer(x_BTM, mask_B1TT, lengths)
        return x_BTM


class TextEmbedding(nn.Module):
    """Words, positions and token types as vectors; ELECTRA's are narrower than its layers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.rows, config.embedded)
        self.positions = nn.Embedding(config.max_length, config.embedded)
        self.types = nn.Embedding(config.token_types, config.embedded)
        self.norm = nn.LayerNorm(config.embedded, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        same = config.embedded == config.width
        self.project = nn.Identity() if same else nn.Linear(config.embedded, config.width)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        token_types: Int[Tensor, "B T"] | None,
        places: Int[Tensor, "B T"] | None,
    ) -> Float[Tensor, "B T M"]:
        length, room = ids.shape[1], self.positions.num_embeddings
        if length > room:
            raise ValueError(
                f"A text of {length} positions does not fit max_length={room}; "
                "shorten it or build the model with a larger max_length."
            )
        # rows in order need no lookup, and no scattered sum in the backward pass
        position = self.positions.weight[:length] if places is None else self.positions(places)
        kind = self.types.weight[0] if token_types is None else self.types(token_types)
        return self.project(self.dropout(self.norm(self.words(ids) + position + kind)))


class PostNormLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, index: int, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            config.width,
            heads=config.heads,
            name=f"encoder.{index}.self",
            dropout=config.attention_dropout,
            attention=config.attention,
            sparse_in=config.sparse_in,
        )
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, config.feed_forward),
            nn.GELU(),
            nn.Linear(config.feed_forward, config.width),
        )
        self.add_attention, self.add_feed_forward = AddAndNorm(config), AddAndNorm(config)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        mask: Bool[Tensor, "B 1 T T"] | None,
        lengths: Int[Tensor, " B"] | None,
    ) -> Float[Tensor, "B T M"]:
        x = self.add_attention(x, self.attention.to_itself(x, mask=mask, lengths=lengths))
        return self.add_feed_forward(x, self.feed_forward(x))


class AddAndNorm(nn.Module):
    """Residual connection norm(x + dropout(added)), in the dtype of what is added."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "B T M"], added: Float[Tensor, "B T M"]
    ) -> Float[Tensor, "B T M"]:
        # autocast gives norms in float32, which would double what is written and read
        return self.norm(x + self.dropout(added)).to(added.dtype)


def initialize_normal(module: nn.Module, *, std: float) -> None:
    """Start the weights of one layer as BERT does; hand it to `model.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _same_document(documents_BT: Tensor) -> Tensor:
    return (documents_BT[:, :, None] == documents_BT[:, None, :])[:, None]


def _places_in_documents(documents_BT: Tensor) -> Tensor:
    """Return the distance of each position from the first one of its document."""
    place_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    first_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    first_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return place_T - torch.where(first_BT, place_T, 0).cummax(dim=1).values


BACKWARD = 3  # a backward pass is two products for each one of the forward pass


def training_flops(
    config: EncoderConfig, *, texts: int, length: int, scored: int, judged: int = 0
) -> float:
    """Count the floating-point operations of one training step's matrix products.

    The count is twice the multiplications, forward and backward, of projections, feed-forward
    layers, scores and sums of values with softmax attention, of the head at the places where words
    are scored, and of ELECTRA's where tokens are judged. Recomputation in a backward pass, and
    everything that is no product of matrices, does not count.

    Args:
        config: of the encoder.
        texts: rows of a batch.
        length: positions of each.
        scored: at how many of these positions all words get a score.
        judged: at how many it is said whether a token was replaced, as `ReplacedToken` does.

    >>> config = EncoderConfig.roberta(50_265)
    >>> round(training_flops(config, texts=32, length=512, scored=2_458) / 1e12, 2)
    9.86
    """
    width, positions = config.width, texts * length
    linear = 4 * width**2 + 2 * width * config.feed_forward
    attention = 2 * length * width  # a score and a value for each pair of positions
    project = width * config.embedded if config.embedded != width else 0
    head = width * config.embedded + config.embedded * config.vocab
    replaced = width**2 + width
    products = positions * (config.layers * (linear + attention) + project)
    products += scored * head + judged * replaced
    return 2.0 * BACKWARD * products
