import doctest

import pytest

from headwise.training import constant, cosine, inverse_square_root, linear, settings

ALL = [
    constant(warmup=10),
    inverse_square_root(warmup=10),
    cosine(warmup=10, steps=110),
    linear(warmup=10, steps=110),
]


@pytest.mark.parametrize("factor", ALL)
def test_every_schedule_rises_in_a_straight_line_to_one(factor):
    assert [factor(step) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])


@pytest.mark.parametrize("factor", ALL)
def test_no_schedule_rises_after_warm_up_or_leaves_zero_to_one(factor):
    factors = [factor(step) for step in range(10, 200)]
    assert factors == sorted(factors, reverse=True)
    assert all(0 <= value <= 1 for value in factors)


def test_each_goes_its_own_way_after_warm_up():
    assert [factor(60) for factor in ALL] == pytest.approx([1.0, (1 / 6) ** 0.5, 0.5, 0.5])
    assert [factor(110) for factor in ALL] == pytest.approx([1.0, (1 / 11) ** 0.5, 0.0, 0.0])
    assert ALL[2](35) > ALL[3](35)


def test_the_original_formula_is_the_inverse_square_root():
    width, warmup, factor = 512, 4000, inverse_square_root(warmup=4000)
    for step in (1, 1000, 4000, 100_000):
        original = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert factor(step) / (width * warmup) ** 0.5 == pytest.approx(original)


def test_warm_up_may_be_left_out():
    assert constant()(1) == 1
    assert inverse_square_root(warmup=0)(4) == 0.5
    assert linear(steps=4)(1) == 0.75


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="warmup must be 0 steps or more, got -1"):
        constant(warmup=-1)
    with pytest.raises(ValueError, match="steps must be more than warmup, got 5 and 10"):
        cosine(warmup=10, steps=5)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(settings)
    assert result.attempted > 0
    assert result.failed == 0
