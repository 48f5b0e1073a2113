"""The calls of PyTorch, by the rule that their relevance follows; all others are refused."""

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = (
    *(functional.relu, functional.gelu, functional.silu, functional.leaky_relu, functional.elu),
    *(functional.selu, functional.celu, functional.prelu, functional.softplus, functional.mish),
    *(functional.relu6, functional.hardtanh, functional.hardswish, functional.hardsigmoid),
    *(functional.tanh, functional.sigmoid, functional.logsigmoid, functional.softsign),
    *(functional.threshold, functional.hardshrink, functional.softshrink, functional.tanhshrink),
    *(torch.relu, torch.selu, torch.celu, torch.prelu, torch.tanh, torch.sigmoid, torch.erf),
    *(torch.exp, torch.expm1, torch.log, torch.log1p, torch.abs, torch.square, torch.pow),
    *(torch.sqrt, torch.clamp, torch.clip, torch.sin, torch.cos, torch.nan_to_num),
    *(Tensor.relu, Tensor.prelu, Tensor.tanh, Tensor.sigmoid, Tensor.erf, Tensor.exp),
    *(Tensor.expm1, Tensor.log, Tensor.log1p, Tensor.abs, Tensor.square, Tensor.pow),
    # x ** 2 is a call of its own
    *(Tensor.__pow__, Tensor.__rpow__, Tensor.sqrt, Tensor.clamp, Tensor.clip, Tensor.sin),
    *(Tensor.cos, Tensor.nan_to_num),
)
SCALED = (functional.rms_norm, torch.rms_norm, functional.normalize)  # by what is held constant
CONSTANT = (
    *(functional.softmax, torch.softmax, Tensor.softmax, torch.rsqrt, Tensor.rsqrt),
    *(torch.var, Tensor.var, torch.std, Tensor.std, torch.reciprocal, Tensor.reciprocal),
    *(torch.norm, Tensor.norm, torch.linalg.vector_norm, torch.linalg.norm, Tensor.__rdiv__),
)
QUOTIENTS = (
    *(torch.div, torch.divide, torch.true_divide),
    *(Tensor.div, Tensor.divide, Tensor.true_divide, Tensor.div_),
)
PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply)
MATRIX_PRODUCTS = (
    *(torch.matmul, torch.bmm, torch.mm, torch.mv, torch.dot, torch.inner, torch.outer),
    *(Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.mv, Tensor.dot, Tensor.inner, Tensor.outer),
)
WEIGHTED = (  # as a linear layer: convolutions, and the experts of a mixture
    *(torch.conv1d, torch.conv2d, functional.conv1d, functional.conv2d),
    *(functional.grouped_mm, torch._grouped_mm),  # pyright: ignore
)
LAYER_NORMS = (functional.layer_norm, torch.layer_norm)
SUMS = (torch.add, Tensor.add)

# arguments that may be given by name, and that rules want in order
FIRST = ("input", "other", "query", "key", "value")
ADDED = {  # s + a b
    **dict.fromkeys((torch.addmm, Tensor.addmm), ("input", "mat1", "mat2")),
    **dict.fromkeys((torch.addmv, Tensor.addmv), ("input", "mat", "vec")),
    **dict.fromkeys((torch.addr, Tensor.addr), ("input", "vec1", "vec2")),
    **dict.fromkeys((torch.addbmm, Tensor.addbmm), ("input", "batch1", "batch2")),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), ("input", "batch1", "batch2")),
    **dict.fromkeys((torch.addcmul, Tensor.addcmul), ("input", "tensor1", "tensor2")),
}

# By name, as functions and methods share them: what is linear in all that it is given, or copies,
# or chooses. Its relevance is value times gradient.
_PLAIN = """
__get__ __getitem__ __rsub__ adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d
adaptive_max_pool2d add add_ adjoint amax amin as_strided atleast_1d atleast_2d atleast_3d
avg_pool1d avg_pool2d batch_norm bfloat16 block_diag broadcast_tensors broadcast_to cat chunk clone
column_stack concat concatenate contiguous copy_ cpu cuda cumsum detach diagonal diff double dropout
dropout1d dropout2d dstack embedding expand expand_as feature_dropout fill_ flatten flip float fmax
fmin gather half hstack index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put
index_put_ index_select interpolate masked_fill masked_fill_ masked_scatter masked_scatter_
masked_select max max_pool1d max_pool2d maximum mean min minimum moveaxis movedim narrow neg
negative pad permute positive ravel repeat repeat_interleave requires_grad_ reshape reshape_as roll
rsub scatter scatter_ scatter_add scatter_add_ select select_scatter slice_scatter sort split
split_with_sizes squeeze stack sub sub_ subtract sum swapaxes swapdims t take take_along_dim
tensor_split tile to topk transpose tril tril_ triu triu_ type type_as unbind unflatten unfold
unsqueeze view view_as view_as_complex view_as_real vstack where zero_
"""
PLAIN = frozenset(_PLAIN.split())
