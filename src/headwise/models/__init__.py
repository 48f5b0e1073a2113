"""Models, one file each, born with attention sites; and decoding for those that translate."""

from headwise.models.attention import MultiHeadAttention
from headwise.models.cache import Cache
from headwise.models.decode import Hypothesis, beam, greedy, n_best
from headwise.models.encoder import Encoder, EncoderConfig
from headwise.models.encoder_heads import (
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
)
from headwise.models.transformer import Transformer, TransformerConfig

__all__ = [
    "Cache",
    "Encoder",
    "EncoderConfig",
    "Hypothesis",
    "MaskedLM",
    "MaskedLMWithNextSentence",
    "MultiHeadAttention",
    "NextSentence",
    "ReplacedToken",
    "SequenceClassifier",
    "TokenClassifier",
    "Transformer",
    "TransformerConfig",
    "beam",
    "greedy",
    "n_best",
]
