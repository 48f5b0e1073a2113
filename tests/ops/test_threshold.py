"""Newton's method finds the threshold that sorting and halving find."""

import pytest
import torch

from headwise.ops import entmax, entmax_attention, sparsemax, sparsemax_attention
from headwise.ops.entmax import rows as entmax_rows
from headwise.ops.entmax.rows import solve, solve_by_definition
from tests.ops.attention_cases import inputs

SIZES = (1, 7, 63, 65, 1000)


def sorted_sparsemax(scores):
    """Compute alpha = 2 by halving, which shares nothing with the method under test."""
    return solve_by_definition(scores, 2.0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 30.0, 1e4])
def test_float64_is_exact(n, spread):
    scores = spread * torch.randn(50, n, dtype=torch.float64)
    for power, wanted in (
        (1, sorted_sparsemax(scores)),
        (2, solve_by_definition(scores, 1.5)),
        (1 / 0.7, solve_by_definition(scores, 1.7)),
        (10, solve_by_definition(scores, 1.1)),
    ):
        torch.testing.assert_close(solve(scores, power), wanted, atol=1e-11, rtol=0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("power", [1, 2, 1 / 0.3])
def test_float32_rounds_little(n, power):
    scores = 2 * torch.randn(50, n)
    exact = solve(scores.double(), power)
    assert (solve(scores, power).double() - exact).abs().max() <= 2e-6


@pytest.mark.parametrize("power", [1, 2, 3.0])
def test_every_row_may_have_its_own_power(power):
    scores = torch.randn(4, 3, 65, dtype=torch.float64)
    powers = torch.full((3, 1), power, dtype=torch.float64)
    torch.testing.assert_close(solve(scores, powers), solve(scores, power))


def test_many_chunks_equal_one(monkeypatch):
    scores = torch.randn(5, 6, 7, dtype=torch.float64)
    whole = solve(scores, 2)
    monkeypatch.setattr(entmax_rows, "CHUNK_ELEMENTS", 20)
    torch.testing.assert_close(solve(scores, 2), whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize("power", [1, 2, 3.0])
def test_a_support_of_thousands_is_found(power):
    scores = torch.cat((torch.zeros(3, 5000), torch.full((3, 10), -50.0)), dim=-1).double()
    weights = solve(scores, power)
    torch.testing.assert_close(weights[:, :5000], torch.full((3, 5000), 1 / 5000).double())
    assert (weights[:, 5000:] == 0).all()


@pytest.mark.parametrize("weigh", [sparsemax, entmax])
def test_a_score_that_is_not_a_number_is_not_hidden(weigh):
    weights = weigh(torch.tensor([[0.0, torch.nan, 1.0], [0.0, 0.0, 0.0]]))
    assert weights[0].isnan().all()
    torch.testing.assert_close(weights[1], torch.full((3,), 1 / 3))


@pytest.mark.parametrize("attend", [sparsemax_attention, entmax_attention])
@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("score", [torch.inf, torch.nan])
def test_a_bias_without_a_finite_meaning_gives_nan_in_its_rows_only(attend, impl, score):
    bias = torch.zeros(5, 5)
    bias[1, 2] = score
    out = attend(*inputs(5), bias=bias, impl=impl).out
    assert out[:, :, 1].isnan().all()
    assert out[:, :, [0, 2, 3, 4]].isfinite().all()


@pytest.mark.parametrize("attend", [sparsemax_attention, entmax_attention])
def test_the_definition_is_still_there_to_compare_with(attend):
    tensors = inputs(65, dtype=torch.float64)
    fast, sort = attend(*tensors), attend(*tensors, impl="reference")
    torch.testing.assert_close(fast.weights, sort.weights, atol=1e-12, rtol=0)
    torch.testing.assert_close(fast.entropy, sort.entropy)
