"""Claims judged by differences between seeds: held, contradicted, or undecided."""

import pytest

from headwise_papers.core.base import Estimate
from headwise_papers.core.claims import seeds_claim, sure, sure_claim, surely_within
from headwise_papers.core.shelf import load_experiment


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


@pytest.mark.parametrize(
    ("experiment", "metric"),
    [
        ("output_relevance/translation", "iwslt14: s"),  # the first evaluation there is
        ("output_relevance/translation", "iwslt14: accuracy at s"),
        (
            "output_relevance/classification",
            "yelp: hr(alpha*, beta_unif)",
        ),  # sentences, not reviews
        ("attention_guidance/robust", "debian-docs-en, 12 layers: guided has the lower loss"),
        (
            "specialized_heads/gates",
            "en-ru: gates that are decided",
        ),  # and so they are before training
    ],
)
def test_what_could_not_fail_or_is_of_other_data_has_no_verdict(experiment, metric) -> None:
    (item,) = [one for one in load_experiment(experiment).expected if one.metric == metric]
    assert item.paper is None and item.where


def test_tasks_that_the_paper_does_not_have_are_our_questions() -> None:
    judged = [one for one in load_experiment("attention_guidance/downstream").expected if one.paper]
    ours = {one.metric.partition(":")[0] for one in judged if one.is_our_question}
    assert ours == {"rte", "mrpc", "masakhanews-orm"}
    assert [one.where for one in judged if not one.is_our_question] == ["Table 4, QNLI"]


def test_pruned_translators_are_judged_against_as_much_training() -> None:
    judged = [
        one.metric
        for one in load_experiment("specialized_heads/prune-all").expected
        if "BLEU" in one.metric
    ]
    assert len(judged) == 7
    assert all(metric.endswith("BLEU lost to as much training") for metric in judged)


def test_heads_for_rare_words_are_judged_against_a_fixed_place() -> None:
    judged = load_experiment("specialized_heads/rare").expected
    half = [one.metric for one in judged if "more than half" in one.metric]
    assert len(half) == 4
    assert all(metric.endswith("and above a fixed place") for metric in half)
