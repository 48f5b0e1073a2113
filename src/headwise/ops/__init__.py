"""Attention as pure functions on tensors.

Every op is
`(q, k, v, *, mask, bias, causal, lengths, scale, cap, sink, dropout, impl) -> Attended`. q is
(B, H, Q, D), k is (B, G, K, D) and v is (B, G, K, E); G divides H, so that groups of heads can
share key/value heads. The keyword arguments are explained in help() of every op, and written once,
in `headwise.ops.attention`.

Scores, weights and sums are computed in float32 (float64 for float64 input); `out` has the input's
dtype. A query that may attend to nothing gives zeros and zero gradient. A key or value never
influences queries that may not attend it, not even if it is infinite or NaN, in both passes;
queries that may attend it can get NaN. Two exceptions: Triton kernels need finite values where only
some queries may attend them, and so does PyTorch's fused softmax on a GPU, in graphs and under
torch.func. `topk_selected` lists the keys that top-k attention keeps, without values.

Tensor names end in their axes. The legend:

    B batch   H heads   G key/value heads when fewer   Q queries   K keys   T positions
    D head width   E value width   M model width   V vocabulary   C classes   L layers
    S seeds run in parallel   X any leading axes (rows)
"""

from headwise.ops import graphs
from headwise.ops._impl import Impl, choose, kernel_obstacle, outside_compilation
from headwise.ops.attended import Attended
from headwise.ops.entmax import entmax, entmax_attention, sparsemax, sparsemax_attention
from headwise.ops.fixed import gaussian_attention, uniform_attention
from headwise.ops.rows import softmax_rows
from headwise.ops.scores import Scores, spread_groups
from headwise.ops.softmax import softmax_attention
from headwise.ops.topk import Selected, topk, topk_attention, topk_selected

__all__ = [
    "Attended",
    "Impl",
    "Scores",
    "Selected",
    "choose",
    "entmax",
    "entmax_attention",
    "gaussian_attention",
    "graphs",
    "kernel_obstacle",
    "outside_compilation",
    "softmax_attention",
    "softmax_rows",
    "sparsemax",
    "sparsemax_attention",
    "spread_groups",
    "topk",
    "topk_attention",
    "topk_selected",
    "uniform_attention",
]
