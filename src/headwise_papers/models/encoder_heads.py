"""Output layers of an `Encoder`: masked words, next sentences, replaced tokens, classes.

A model is an encoder and a head; all take the options of `Encoder.forward`. Losses are the
caller's business: `cross_entropy(model(ids, places), ids_before.flatten()[places])`.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from headwise_papers.models.encoder import Encoder, EncoderConfig, initialize_normal
from headwise_papers.models.rebuilding import Rebuildable

__all__ = [
    "MaskedLM",
    "MaskedLMWithNextSentence",
    "NextSentence",
    "ReplacedToken",
    "SequenceClassifier",
    "TokenClassifier",
    "WordsAndNext",
]

Ids = Int[Tensor, "B T"]
Lengths = Int[Tensor, " B"]


class WordsAndNext(NamedTuple):
    """Scores of what was masked, and of whether the second half follows the first."""

    words: Float[Tensor, "N V"]
    follows: Float[Tensor, "B 2"]  # [:, 0] says it does, [:, 1] that it was drawn at random


@dataclass(frozen=True)
class HeadSettings:
    """The settings of an encoder with a head."""

    encoder: EncoderConfig
    classes: int | None = None
    dropout: float | None = None


class _Headed(Rebuildable):
    """An encoder with a head."""

    encoder: Encoder

    def rebuilt_from(self) -> HeadSettings:
        return HeadSettings(self.encoder.config)


class _Classifier(_Headed):
    """An encoder with a layer that scores classes."""

    classes: nn.Linear
    dropout: nn.Dropout

    def rebuilt_from(self) -> HeadSettings:
        return HeadSettings(self.encoder.config, self.classes.out_features, self.dropout.p)


class MaskedLM(_Headed):
    """Masked language model: E norm(gelu(W x + b)) + c, with the embedding E of words."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.words = _WordHead(encoder.config)

    def forward(
        self,
        ids: Ids,
        places: Int[Tensor, " N"],
        *,
        lengths: Lengths | None = None,
        token_types: Ids | None = None,
        documents: Ids | None = None,
    ) -> Float[Tensor, "N V"]:
        """Return scores at some positions alone: all would be most of the work of a small model.

        Args:
            ids: with masks.
            places: numbers of positions in `ids.flatten()`.
            lengths: as those below, as in `Encoder.forward`.
            token_types: of pairs.
            documents: packed in a row.
        """
        states_BTM = self.encoder(
            ids, lengths=lengths, token_types=token_types, documents=documents
        )
        return self.words(states_BTM, places, self.encoder.embed.words.weight)


class NextSentence(_Headed):
    """Classifier of whether the second half of a pair follows the first: W tanh(P x_0)."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = _Pool(encoder.config)
        self.follows = _linear(encoder.config, 2)

    def forward(
        self, ids: Ids, *, lengths: Lengths | None = None, token_types: Ids | None = None
    ) -> Float[Tensor, "B 2"]:
        """Return scores of "it follows" and "it was drawn at random", in this order."""
        states_BTM = self.encoder(ids, lengths=lengths, token_types=token_types)
        return self.follows(self.pool(states_BTM[:, 0]))


class MaskedLMWithNextSentence(_Headed):
    """Encoder with both of BERT's tasks in one pass."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.words = _WordHead(encoder.config)
        self.pool = _Pool(encoder.config)
        self.follows = _linear(encoder.config, 2)

    def forward(
        self,
        ids: Ids,
        places: Int[Tensor, " N"],
        *,
        lengths: Lengths | None = None,
        token_types: Ids | None = None,
    ) -> WordsAndNext:
        """Return the outputs of `MaskedLM` and of `NextSentence`."""
        states_BTM = self.encoder(ids, lengths=lengths, token_types=token_types)
        return WordsAndNext(
            self.words(states_BTM, places, self.encoder.embed.words.weight),
            self.follows(self.pool(states_BTM[:, 0])),
        )


class ReplacedToken(_Headed):
    """ELECTRA's discriminator: was this token put there by a generator? w . gelu(W x + b) + c."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.dense = _linear(encoder.config, encoder.config.width)
        self.replaced = _linear(encoder.config, 1)

    def forward(
        self,
        ids: Ids,
        *,
        lengths: Lengths | None = None,
        token_types: Ids | None = None,
        documents: Ids | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return the log-odds that each position was replaced."""
        states_BTM = self.encoder(
            ids, lengths=lengths, token_types=token_types, documents=documents
        )
        return self.replaced(gelu(self.dense(states_BTM))).squeeze(-1)


class SequenceClassifier(_Classifier):
    """Classes of a text or a pair: W dropout(tanh(P dropout(x_0))), RoBERTa's head.

    BERT leaves the inner dropout out, and ELECTRA has gelu for tanh, as here with an encoder of its
    family. For a pre-trained pooling, load `pool` from a `NextSentence`.

    Args:
        encoder: a fresh or pre-trained one.
        classes: how many; with 1 the score is a number to be regressed.
        dropout: of the head; None is the encoder's.
    """

    def __init__(self, encoder: Encoder, classes: int, *, dropout: float | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(encoder.config.dropout if dropout is None else dropout)
        self.pool = _Pool(encoder.config)
        self.classes = _linear(encoder.config, classes)

    def forward(
        self, ids: Ids, *, lengths: Lengths | None = None, token_types: Ids | None = None
    ) -> Float[Tensor, "B C"]:
        """Return scores of the classes."""
        states_BTM = self.encoder(ids, lengths=lengths, token_types=token_types)
        return self.classes(self.dropout(self.pool(self.dropout(states_BTM[:, 0]))))


class TokenClassifier(_Classifier):
    """Classes of every position: W dropout(x).

    Args:
        encoder: a fresh or pre-trained one.
        classes: how many.
        dropout: of the head; None is the encoder's.
    """

    def __init__(self, encoder: Encoder, classes: int, *, dropout: float | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(encoder.config.dropout if dropout is None else dropout)
        self.classes = _linear(encoder.config, classes)

    def forward(
        self, ids: Ids, *, lengths: Lengths | None = None, token_types: Ids | None = None
    ) -> Float[Tensor, "B T C"]:
        """Return scores of the classes."""
        states_BTM = self.encoder(ids, lengths=lengths, token_types=token_types)
        return self.classes(self.dropout(states_BTM))


class _WordHead(nn.Module):
    """Scores of words; the table of embeddings is handed in, as it is the encoder's."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.vocab = config.vocab
        self.dense = _linear(config, config.embedded)
        self.norm = nn.LayerNorm(config.embedded, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.rows))

    def forward(
        self,
        states: Float[Tensor, "B T M"],
        places: Int[Tensor, " N"],
        table: Float[Tensor, "R E"],
    ) -> Float[Tensor, "N V"]:
        chosen_NM = states.flatten(0, 1).index_select(0, places)
        guess_NE = self.norm(gelu(self.dense(chosen_NM)))
        return linear(guess_NE, table, self.bias)[:, : self.vocab]


class _Pool(nn.Module):
    """Pooling by the first position."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = _linear(config, config.width)
        self.activation = nn.GELU() if config.family == "electra" else nn.Tanh()

    def forward(self, first: Float[Tensor, "B M"]) -> Float[Tensor, "B M"]:
        return self.activation(self.dense(first))


def _linear(config: EncoderConfig, outputs: int) -> nn.Linear:
    return nn.Linear(config.width, outputs).apply(partial(initialize_normal, std=config.init_std))
