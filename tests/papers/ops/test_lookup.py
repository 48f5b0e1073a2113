"""Looking up rows of many tables at once."""

import pytest
import torch

from headwise_papers.ops.lookup import FEW, lookup


@pytest.mark.parametrize("rows", [5, FEW + 1])
def test_rows_and_gradients_are_those_of_each_table(rows):
    table = torch.randn(3, rows, 4, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, rows, (3, 2, 7))
    ids[:, 0, :3] = 1  # a row looked up more than once
    looked = lookup(table, ids)
    factor = torch.randn_like(looked)
    (gradient,) = torch.autograd.grad((looked * factor).sum(), table)
    plain = torch.stack([table[seed][ids[seed]] for seed in range(3)])
    (wanted,) = torch.autograd.grad((plain * factor).sum(), table)
    assert torch.equal(looked, plain)
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_row_of_the_next_table_is_never_read(bad):
    with pytest.raises(ValueError, match="ids must be from 0 to 4"):
        lookup(torch.zeros(2, 5, 3), torch.tensor([[0], [bad]]))
