"""Attention as pure functions on tensors.

Every op is
`(q, k, v, *, mask, bias, causal, lengths, scale, cap, sink, dropout, impl) -> Attended`:

    q        (B, H, Q, D)
    k, v     (B, G, K, D) and (B, G, K, E); G divides H: fewer key/value heads serve groups of heads
    mask     boolean, True = may attend, broadcastable to (B, H, Q, K)
    bias     added to the scores before anything is selected, broadcastable likewise; has a gradient
    causal   no query sees a later position; with fewer queries than keys, they are the last ones
    lengths  (B,) how many keys are real; the rest are padding
    scale    multiplies q.k; 1/sqrt(D) unless given
    cap      scores become cap * tanh(score / cap) before bias and mask, as in Gemma 2
    sink     (H,) one more score per head that takes part in the normalisation and has no value, as
             in GPT-OSS; has a gradient
    dropout  probability, acts on the weights after normalisation; statistics are before it
    impl     "reference" the definition, "torch" fused or blocked PyTorch, "triton", or "auto"

Scores, weights and sums are computed in float32 (float64 for float64 input); `out` has the input's
dtype. A query that may attend to nothing gives zeros and zero gradient. What a key or value holds
never matters to queries that may not attend it, not even if it is infinite or NaN, in both passes;
queries that may attend it can get NaN. Two exceptions: Triton kernels want finite values where only
some queries may attend them, and so does PyTorch's fused softmax on a GPU, in graphs and under
torch.func. `topk_selected` lists which keys top-k attention keeps, without values.

Tensor names end in their axes. The legend:

    B batch   H heads   G key/value heads when fewer   Q queries   K keys   T positions
    D head width   E value width   M model width   V vocabulary   C classes   L layers
    S seeds run at once   X any leading axes (rows)
"""

from headwise.ops.attended import Attended
from headwise.ops.entmax import entmax, entmax_attention
from headwise.ops.fixed import gaussian_attention, uniform_attention
from headwise.ops.softmax import softmax_attention
from headwise.ops.sparsemax import sparsemax, sparsemax_attention
from headwise.ops.topk import Selected, topk, topk_attention, topk_selected

__all__ = [
    "Attended",
    "Selected",
    "entmax",
    "entmax_attention",
    "gaussian_attention",
    "softmax_attention",
    "sparsemax",
    "sparsemax_attention",
    "topk",
    "topk_attention",
    "topk_selected",
    "uniform_attention",
]
