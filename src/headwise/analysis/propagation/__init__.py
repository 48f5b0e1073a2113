"""Layer-wise relevance propagation (Bach et al., 2015; Ding et al., 2017; Voita et al., 2019).

It tells how much each head adds to a logit. Relevance is value times coefficient. Coefficients
travel through one ordinary backward pass in which some functions have a gradient of their own:

- linear maps, sums, means, selections: the weight ratio, which is the plain gradient
- attention: its weights are constant, only values have relevance
- layer and RMS norm: linear, with the standard deviation held constant
- non-linearities: ignored, f(x) has the relevance of x, except for a stabiliser near x = 0
- products of two activations (gated feed-forward layers): half to each
- biases: a constant neuron that keeps its share, or none (see `Propagation`)

It works on any model with sites, because it intercepts calls of PyTorch. A call without a rule is
refused by name. With rule="alpha_beta" these keep the plain ratio: means, selections, convolutions,
mixtures of experts, in-place sums, and sums fused with a product (except addmm of a linear layer).
"""

from headwise.analysis.propagation.relevance import (
    Linearised,
    head_relevance,
    linearised,
    top_class,
)
from headwise.analysis.propagation.rules import Propagation, Rule

__all__ = ["Linearised", "Propagation", "Rule", "head_relevance", "linearised", "top_class"]
