"""Sparsemax: the nearest distribution to the scores."""

import pytest
import torch
from torch.autograd import gradcheck

from headwise.ops import sparsemax
from tests.ops.attention_cases import SIZES


@pytest.mark.parametrize("n", SIZES)
def test_no_distribution_is_nearer_to_the_scores(n):
    """At the optimum, score - weight is one threshold on the support and no score is above it."""
    scores = torch.randn(20, n, dtype=torch.float64)
    weights = sparsemax(scores)
    support = weights > 0
    threshold = (scores - weights).masked_fill(~support, -torch.inf).amax(-1, keepdim=True)
    torch.testing.assert_close((scores - weights)[support], threshold.expand_as(scores)[support])
    assert (scores[~support] <= threshold.expand_as(scores)[~support] + 1e-12).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(20, dtype=torch.float64))


def test_known_numbers_with_exact_zeros():
    scores = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
    assert torch.equal(sparsemax(scores), torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(
        sparsemax(torch.tensor([0.6, 0.2, -1.0])), torch.tensor([0.7, 0.3, 0.0])
    )


@pytest.mark.parametrize("n", SIZES)
def test_agrees_with_the_entmax_package(n):
    peer = pytest.importorskip("entmax", reason="the entmax package is not installed")
    scores = torch.randn(20, n)
    torch.testing.assert_close(sparsemax(scores), peer.sparsemax(scores, dim=-1))


@pytest.mark.parametrize("shift", [1e3, 1e8, -1e8])
def test_a_shift_of_all_scores_changes_nothing(shift):
    scores = torch.tensor([[0.0, -8.0, -16.0], [0.0, 0.0, -32.0]])  # exact after the shifts
    torch.testing.assert_close(sparsemax(scores + shift), sparsemax(scores))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_dtypes_lose_only_the_rounding_of_the_result(dtype):
    scores = torch.randn(20, 65).to(dtype)
    weights = sparsemax(scores)
    assert weights.dtype == dtype
    assert (weights.double() - sparsemax(scores.double())).abs().max() <= torch.finfo(dtype).eps


def test_equal_scores_share_the_weight():
    weights = sparsemax(torch.tensor([1.0, 3.0, 3.0, 1.0]))
    assert torch.equal(weights, torch.tensor([0.0, 0.5, 0.5, 0.0]))


def test_masked_scores_get_no_weight_and_empty_rows_give_zeros():
    scores = torch.randn(2, 5, requires_grad=True)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    weights = sparsemax(scores, mask=mask)
    (grad,) = torch.autograd.grad(weights.square().sum(), scores)
    torch.testing.assert_close(weights[0, mask[0]], sparsemax(scores[0, mask[0]]))
    assert (weights[~mask] == 0).all() and (grad[~mask] == 0).all() and grad.isfinite().all()


def test_gradient_is_right():
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert gradcheck(sparsemax, scores)
