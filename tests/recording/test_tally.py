"""Tally: bootstrap weights, exact sums, and intervals that cover."""

import pytest
import torch

from headwise.recording.tally import FEWEST_SENTENCES, Tally, bootstrap_weights


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


def test_all_or_nothing_leaves_the_doubt_that_so_few_sentences_leave():
    # ten words in each sentence, which are not ten times as many sentences
    chances = torch.full((12, 2), 10.0)
    columns = tallied(chances * torch.tensor([1.0, 0]), chances, range(12)).shares().columns("x")
    doubt = 0.025 ** (1 / 12)  # all of twelve are hit that often if a share is no higher
    assert columns["x_low"] == pytest.approx([doubt, 0])
    assert columns["x_high"] == pytest.approx([1, 1 - doubt])


def test_one_miss_makes_nothing_surer_than_none_does():
    hits = torch.full((12, 2), 10.0)
    hits[5, 1] = 9
    shares = tallied(hits, torch.full((12, 1), 10.0), range(12)).shares()
    assert shares.low[1] <= shares.low[0] and shares.value[1] < shares.value[0] == 1


@pytest.mark.parametrize("bounded", [True, False])
def test_too_few_sentences_have_a_share_but_no_interval(bounded):
    sentences = FEWEST_SENTENCES + 1
    chances = torch.full((sentences, 2), 50.0)
    chances[:2, 1] = 0  # a sentence without a chance says nothing
    hits = (chances / 2 + torch.arange(sentences)[:, None]) * (chances > 0)
    columns = tallied(hits, chances, range(sentences), bounded=bounded).shares().columns("x")
    assert None not in columns["x"]
    for end in ("x_low", "x_high"):
        assert columns[end][0] is not None and columns[end][1] is None


def test_a_sentence_that_is_shown_bit_by_bit_is_one_sentence():
    tally, weights = Tally(), bootstrap_weights(range(4))
    for step in range(5):  # of decoding; the last sentence is over after two words
        chances = torch.tensor([[1.0], [1], [1], [step < 2]])
        tally.add(chances, chances, weights=weights)
    assert tally.sentences.tolist() == [4] and tally.chances.tolist() == [17]
    tally.add(chances, chances, weights=bootstrap_weights(range(4, 8)))
    assert tally.sentences.tolist() == [7]


def test_sums_that_do_not_say_how_many_sentences_there_were_are_refused():
    state = tallied(torch.ones(3, 1), torch.ones(3, 1), range(3)).state()
    with pytest.raises(ValueError, match=r"rows of chances, got .*; count again"):
        Tally().load(state | {"chances": state["chances"][:-1]})


def test_what_is_not_bounded_may_be_negative_and_tiny():
    values = torch.tensor([[-1e-12], [-3e-12]]).repeat(10, 1)
    tally = tallied(values, torch.ones(20, 1), range(20), bounded=False, grain=0.0)
    columns = tally.shares().columns("x")
    assert columns["x"] == pytest.approx([-2e-12])
    assert -3.1e-12 < columns["x_low"][0] < -2e-12 < columns["x_high"][0] < -0.9e-12


def test_more_sentences_make_a_narrower_interval():
    widths = []
    for sentences in (50, 800):
        hits = (torch.rand(sentences, 1) < 0.4).float()
        shares = tallied(hits, torch.ones(sentences, 1), range(sentences)).shares()
        widths.append((shares.high - shares.low).item())
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.3)


def coverage(sentences, truth, *, corpora=300, words=6):
    """How often an interval holds the truth; the words of a sentence are alike."""
    torch.manual_seed(0)
    odds = torch.distributions.Beta(truth * 4, (1 - truth) * 4).sample((sentences, corpora))
    hits = torch.distributions.Binomial(words, odds).sample()
    shares = tallied(hits, torch.full((sentences, 1), float(words)), range(sentences)).shares()
    return ((shares.low <= truth) & (truth <= shares.high)).double().mean().item()


def test_intervals_cover_the_truth_nineteen_times_in_twenty():
    assert coverage(120, 0.3) == pytest.approx(0.95, abs=0.04)


@pytest.mark.parametrize("truth", [0.1, 0.5, 0.85])
@pytest.mark.parametrize("sentences", [10, 20])
def test_intervals_of_few_sentences_cover_the_truth_nearly_as_often(sentences, truth):
    assert coverage(sentences, truth) > 0.9


def test_three_sentences_have_no_interval_that_could_cover():
    assert coverage(3, 0.5) == 0
