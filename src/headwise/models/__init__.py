"""Models, one file each, born with attention sites; and decoding for those that translate."""

from headwise.models.attention import Cache, MultiHeadAttention
from headwise.models.decode import Hypothesis, beam, greedy, n_best
from headwise.models.transformer import Transformer, TransformerConfig

__all__ = [
    "Cache",
    "Hypothesis",
    "MultiHeadAttention",
    "Transformer",
    "TransformerConfig",
    "beam",
    "greedy",
    "n_best",
]
