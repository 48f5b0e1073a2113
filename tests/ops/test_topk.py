"""Top-k: the scores that are kept, and their weights."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from headwise.ops import softmax_attention, topk, topk_attention
from tests.ops.attention_cases import SIZES, inputs


def kept_by_counting(row: list[float], keep: int, ties: str) -> list[bool]:
    """Mark scores with fewer than `keep` scores before them."""
    if ties == "all":
        return [score > -math.inf and sum(x > score for x in row) < keep for score in row]
    return [
        score > -math.inf
        and sum(x > score or (x == score and j < i) for j, x in enumerate(row)) < keep
        for i, score in enumerate(row)
    ]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("keep", [1, 3, 8])
@pytest.mark.parametrize("ties", ["all", "first"])
def test_weights_are_the_softmax_of_the_kept_scores(n, keep, ties):
    scores = torch.randn(5, n, dtype=torch.float64).round(decimals=1)  # rounding makes ties
    kept = torch.tensor([kept_by_counting(row, keep, ties) for row in scores.tolist()])
    shares = scores.exp() * kept
    torch.testing.assert_close(topk(scores, keep=keep, ties=ties), shares / shares.sum(-1, True))


def test_known_numbers():
    scores = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
    wanted = torch.tensor([0.7311, 0.2689, 0.0, 0.0, 0.0])
    torch.testing.assert_close(topk(scores, keep=2), wanted, atol=5e-5, rtol=0)


def test_ties_all_keeps_every_score_equal_to_the_last_kept():
    weights = topk(torch.tensor([1.0, 0.0, 1.0, 1.0, 2.0]), keep=2, ties="all")
    assert (weights > 0).tolist() == [True, False, True, True, True]


def test_ties_first_keeps_exactly_keep_and_prefers_the_lowest_index():
    weights = topk(torch.tensor([1.0, 0.0, 1.0, 1.0, 2.0]), keep=2, ties="first")
    assert (weights > 0).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_attention_follows_the_rule_for_ties(impl):
    q = torch.ones(1, 1, 1, 1)
    k = torch.tensor([1.0, 0.0, 1.0, 1.0, 2.0]).view(1, 1, 5, 1)
    v = torch.eye(5)[None, None]
    for ties, count in (("all", 4), ("first", 2)):
        attended = topk_attention(q, k, v, keep=2, ties=ties, impl=impl)
        assert (attended.out > 0).sum() == count
        torch.testing.assert_close(attended.out, attended.weights)


@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("ties", ["all", "first"])
def test_equal_keys_share_gradients_by_the_rule(impl, ties):
    q, k, v = inputs(6, dtype=torch.float64)
    k[:, :, 3:] = k[:, :, 2:3]  # four equal keys
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = topk_attention(*leaves, keep=2, ties=ties, impl="reference").weights @ leaves[2]
    grads = torch.autograd.grad(wanted.square().sum(), leaves)
    got = topk_attention(*leaves, keep=2, ties=ties, impl=impl).out
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(got.square().sum(), leaves), grads)


@pytest.mark.parametrize("ties", ["all", "first"])
@pytest.mark.parametrize("keep", [7, 8, 100])
def test_keeping_all_keys_is_softmax(keep, ties):
    q, k, v = inputs(7)
    got = topk_attention(q, k, v, keep=keep, ties=ties)
    dense = softmax_attention(q, k, v)
    torch.testing.assert_close(got.out, dense.out)
    torch.testing.assert_close(got.weights, dense.weights)


@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("ties", ["all", "first"])
def test_rows_with_fewer_visible_keys_than_keep_are_softmax(impl, ties):
    q, k, v = inputs(7)
    sparse = topk_attention(q, k, v, keep=4, ties=ties, causal=True, impl=impl)
    dense = softmax_attention(q, k, v, causal=True)
    torch.testing.assert_close(sparse.out[:, :, :4], dense.out[:, :, :4])
    assert ((sparse.weights > 0).sum(-1) == torch.arange(1, 8).clamp(max=4)).all()


def test_masks_come_before_the_choice():
    scores = torch.tensor([3.0, 2.0, 1.0, 0.0])
    mask = torch.tensor([False, True, True, True])
    assert (topk(scores, keep=2, mask=mask) > 0).tolist() == [False, True, True, False]


def test_a_bias_takes_part_in_the_choice():
    q, k, v = inputs(5)
    bias = torch.tensor([0.0, 0.0, 100.0, 0.0, 0.0])
    assert (topk_attention(q, k, v, keep=1, bias=bias).peak_key == 2).all()


def test_a_row_of_masked_scores_gives_zeros_and_no_gradient():
    scores = torch.randn(2, 5, requires_grad=True)
    weights = topk(scores, keep=2, mask=torch.tensor([[True], [False]]))
    (grad,) = torch.autograd.grad(weights.square().sum(), scores)
    assert (weights[1] == 0).all() and (grad[1] == 0).all() and grad.isfinite().all()


@pytest.mark.parametrize("ties", ["all", "first"])
def test_gradient_is_right(ties):
    scores = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda scores: topk(scores, keep=3, ties=ties), scores)
