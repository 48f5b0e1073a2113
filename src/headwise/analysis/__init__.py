"""From a model or a Run to a HeadTable: what heads do and what they are worth."""

from headwise.analysis.ablation import ablate
from headwise.analysis.roles import with_roles
from headwise.analysis.toy_gold import toy_gold

__all__ = ["ablate", "toy_gold", "with_roles"]
