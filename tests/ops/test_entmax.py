"""Alpha-entmax: from nearly softmax to sparsemax, and the gradient for alpha."""

import pytest
import torch
from torch.autograd import gradcheck

from headwise.ops import entmax, entmax_attention, sparsemax
from tests.ops.attention_cases import SIZES, inputs


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.7, 2.0, 3.0])
def test_weights_satisfy_the_definition(n, alpha):
    """(alpha - 1) score - weight^(alpha - 1) is one tau on the support; no score is above it."""
    scores = torch.randn(20, n, dtype=torch.float64)
    weights = entmax(scores, alpha=alpha)
    support = weights > 1e-9  # near alpha = 1 the root makes rounding of tiny weights large
    left = (alpha - 1) * scores - weights.pow(alpha - 1)
    tau = left.gather(-1, weights.argmax(-1, keepdim=True)).expand_as(scores)
    torch.testing.assert_close(left[support], tau[support], atol=1e-6, rtol=0)
    zero = weights == 0
    assert ((alpha - 1) * scores[zero] <= tau[zero] + 1e-9).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(20, dtype=torch.float64))


def test_known_numbers_with_exact_zeros():
    weights = entmax(torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]))
    wanted = torch.tensor([0.8146, 0.1621, 0.0233, 0.0, 0.0])
    torch.testing.assert_close(weights, wanted, atol=5e-5, rtol=0)
    assert (weights[3:] == 0).all()


@pytest.mark.parametrize("n", SIZES)
def test_agrees_with_the_entmax_package(n):
    peer = pytest.importorskip("entmax", reason="the entmax package is not installed")
    scores = torch.randn(20, n, dtype=torch.float64)
    torch.testing.assert_close(entmax(scores), peer.entmax15(scores, dim=-1))
    for alpha in (1.2, 1.8):
        wanted = peer.entmax_bisect(scores, alpha=alpha, dim=-1, n_iter=60)
        torch.testing.assert_close(entmax(scores, alpha=alpha), wanted)


@pytest.mark.parametrize("n", SIZES)
def test_alpha_two_is_sparsemax(n):
    scores = torch.randn(20, n, dtype=torch.float64)
    torch.testing.assert_close(entmax(scores, alpha=2.0), sparsemax(scores))


def test_alpha_near_one_is_nearly_softmax():
    scores = torch.randn(20, 7, dtype=torch.float64)
    wanted = scores.softmax(-1)
    torch.testing.assert_close(entmax(scores, alpha=1.0001), wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("alpha", [1 + 1e-6, 1.00001, 1.001, 1.05, 1.11])
def test_float32_is_accurate_however_near_alpha_is_to_one(alpha, impl):
    q, k, v = inputs(65)
    got = entmax_attention(q, k, v, alpha=alpha, impl=impl).weights
    scores = entmax_attention(q, k, v).scores.rows()  # in float32, rounded alike
    exact = entmax(scores.double(), alpha=alpha)
    assert got.dtype == torch.float32
    assert (got - exact).abs().max() <= 1e-6
    if alpha < 1.0001:  # softmax is nearer than alpha is to 1, times the square of the scores
        assert (got - scores.softmax(-1)).abs().max() <= 20 * (alpha - 1)


def test_the_gradient_for_alpha_is_finite_and_smooth_near_one():
    """Against float64 and against alpha ten times as far away; both change little there."""
    scores, upstream = torch.randn(20, 7), torch.randn(20, 7)

    def slope(alpha: float, dtype: torch.dtype = torch.float32) -> float:
        learned = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        weights = entmax(scores.to(dtype), alpha=learned)
        return torch.autograd.grad((weights * upstream).sum(), learned)[0].item()

    assert slope(1.00001) == pytest.approx(slope(1.0001, torch.float64), rel=1e-2)
    assert slope(1.05) == pytest.approx(slope(1.05, torch.float64), rel=1e-5)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_bisection_equals_the_sorted_solution(n, dtype):
    scores = 2 * torch.randn(20, n, dtype=dtype)
    halved = entmax(scores, alpha=torch.full((20, 1), 1.5, dtype=dtype))
    torch.testing.assert_close(halved, entmax(scores, alpha=1.5))


@pytest.mark.parametrize("alpha", [1.3, 1.5])
def test_a_shift_of_all_scores_changes_nothing(alpha):
    scores = torch.tensor([[0.0, -8.0, -16.0], [0.0, 0.0, -32.0]])  # exact after the shift
    torch.testing.assert_close(entmax(scores + 1e8, alpha=alpha), entmax(scores, alpha=alpha))


@pytest.mark.parametrize("alpha", [1.3, 1.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_dtypes_lose_only_the_rounding_of_the_result(dtype, alpha):
    scores = torch.randn(20, 65).to(dtype)
    weights = entmax(scores, alpha=alpha)
    assert weights.dtype == dtype
    exact = entmax(scores.double(), alpha=alpha)
    assert (weights.double() - exact).abs().max() <= torch.finfo(dtype).eps


@pytest.mark.parametrize("alpha", [1.3, 1.5])
def test_masked_scores_get_no_weight_and_empty_rows_give_zeros(alpha):
    scores = torch.randn(2, 5, requires_grad=True)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    learned = torch.tensor(alpha, requires_grad=True)
    weights = entmax(scores, alpha=learned, mask=mask)
    grads = torch.autograd.grad(weights.square().sum(), (scores, learned))
    wanted = entmax(scores[0, mask[0]], alpha=alpha)
    torch.testing.assert_close(weights[0, mask[0]], wanted)
    assert (weights[~mask] == 0).all() and (grads[0][~mask] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 2.5])
def test_gradients_of_scores_and_alpha_are_right(alpha):
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    learned = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)

    # Off 1.5, since a step of gradcheck's would leave the sorted solution for the halved one.
    def weights(scores, learned):
        return entmax(scores, alpha=learned[None])

    assert gradcheck(weights, (scores, learned), atol=1e-4)


@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_alpha_may_be_learned_by_every_head(impl):
    q, k, v = inputs(4, dtype=torch.float64)
    alpha = torch.tensor([1.3, 1.9], dtype=torch.float64, requires_grad=True)

    def out(*leaves):
        return entmax_attention(*leaves[:3], alpha=leaves[3], impl=impl).out

    leaves = [x.requires_grad_() for x in (q, k, v, alpha)]
    assert gradcheck(out, leaves, atol=1e-4)
    for head in range(2):
        wanted = entmax_attention(q, k, v, alpha=alpha[head].item(), impl=impl).out[:, head]
        torch.testing.assert_close(out(*leaves)[:, head], wanted)


@pytest.mark.parametrize("alpha", [1.5, 1.7])
def test_a_scalar_alpha_gets_its_gradient_in_attention(alpha):
    q, k, v = inputs(4, dtype=torch.float64)
    one = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    each = torch.full((2,), alpha, dtype=torch.float64, requires_grad=True)
    (grad_one,) = torch.autograd.grad(entmax_attention(q, k, v, alpha=one).out.square().sum(), one)
    (grad_each,) = torch.autograd.grad(
        entmax_attention(q, k, v, alpha=each).out.square().sum(), each
    )
    torch.testing.assert_close(grad_one, grad_each.sum())
