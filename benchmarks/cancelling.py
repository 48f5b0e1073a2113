"""What rounding leaves of numbers that cancel in the gradients of q and k.

Gradients of scores sum to 0 in every row, so what all keys have in common cancels in dq = dS @ k.
Fused kernels multiply dS rounded to the dtype of k, and each rounded product keeps its share of the
common part: dq is off by the unit of rounding times a sum of the same products with random signs,
which do not cancel. They also take the mean that makes rows of dS sum to 0 from an output that was
rounded; what that leaves is added. Likewise dk. SDPA is off by as much.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# q, k and values -> for each query the sum over keys of a value times how fast the key's weight
# grows with its score
Pull = Callable[[Tensor, Tensor, Tensor], Tensor]


def uncancelled(
    gradients: Callable[[list[Tensor]], list[Tensor]],
    pull: Pull | None,
    inputs: Sequence[Tensor],
    upstream: Tensor,
    exact_dq: Tensor,
    rng: torch.Generator,
) -> list[Tensor]:
    """dq and dk of one head, where all that is rounded on the way has a random sign.

    Args:
        gradients: [q, k, v] -> [dq, dk] of an op that divides scores by the root of q's width.
        pull: sums values as the gradient of a mean of values does; None where none is computed.
        inputs: q, k and v of one head, in float64.
        upstream: the gradient of the output.
        exact_dq: what `gradients` gives for the inputs; a check of how it scales scores.
        rng: draws the signs.
    """
    products = _signed_products(gradients, inputs, exact_dq, rng)
    if pull is None:
        return products
    means = _signed_means(pull, inputs, upstream, rng)
    return [one + other for one, other in zip(products, means, strict=True)]


def _signed_products(
    gradients: Callable[[list[Tensor]], list[Tensor]],
    inputs: Sequence[Tensor],
    exact_dq: Tensor,
    rng: torch.Generator,
) -> list[Tensor]:
    """dq with a sign for each key, and dk with a sign for each query.

    q' = 2 [q, 0, +-q, 0] and k' = [k, +-k, 0, 0] are four times as wide, so that their scores are
    those of q and k. The gradient of the 0 in q' is the sum over keys with a sign each, and that of
    the 0 in k' the sum over queries. So no matrix of the gradients of scores is needed.
    """
    q, k, *rest = inputs
    signed_q, signed_k = (x * _signs(x[..., :1], rng) for x in (q, k))
    zero_q, zero_k = torch.zeros_like(q), torch.zeros_like(k)
    wide_q = 2 * torch.cat([q, zero_q, signed_q, zero_q], dim=-1)
    wide_k = torch.cat([k, signed_k, zero_k, zero_k], dim=-1)
    dq, dk = gradients([wide_q, wide_k, *rest])
    itself, signed_dq, _, _ = (2 * dq).chunk(4, dim=-1)
    off = (itself - exact_dq).norm().item()
    assert off <= 1e-6 * (1e-3 + exact_dq.norm().item()), "scores are not scaled by the width"
    return [signed_dq, dk.chunk(4, dim=-1)[2]]


def _signed_means(
    pull: Pull, inputs: Sequence[Tensor], upstream: Tensor, rng: torch.Generator
) -> list[Tensor]:
    """dq and dk of the mean alone, each number in it with a sign.

    dS_ij = u_ij (dout_i . v_j - dout_i . mean_i), where u_ij is how fast a weight grows with its
    score, and mean_i = sum_j u_ij v_j / sum_j u_ij; that of softmax is the output.
    """
    q, k, v = inputs
    values = torch.cat([torch.ones_like(k[..., :1]), k, v], dim=-1).requires_grad_()
    pulled = pull(q, k, values)
    total, keys, mean = pulled.detach().split([1, k.shape[-1], v.shape[-1]], dim=-1)
    mean = mean / total.clamp(min=1e-30)  # a query that sees nothing has no mean
    off = (mean * upstream * _signs(mean, rng)).sum(dim=-1, keepdim=True) / math.sqrt(q.shape[-1])
    of_keys = slice(1, 1 + k.shape[-1])
    (back,) = torch.autograd.grad(pulled[..., of_keys], values, off * q)
    return [off * keys, back[..., of_keys]]


def _signs(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randint(2, like.shape, generator=rng, device=like.device) * 2 - 1
