"""Analysis of heads: importance, relevance, ablation, roles."""

from headwise.analysis.ablation import ablate, ablate_items
from headwise.analysis.gradients import eval_with_gradients
from headwise.analysis.importance import OutputNorms, gradient_importance, output_norms
from headwise.analysis.propagation import Propagation, head_relevance, linearised, top_class
from headwise.analysis.roles import with_roles

__all__ = [
    "OutputNorms",
    "Propagation",
    "ablate",
    "ablate_items",
    "eval_with_gradients",
    "gradient_importance",
    "head_relevance",
    "linearised",
    "output_norms",
    "top_class",
    "with_roles",
]
