"""Tally: bootstrap weights, exact sums, and intervals that cover."""

import pytest
import torch

from headwise.recording.tally import Tally, bootstrap_weights


def tallied(hits, chances, sentences, **options):
    tally = Tally(**options)
    tally.add(hits, chances, weights=bootstrap_weights(sentences))
    return tally


def test_weights_are_a_function_of_the_sentence_alone():
    whole = bootstrap_weights(range(50))
    assert torch.equal(bootstrap_weights([49, 3]), whole[[49, 3]])
    assert torch.equal(bootstrap_weights(range(50), replicates=7), whole[:, :7])
    assert not torch.equal(bootstrap_weights(range(50), seed=1), whole)


def test_weights_are_poisson_with_mean_one():
    drawn = bootstrap_weights(range(5000))
    shares = [(drawn == count).double().mean().item() for count in range(4)]
    assert shares == pytest.approx([0.36788, 0.36788, 0.18394, 0.06131], abs=2e-3)
    assert drawn.mean().item() == pytest.approx(1, abs=4e-3)
    assert drawn.var().item() == pytest.approx(1, abs=8e-3)


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_sentences_replicates_and_seeds_are_independent(seeds):
    one, other = (bootstrap_weights(range(4000), seed=seed) - 1 for seed in seeds)
    by_sentence = (one[:-1] * other[1:]).mean(dim=1)
    by_replicate = (one[:, :-1] * other[:, 1:]).mean(dim=0)
    # each mean of n products has a standard deviation of 1 / sqrt(n)
    assert by_sentence.mean().abs() < 4 / 800_000**0.5
    assert by_sentence.std().item() == pytest.approx(200**-0.5, rel=0.1)
    assert by_replicate.abs().max() < 5 / 4000**0.5


def test_large_and_negative_sentence_numbers_are_as_good_as_others():
    drawn = bootstrap_weights([-5, 2**62, 2**31, 0])
    assert len(drawn.unique(dim=0)) == 4
    assert drawn.mean(dim=1).sub(1).abs().max() < 0.4


def test_a_share_is_hits_by_chances():
    tally = tallied(torch.tensor([[1.0, 0], [2, 3]]), torch.tensor([[4.0], [4]]), [0, 1])
    assert tally.shares().columns("share")["share"] == [3 / 8, 3 / 8]


def test_halves_merged_equal_one_pass_bit_for_bit():
    hits, chances = torch.rand(300, 4) * 7, torch.full((300, 1), 7.0)
    whole = tallied(hits, chances, range(300))
    order = torch.randperm(300)
    merged = Tally()
    for part in order.split([100, 13, 187]):
        merged.merge(tallied(hits[part], chances[part], part.tolist()))
    assert all(torch.equal(a, b) for a, b in
               zip(whole.state().values(), merged.state().values(), strict=True))  # fmt: skip


def test_a_tally_can_be_put_away_and_taken_up():
    hits = torch.rand(20, 3)
    whole = tallied(hits, torch.ones(20, 1), range(20))
    first = tallied(hits[:9], torch.ones(9, 1), range(9))
    second = Tally()
    second.load(first.state())
    second.add(hits[9:], torch.ones(11, 1), weights=bootstrap_weights(range(9, 20)))
    assert whole.shares().columns("x") == second.shares().columns("x")
    empty = Tally()
    empty.load(Tally().state())
    assert empty.state() == {}


def test_tallies_of_other_replicates_cannot_be_merged():
    tally, other = Tally(), Tally()
    tally.add(torch.ones(1, 1), torch.ones(1, 1), weights=bootstrap_weights([0], replicates=3))
    other.add(torch.ones(1, 1), torch.ones(1, 1), weights=bootstrap_weights([0], replicates=5))
    with pytest.raises(ValueError, match="tally of 3 replicates was given 5"):
        tally.merge(other)


def test_a_head_without_a_chance_has_no_share():
    tally = tallied(torch.zeros(5, 2), torch.tensor([[1.0, 0]]).expand(5, 2), range(5))
    columns = tally.shares().columns("x")
    assert columns["x"] == [0, None]
    assert columns["x_low"][1] is columns["x_high"][1] is None


def test_all_or_nothing_leaves_the_doubt_that_so_few_chances_leave():
    tally = tallied(torch.tensor([[3.0, 0]]), torch.tensor([[3.0, 3]]), [0])
    columns = tally.shares().columns("x")
    doubt = 0.025 ** (1 / 3)  # three hits in a row come about that often if a share is no higher
    assert columns["x_low"] == pytest.approx([doubt, 0])
    assert columns["x_high"] == pytest.approx([1, 1 - doubt])


def test_what_is_not_bounded_may_be_negative_and_tiny():
    values = torch.tensor([[-1e-12], [-3e-12]])
    tally = tallied(values, torch.ones(2, 1), range(2), bounded=False, grain=0.0)
    columns = tally.shares().columns("x")
    assert columns["x"] == pytest.approx([-2e-12])
    assert -3.1e-12 < columns["x_low"][0] <= -2e-12 <= columns["x_high"][0] < -0.9e-12


def test_more_sentences_make_a_narrower_interval():
    widths = []
    for sentences in (50, 800):
        hits = (torch.rand(sentences, 1) < 0.4).float()
        shares = tallied(hits, torch.ones(sentences, 1), range(sentences)).shares()
        widths.append((shares.high - shares.low).item())
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.3)


def test_intervals_cover_the_truth_nineteen_times_in_twenty():
    # 300 corpora of 120 sentences, whose words are alike: only sentences can be counted on
    corpora, sentences, words, truth = 300, 120, 6, 0.3
    odds = torch.distributions.Beta(truth * 4, (1 - truth) * 4).sample((sentences, corpora))
    hits = torch.distributions.Binomial(words, odds).sample()
    shares = tallied(hits, torch.full((sentences, 1), float(words)), range(sentences)).shares()
    covered = ((shares.low <= truth) & (truth <= shares.high)).double().mean().item()
    assert covered == pytest.approx(0.95, abs=0.04)
