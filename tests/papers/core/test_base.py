"""Estimates with their intervals, and the two verdicts that are computed from them."""

from dataclasses import replace

import pytest

from headwise_papers.core.base import Estimate, Expected, Experiment, Trials, since
from headwise_papers.core.results import Result
from headwise_papers.core.running import changes_since


def test_the_interval_is_students():
    estimate = Estimate.of([1.0, 2.0, 3.0, 4.0])  # mean 2.5, deviation 1.29, t(3) = 3.182
    assert estimate.mean == 2.5
    assert estimate.high == pytest.approx(2.5 + 3.182 * 1.2909944 / 2)
    assert estimate.low == pytest.approx(5.0 - estimate.high)


def test_one_value_has_no_width():
    estimate = Estimate.of([0.7])
    assert estimate.low == estimate.mean == estimate.high == 0.7


def test_many_values_use_the_normal_quantile():
    values = [0.0, 2.0] * 50
    assert Estimate.of(values).high - 1 == pytest.approx(1.96 * 1.005038 / 10, rel=1e-4)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_a_figure_needs_finite_values(values):
    with pytest.raises(ValueError, match="one finite value or more"):
        Estimate.of(values)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.85, 0.95], "as before"),  # the intervals meet
        ([0.91, 0.91], "as before"),  # 1 % away
        ([0.95, 0.95], "changed"),
    ],
)
def test_a_figure_is_compared_with_what_was_recorded(values, verdict):
    assert since(Estimate.of([0.9, 0.9]), Estimate.of(values)) == verdict
    assert since(None, Estimate.of(values)) is None


def test_changes_are_named_also_a_figure_that_is_gone():
    figures = {name: Estimate.of([1.0, 1.0]) for name in ("kept", "moved", "gone")}
    recorded = Result("training_dynamics/synthetic", "", {}, {}, 1.0, figures, ())
    now = {"kept": figures["kept"], "moved": Estimate.of([2.0, 2.0])}
    assert changes_since({"": recorded}, now) == ["moved", "gone"]
    assert changes_since({"": recorded}, {}) == ["kept", "moved", "gone"]
    assert changes_since({}, now) == []


def test_figures_are_compared_with_the_parts_of_the_record_that_have_them():
    one, two = Estimate.of([1.0, 1.0]), Estimate.of([2.0, 2.0])
    parts = {
        part: Result("attention_guidance/pretrain", "", {}, {}, 1.0, figures, ())
        for part, figures in {"": {"english": one}, "oromo": {"oromo": one, "words": one}}.items()
    }
    assert changes_since(parts, {"oromo": one, "words": one}) == []
    assert changes_since(parts, {"oromo": two, "words": one}) == ["oromo"]
    assert changes_since(parts, {"oromo": one, "english": one}) == ["words"]
    assert changes_since(parts, {"renamed": one}) == ["english"]
    assert changes_since(parts, {"english": one}, part="oromo") == ["oromo", "words"]
    assert changes_since(parts, {"english": one}, part="filipino") == []
    both = parts | {"again": replace(parts["oromo"], figures={"oromo": two})}
    assert changes_since(both, {"oromo": two, "words": one}) == []


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.70, 0.80, 0.90], "reproduced"),  # the interval holds the paper's figure
        ([0.765, 0.765], "reproduced"),  # within the margin of it
        ([0.72, 0.72], "partly"),
        ([0.50, 0.50], "not"),
    ],
)
def test_the_papers_verdict_looks_at_the_interval(values, verdict):
    expected = Expected("accuracy", paper=0.77, margin=0.01, partly=0.06)
    assert expected.paper_verdict(Estimate.of(values)) == verdict


def test_a_difference_of_the_other_sign_contradicts_the_paper_however_near_it_is():
    near = Expected("BLEU, a less b", paper=-0.1, margin=0.5, partly=1.0)
    above = Estimate.of([0.2, 0.21, 0.22])
    assert near.paper_verdict(above) == "reproduced"
    assert replace(near, signed=True).paper_verdict(above) == "not"
    assert replace(near, signed=True).paper_verdict(Estimate.of([0.2])) == "partly"  # one run
    assert replace(near, signed=True).paper_verdict(Estimate.of([-0.1, 0.3])) == "partly"
    assert replace(near, signed=True).paper_verdict(Estimate.of([-0.3, 0.2])) == "reproduced"


def test_a_figure_the_paper_does_not_have_has_no_verdict():
    assert Expected("accuracy").paper_verdict(Estimate.of([0.5])) is None


def test_a_share_of_runs_gets_a_binomial_interval():
    """Wilson, 11 of 20: 0.342 to 0.742, as in tables of that interval."""
    estimate = Estimate.of([1] * 11 + [0] * 9)
    assert (estimate.low, estimate.high) == pytest.approx((0.342, 0.742), abs=1e-3)


def test_runs_that_all_succeed_do_not_make_a_certainty():
    estimate = Estimate.of([1.0] * 20)
    assert estimate.high == 1.0 and estimate.low == pytest.approx(0.839, abs=1e-3)


def test_zeros_and_ones_are_trials_only_where_an_experiment_says_so():
    """A figure that happens to be 0 in every run is no share of runs that succeeded."""
    of_before = Experiment("", None, None, lambda config, run: {}, ())
    marking = replace(of_before, marks_trials=True)
    assert of_before.estimate("best", [0, 0, 0]).high > 0.5  # whole numbers too
    assert marking.estimate("best", [0.0, 0.0, 0.0]).high == 0.0
    assert marking.estimate("best", Trials([0.0, 0.0, 0.0])).high > 0.5
    with pytest.raises(AssertionError, match="Trials are 0 or 1"):
        marking.estimate("best", Trials([0.5, 0.0]))


def test_a_record_keeps_which_figures_are_trials_and_others_are_read_as_before():
    values = [1.0, 1.0, 1.0]
    figures = {
        "said to be": Estimate.of(values, trials=True),
        "said to be none": Estimate.of(values, trials=False),
        "not said": Estimate.of(values),
    }
    data = Result("training_dynamics/synthetic", "", {}, {}, 1.0, figures, ()).to_json()
    assert Result.from_json(data).figures == figures
    del data["figures"]["not said"]["trials"]  # as records were written before
    read = Result.from_json(data).figures
    assert [read[name].low < 0.5 for name in figures] == [True, False, True]
