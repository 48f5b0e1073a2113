"""Layer-wise relevance propagation (Bach et al., 2015; Ding et al., 2017; Voita et al., 2019).

How much each head adds to a logit. Relevance is value times coefficient, and coefficients
travel through one ordinary backward pass in which some functions have a gradient of their own:

- linear maps, sums, means, selections: the weight ratio, which is the plain gradient
- attention: its weights are constant, values alone have relevance
- layer and RMS norm: linear, with the standard deviation held constant
- non-linearities: ignored, f(x) has the relevance of x, but for a stabiliser where x is near 0
- products of two activations (gated feed-forward layers): half to each
- biases: a constant neuron that keeps its share, or none (see `Propagation`)

It works on Headwise's models and on adopted ones, as it reads the calls of PyTorch and not the
model's code; a call that it has no rule for is refused by name. With rule="alpha_beta", means,
selections, convolutions, mixtures of experts, in-place sums, and sums in one call with a product
(but addmm of a linear layer) keep the plain ratio.
"""

from headwise.analysis.propagation.heads import head_relevance, top_class
from headwise.analysis.propagation.linearised import Linearised, linearised
from headwise.analysis.propagation.settings import Propagation

__all__ = ["Linearised", "Propagation", "head_relevance", "linearised", "top_class"]
