"""Counted random numbers: uniform, independent, and the same whenever asked for."""

import torch

from headwise.pruning.drawing import counted_uniform


def draws(seed, count=48, times=2000):
    return torch.stack([counted_uniform(seed, torch.tensor(t), count) for t in range(times)])


def test_numbers_are_uniform_and_strictly_inside():
    numbers = draws(0)
    assert numbers.min() > 0 and numbers.max() < 1
    shares = torch.histc(numbers, bins=20, min=0, max=1) / numbers.numel()
    torch.testing.assert_close(shares, torch.full((20,), 0.05), atol=3e-3, rtol=0)


def test_draws_places_and_seeds_are_not_correlated():
    numbers_TN = draws(0)
    together = torch.corrcoef(numbers_TN.T) - torch.eye(48)
    assert together.abs().max() < 5 / 2000**0.5  # of 1128 pairs the largest is about 3.5 of these
    others = draws(1)
    for first, second in (
        (numbers_TN[:-1], numbers_TN[1:]),  # from draw to draw
        (numbers_TN, others),  # from seed to seed
        (numbers_TN[1:], others[:-1]),
    ):
        pair = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))
        assert pair[0, 1].abs() < 5 / first.numel() ** 0.5


def test_seed_and_draw_decide():
    first, again = (counted_uniform(7, torch.tensor(3), 5) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, counted_uniform(7, torch.tensor(4), 5))
    assert not torch.equal(first, counted_uniform(8, torch.tensor(3), 5))
    assert torch.equal(first, counted_uniform(7, torch.tensor(3), 9)[:5])
    assert counted_uniform(-1, torch.tensor(2**40), 3).isfinite().all()
