"""Layer-wise relevance propagation (Bach et al., 2015; Ding et al., 2017; Voita et al., 2019).

How much of a logit comes through each head. Relevance is value times coefficient, and coefficients
travel through one ordinary backward pass in which some functions have a gradient of their own:

- linear maps, sums, means, selections: the weight ratio, which is the plain gradient
- attention: its weights are constant, values alone have relevance
- layer and RMS norm: linear, with the standard deviation held constant
- non-linearities: ignored, f(x) has the relevance of x
- products of two activations (gated feed-forward layers): half to each
- biases: a constant neuron that keeps its share, or none (see `Propagation`)

It works on Headwise's models and on adopted ones, as it reads the calls of PyTorch and not the
model's code. With rule="alpha_beta", means, selections and in-place sums keep the plain ratio.
"""

from headwise.analysis.propagation.heads import head_relevance, top_class
from headwise.analysis.propagation.linearised import Linearised, linearised
from headwise.analysis.propagation.settings import Propagation

__all__ = ["Linearised", "Propagation", "head_relevance", "linearised", "top_class"]
