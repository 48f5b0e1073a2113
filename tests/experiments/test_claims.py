"""Claims judged by differences between seeds: held, contradicted, or undecided."""

import pytest

from headwise.experiments.base import Estimate
from headwise.experiments.claims import seeds_claim, sure, sure_claim, surely_within


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.5, 0.6, 0.7], "reproduced"),
        ([0.5, 0.6], "undecided"),  # two seeds
        ([0.9, -0.2, 0.8], "undecided"),  # the mean alone is on the paper's side
        ([-0.9, 0.2, -0.8], "undecided"),  # nor does it contradict the paper alone
        ([0.0, 0.0, 0.0], "undecided"),
        ([-0.5, -0.6, -0.7], "not"),
    ],
)
def test_a_claim_is_held_or_contradicted_where_the_interval_is_on_one_side(gains, verdict):
    assert sure_claim("x", "Table 1").paper_verdict(Estimate.of([sure(gains)])) == verdict


def test_the_same_difference_with_every_seed_decides_nothing():
    third = [2 / 12 - 1 / 12, 3 / 12 - 2 / 12, 4 / 12 - 3 / 12]  # alike but for rounding
    assert len(set(third)) > 1
    for gains in (third, [1.0] * 5, [-1.0] * 3):
        assert sure(gains) == surely_within(gains, 0.5) == 0.5


@pytest.mark.parametrize(
    ("differences", "within"),
    [
        ([0.01, -0.02, 0.0], 1.0),
        ([0.01, -0.02], 0.5),
        ([0.2, -0.3, 0.1], 0.5),  # may be within or not
        ([0.2, -0.1, 0.3], 0.5),  # though the mean is not
        ([-0.2, -0.21, -0.22], 0.0),
    ],
)
def test_there_is_no_difference_if_the_whole_interval_is_near_0(differences, within):
    assert surely_within(differences, 0.05) == within


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [
        ([1.0], "partly"),
        ([1.0, 1.0], "partly"),
        ([1.0, 1.0, 1.0], "reproduced"),
        ([1.0, 0.0, 1.0], "partly"),
        ([0.0, 0.0, 1.0], "not"),
    ],
)
def test_a_claim_about_seeds_takes_three_of_them(seeds, verdict):
    assert seeds_claim("x", "section 5.1").paper_verdict(Estimate.of(seeds)) == verdict
