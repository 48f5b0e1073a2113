"""From a model or a Run to a HeadTable: what heads do and what they are worth."""

from headwise.analysis.ablation import ablate, ablate_items
from headwise.analysis.importance import OutputNorms, gradient_importance, output_norms
from headwise.analysis.propagation import Propagation, head_relevance, linearised, top_class
from headwise.analysis.roles import with_roles

__all__ = [
    "OutputNorms",
    "Propagation",
    "ablate",
    "ablate_items",
    "gradient_importance",
    "head_relevance",
    "linearised",
    "output_norms",
    "top_class",
    "with_roles",
]
