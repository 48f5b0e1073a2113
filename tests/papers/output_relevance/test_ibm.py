from pathlib import Path

import pytest
import torch

from headwise_papers.data.vocabulary import EOS
from headwise_papers.measures.ibm import IbmModel1, align, controls
from headwise_papers.ops.relevance import packed
from headwise_papers.output_relevance._runs import read_pairs
from headwise_papers.output_relevance._translators import Recipe, make_stack
from headwise_papers.output_relevance.ibm import Both, nearer
from tests.papers.output_relevance.conftest import missing

PAIRS = [([5, 6, 7], [15, 17]), ([6], [16, 15, 16]), ([7, 5], [17]), ([5], [15]), ([7], [17, 17])]


def _model(iterations: int) -> IbmModel1:
    marked = [([*source, EOS], [*target, EOS]) for source, target in PAIRS]
    return IbmModel1.train(marked, iterations=iterations, null=False, smoothing=1e-3)


def test_words_align_with_their_translations_in_the_order_of_recorded_rows() -> None:
    aligned = align(_model(20), PAIRS, PAIRS)
    stack = make_stack(Recipe(hidden=4), 20, {0: "normal"}, torch.device("cpu"))
    looked = list(read_pairs(PAIRS, device=torch.device("cpu"), size=2)(stack))
    assert aligned.lengths.equal(torch.cat([chunk.lengths for chunk in looked]))
    # [5]->[15 E], [7]->[17 17 E], [6]->[16 15 16 E], [7 5]->[17 E], [5 6 7]->[15 17 E]
    ends = [1, 1, 1, 2, 3]
    peak = aligned.peak.tolist()
    assert [peak[place] for place in (1, 4, 8, 10, 13)] == ends
    assert [peak[place] for place in (0, 2, 3, 5, 7, 9, 11, 12)] == [0, 0, 0, 0, 0, 0, 0, 2]
    assert aligned.known.all()


def test_target_words_that_were_never_trained_on_are_not_known() -> None:
    aligned = align(_model(2), [([5, 6], [19, 15])], PAIRS)
    assert aligned.known.tolist() == [False, True, True]


def test_rows_of_other_pairs_are_refused() -> None:
    both = Both(*(align(_model(number), PAIRS, PAIRS) for number in (1, 10)))
    assert both.known_rows({"lengths": both.first.lengths.int()}).all()
    with pytest.raises(ValueError, match="not those of the validation pairs"):
        both.known_rows({"lengths": both.first.lengths + 1})


def test_controls_know_where_peaks_often_are_and_nothing_of_words() -> None:
    aligned = align(_model(1), [([5, 6, 7], [15, 17]), ([7, 5], [17]), ([5], [19])], PAIRS)
    assert aligned.lengths.tolist() == [2, 2, 3, 3, 4, 4, 4]
    assert aligned.known.tolist() == [False, *[True] * 6]  # 19 is never trained on
    aligned = aligned._replace(peak=torch.tensor([0, 1, 1, 1, 3, 1, 1]))
    first_NK = torch.zeros(7, 4, dtype=torch.bool)
    first_NK[:, 0] = True
    second_NK = first_NK.roll(1, dims=1)
    found = controls(aligned, packed(torch.stack([first_NK, second_NK])))
    assert found["untrained beta"].tolist() == pytest.approx([0, 5 / 6])
    assert found["the end mark"].tolist() == pytest.approx([2 / 6, 2 / 6])
    # the second place from the start holds five, the best one from the end two
    assert found["the most frequent places"].tolist() == pytest.approx([5 / 6, 5 / 6])
    at_end = aligned._replace(peak=aligned.lengths - 1)
    found = controls(at_end, packed(first_NK[None]))
    assert found["the most frequent places"].item() == found["the end mark"].item() == 1


def test_a_run_is_judged_where_it_is_half_way_from_chance_to_its_best() -> None:
    steps = torch.tensor([0, 5, 10])
    first_ER = torch.tensor([[0.1, 0.1, 0.0], [0.4, 0.1, 0.05], [0.3, 0.2, 0.0]]).double()
    later_ER = torch.tensor([[0.1, 0.1, 0.0], [0.2, 0.3, 0.0], [0.5, 0.4, 0.0]]).double()
    found = nearer(steps, first_ER, later_ER, chance=0.1)
    assert found["update at which one is found"].tolist() == [5, 5]  # the last never is
    assert found["first nearer to IBM 1"].tolist() == [True, False]
    assert found["later nearer to IBM 10"].tolist() == [True, True, False]


def test_the_model_learns_from_the_pairs_of_translators(data_folder: Path, smoke) -> None:
    found = smoke("ibm")
    # tokens are as uncertain as 1000 of them at the start
    assert found["multi30k: perplexity of IBM 1"].mean < 100
    later, first = (found[f"multi30k: perplexity of IBM {number}"].mean for number in (10, 1))
    assert later < 0.8 * first
    assert 0.04 < found["multi30k: random baseline of hr"].mean < 0.12
    assert 0.1 < found["multi30k: rows where the iterations differ"].mean < 0.9
    assert not missing("ibm", found.results, "early", "multi30k")
    names = ("untrained beta", "the end mark", "the most frequent places")
    blind = [found[f"multi30k: hr(IBM 1, {name})"].values for name in names]
    chance = found["multi30k: random baseline of hr"].mean
    most = [max(*values, chance) for values in zip(*blind, strict=True)]
    ours = found["multi30k: hr(IBM 1, beta_unif at s')"].values
    over = found["multi30k: IBM 1 in beta_unif - best control"].values
    assert over == pytest.approx([a - b for a, b in zip(ours, most, strict=True)])
    assert found.has_figures("ibm-converged", "ibm-early")


def test_rows_that_tell_iterations_apart_have_different_peaks_before_the_end_mark() -> None:
    aligned = align(_model(1), PAIRS, PAIRS)
    first = aligned._replace(peak=torch.zeros_like(aligned.peak))
    assert not Both(first, first).differing.any()
    moved = first.peak.clone()
    moved[-1] = 1  # of four positions
    moved[-2] = 3
    both = Both(first, first._replace(peak=moved))
    assert both.differing.nonzero()[:, 0].tolist() == [len(moved) - 2, len(moved) - 1]
    assert both.inside.nonzero()[:, 0].tolist() == [len(moved) - 1]
