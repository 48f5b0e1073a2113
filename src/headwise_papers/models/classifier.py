"""A small Transformer that classifies sentences: an encoder, pooling, and one linear layer.

Made of the parts of `headwise_papers.models.transformer`. With post-norm the first layer attends to
the embeddings as they are, with pre-norm to their layer norm, which hides how long they are.
"""

from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise_papers.models.rebuilding import Rebuildable
from headwise_papers.models.transformer import (
    Embedding,
    EncoderLayer,
    Norm,
    TransformerConfig,
    final_norm,
    initialize,
)

__all__ = ["ClassifierConfig", "TransformerClassifier"]


@final
@dataclass(frozen=True)
class ClassifierConfig:
    """The shape of a Transformer classifier."""

    vocabulary: int  # words
    classes: int = 2
    width: int = 64
    heads: int = 4
    layers: int = 2
    feed_forward: int = 128  # inner width of the feed-forward layers
    dropout: float = 0.1  # of embeddings and of what each layer adds
    attention_dropout: float = 0.0  # of attention weights
    norm: Norm = "post"
    max_length: int = 256  # positions of the longest sentence
    pooling: Literal["mean", "first"] = "mean"  # over real positions, or the first one alone

    def __post_init__(self) -> None:
        for name in ("classes", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.pooling not in ("mean", "first"):
            raise ValueError(f"pooling must be 'mean' or 'first', got {self.pooling!r}.")
        self.encoder()

    def encoder(self) -> TransformerConfig:
        """Return the settings of the encoder's layers and embedding; raise on bad shapes."""
        return TransformerConfig.like(
            self,
            source_vocab=self.vocabulary,
            target_vocab=self.classes,
            encoder_layers=self.layers,
            decoder_layers=0,
        )


@final
class TransformerClassifier(Rebuildable):
    """Classifier of sentences. Sites are named `encoder.0.self`, `encoder.1.self`, ...

    >>> model = TransformerClassifier(ClassifierConfig(vocabulary=9, width=8))
    >>> model(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1])).shape
    torch.Size([2, 2])
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        shape = config.encoder()
        self.embed = Embedding(config.vocabulary, shape)
        self.encoder = nn.ModuleList(EncoderLayer(index, shape) for index in range(config.layers))
        self.norm = final_norm(config)
        self.output = nn.Linear(config.width, config.classes)
        self.apply(initialize)

    def headwise_subject(self, tokenizer: object, special: frozenset[str]) -> Any:
        """Return how `headwise.inspect` reads the model; the tokenizer is its Vocabulary."""
        from headwise_papers.recipes.own_subjects import (
            ClassifierSubject,  # lazy: it imports this module
        )

        return ClassifierSubject.of_vocabulary(self, tokenizer, special)

    def forward(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B C"]:
        """Return logits of each class.

        Args:
            tokens: word numbers, padded at the end.
            lengths: how many words of each row are real, at least one.
        """
        return self.output(self._pool(self.encode(tokens, lengths), lengths))

    def encode(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B T M"]:
        """Return a vector for each position; those at padding mean nothing."""
        state_BTM = self.embed(tokens)
        for layer in self.encoder:
            state_BTM = layer(state_BTM, lengths)
        return self.norm(state_BTM)

    def _pool(self, state_BTM: Tensor, lengths_B: Tensor) -> Tensor:
        if self.config.pooling == "first":
            return state_BTM[:, 0]
        place_T = torch.arange(state_BTM.shape[1], device=state_BTM.device)
        real_BT1 = (place_T < lengths_B[:, None])[..., None]
        return state_BTM.masked_fill(~real_BT1, 0).sum(1) / lengths_B[:, None]
