"""Analysis of heads: importance, relevance, ablation, roles."""

from headwise.analysis.gold import (
    duplicate_gold,
    first_gold,
    neighbour_gold,
    punctuation_gold,
    rare_gold,
    relative_positions,
)
from headwise.analysis.importance import (
    OutputNorms,
    ablate,
    ablate_items,
    eval_with_gradients,
    gradient_importance,
    output_norms,
)
from headwise.analysis.propagation import Propagation, head_relevance, linearised, top_class
from headwise.analysis.roles import POSITIONAL_SHARE, with_roles
from headwise.analysis.scores import Score, bleu

__all__ = [
    "POSITIONAL_SHARE",
    "OutputNorms",
    "Propagation",
    "Score",
    "ablate",
    "ablate_items",
    "bleu",
    "duplicate_gold",
    "eval_with_gradients",
    "first_gold",
    "gradient_importance",
    "head_relevance",
    "linearised",
    "neighbour_gold",
    "output_norms",
    "punctuation_gold",
    "rare_gold",
    "relative_positions",
    "top_class",
    "with_roles",
]
