"""Models, one file each, born with attention sites; and decoding for those that translate."""

from headwise_papers.models.attention import MultiHeadAttention
from headwise_papers.models.cache import Cache
from headwise_papers.models.decode import Hypothesis, beam, greedy, n_best
from headwise_papers.models.encoder import Encoder, EncoderConfig
from headwise_papers.models.encoder_heads import (
    MaskedLM,
    MaskedLMWithNextSentence,
    NextSentence,
    ReplacedToken,
    SequenceClassifier,
    TokenClassifier,
)
from headwise_papers.models.transformer import Transformer, TransformerConfig

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
