import doctest

import pytest

from headwise.recording.columns import column_of
from headwise.reporting import charts, inspection, measures, report, role_groups
from headwise.reporting.measures import decimals_for, headline, written


@pytest.mark.parametrize("module", [charts, inspection, measures, report, role_groups], ids=str)
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


def test_a_column_shares_its_decimals():
    assert decimals_for([0.001, 12.5]) == 1
    assert decimals_for([]) == decimals_for([0.0]) == 0


def test_nothing_is_minus_zero():
    assert written(-0.004, decimals=2) == "0.00"
    assert written(-0.006, decimals=2) == "\N{MINUS SIGN}0.01"


def test_accuracy_short_of_perfect_is_not_shown_as_perfect():
    assert headline("accuracy", 1.0) == "100.0 %"
    assert headline("accuracy", 0.99961) == "99.961 %"


def test_explanations_name_who_looks_at_whom():
    assert column_of("nsubj_to_dependent").meaning == (
        "Share of verbs whose largest weight lies on their subject (relation nsubj)."
    )
    assert column_of("advmod_to_head").meaning == (
        "Share of adverbs whose largest weight lies on their modified word (relation advmod)."
    )
    assert column_of("shoe_size") is None
