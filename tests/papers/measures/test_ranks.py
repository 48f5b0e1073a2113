import doctest

import torch

from headwise_papers.measures import ranks
from headwise_papers.measures.ranks import rank_correlation


def test_only_the_order_matters():
    x = torch.randn(3, 40, dtype=torch.float64)
    y = x + 0.5 * torch.randn(3, 40, dtype=torch.float64)
    wanted = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(
        x.argsort(-1).argsort(-1).double(), y.argsort(-1).argsort(-1).double(), strict=True
    )])  # fmt: skip
    torch.testing.assert_close(rank_correlation(x, y), wanted)
    torch.testing.assert_close(rank_correlation(x.exp(), y**3), wanted)


def test_equal_values_share_a_rank():
    x, y = torch.tensor([1, 1, 2, 3]), torch.tensor([5, 4, 6, 7])
    ranks = torch.tensor([[1.5, 1.5, 3, 4], [2, 1, 3, 4]], dtype=torch.float64)
    torch.testing.assert_close(rank_correlation(x, y), torch.corrcoef(ranks)[0, 1])


def test_what_both_owe_to_a_third_is_taken_out():
    common = torch.randn(2000, dtype=torch.float64)
    x, y = (common + 0.5 * torch.randn(2000, dtype=torch.float64) for _ in range(2))
    assert rank_correlation(x, y) > 0.6
    assert rank_correlation(x, y, given=common).abs() < 0.1
    assert rank_correlation(x, x + y, given=common) > 0.5


def test_examples_in_docstrings_hold():
    result = doctest.testmod(ranks)
    assert result.attempted > 0
    assert result.failed == 0
