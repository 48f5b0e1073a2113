"""Profile: every measure of a head, against values derived by hand."""

import math

import pytest
import torch

from headwise.ops import softmax_attention, topk_attention
from headwise.recording import Profile
from tests.recording.planted_heads import attended_by, pointing_at, site_of, with_weights

SELF = "encoder.0.self"


def profiled(*calls, words=None, site=SELF, **options):
    """The only head's measures after some calls."""
    profile = Profile(**options)
    for attended in calls:
        profile.words = words or {}
        profile(site_of(site), attended)
    return {name: sites[site][0] for name, sites in profile.drain().items()}


def test_a_previous_token_head_is_found_though_the_first_word_has_no_previous():
    row = profiled(pointing_at([[[0, 0, 1, 2, 3]]], 5))
    assert (row["offset"], row["offset_share"]) == (-1, 1.0)
    assert row["confidence"] == pytest.approx(1)
    assert row["entropy"] == pytest.approx(0, abs=1e-6)


def test_a_next_token_head_that_errs_once():
    row = profiled(pointing_at([[[1, 2, 0, 4, 4]]], 5))
    assert (row["offset"], row["offset_share"]) == (1, 3 / 4)


def test_confidence_and_entropy_are_means_over_queries():
    weights = torch.tensor([[[[0.7, 0.2, 0.1], [0.25, 0.5, 0.25], [0.3, 0.3, 0.4]]]])
    row = profiled(with_weights(weights))
    entropies = [-sum(w * math.log(w) for w in query) for query in weights[0, 0].tolist()]
    assert row["confidence"] == pytest.approx((0.7 + 0.5 + 0.4) / 3)
    assert row["entropy"] == pytest.approx(sum(entropies) / 3)
    assert row["special_mass"] == 0


def test_first_share_counts_the_first_word_not_the_first_position():
    words = {"encoder": torch.tensor([[False, True, True, True]])}
    row = profiled(pointing_at([[[0, 1, 1, 2]]], 4), words=words)
    assert row["first_share"] == pytest.approx(2 / 3)
    plain = profiled(pointing_at([[[0, 1, 1, 2]]], 4))
    assert plain["first_share"] == pytest.approx(1 / 4)


def test_weight_on_special_tokens_is_special_mass_and_the_peak_is_sought_among_words():
    # [CLS] and [SEP] hold most of the weight; among words each query looks at itself
    weights = torch.full((1, 1, 4, 4), 0.25)
    weights[0, 0, 1:3] = torch.tensor([[0.5, 0.2, 0.1, 0.2], [0.4, 0.1, 0.3, 0.2]])
    words = {"encoder": torch.tensor([[False, True, True, False]])}
    row = profiled(with_weights(weights), words=words)
    assert row["special_mass"] == pytest.approx((0.7 + 0.6) / 2)
    assert row["confidence"] == pytest.approx((0.2 + 0.3) / 2)
    assert (row["offset"], row["offset_share"]) == (0, 1.0)


def test_a_head_that_gives_words_no_weight_at_all_has_special_mass_one():
    words = {"encoder": torch.tensor([[False, True, True]])}
    row = profiled(pointing_at([[[0, 0, 0]]], 3), words=words)
    assert row["special_mass"] == pytest.approx(1)
    assert row["confidence"] == row["first_share"] == row["offset_share"] == 0


def test_a_sparse_head_with_only_special_keys_kept_still_counts():
    words = {"encoder": torch.tensor([[False, True, True]])}
    scores = torch.tensor([[[[2.0, 1, 0], [2, 1, 0], [0, 1, 2]]]])
    zeros = torch.zeros(1, 1, 3, 1)
    attended = topk_attention(zeros, zeros, zeros, bias=scores, keep=1)
    row = profiled(attended, words=words)
    assert (row["special_mass"], row["confidence"]) == (0.5, 0.5)
    assert (row["offset"], row["offset_share"], row["first_share"]) == (0, 0.5, 0)


def test_padding_is_neither_query_nor_key():
    scores, lengths = torch.randn(2, 1, 5, 5), torch.tensor([5, 3])
    words = {"encoder": torch.arange(5) < lengths[:, None]}
    padded = profiled(attended_by(scores, lengths=lengths), words=words)
    calls = [attended_by(scores[:1]), attended_by(scores[1:, :, :3, :3])]
    assert padded == pytest.approx(profiled(*calls))


def test_many_batches_give_what_one_big_batch_gives():
    scores = 2 * torch.randn(6, 1, 7, 7)
    whole = profiled(attended_by(scores))
    assert profiled(*(attended_by(part) for part in scores.split(2))) == pytest.approx(whole)


def test_heads_and_sites_are_kept_apart():
    profile = Profile()
    profile(site_of(SELF, 2), pointing_at([[[0, 0, 1], [1, 2, 2]]], 3))
    profile(site_of("encoder.1.self"), pointing_at([[[0, 1, 2]]], 3))
    assert profile.drain()["offset"] == {SELF: [-1, 1], "encoder.1.self": [0]}


def test_draining_starts_afresh():
    profile = Profile()
    profile(site_of(SELF), pointing_at([[[0, 0, 1]]], 3))
    assert profile.drain()["offset"] == {SELF: [-1]}
    assert profile.drain() == {}
    profile(site_of(SELF), pointing_at([[[1, 2, 2]]], 3))
    assert profile.drain()["offset_share"] == {SELF: [1.0]}


def test_a_site_that_saw_no_word_has_none():
    words = {"encoder": torch.zeros(1, 3, dtype=torch.bool)}
    row = profiled(pointing_at([[[0, 1, 2]]], 3), words=words)
    assert set(row.values()) == {None}


def test_causal_queries_stand_at_the_end_of_the_keys():
    # two new queries at positions 3 and 4, each looking one back
    scores = torch.full((1, 1, 2, 5), -50.0)
    scores[0, 0, 0, 2] = scores[0, 0, 1, 3] = 50
    row = profiled(attended_by(scores, causal=True), site="decoder.0.self")
    assert (row["offset"], row["offset_share"]) == (-1, 1.0)


def test_cross_attention_reads_words_of_both_stacks():
    words = {
        "encoder": torch.tensor([[True, True, False]]),  # an end mark
        "decoder": torch.tensor([[True, True, True, False]]),  # padding
    }
    keys = [[[0, 1, 2, 0]]]  # the third looks at the end mark, the fourth is no query
    row = profiled(pointing_at(keys, 3), words=words, site="decoder.0.cross")
    assert row["special_mass"] == pytest.approx(1 / 3)
    assert (row["offset"], row["offset_share"]) == (0, 1.0)  # of the two that have a word there
    assert row["first_share"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_distances_beyond_reach_are_not_told_apart(reach):
    # one of seven looks at itself, the others three words away or further
    row = profiled(pointing_at([[[0, 6, 6, 6, 0, 0, 0]]], 7), reach=reach)
    assert (row["offset"], row["offset_share"]) == (0, 1 / 7)


def test_queries_far_beyond_the_last_key_have_no_neighbour():
    row = profiled(pointing_at([[[0, 1, *[1] * 9]]], 2), site="decoder.0.cross", reach=0)
    assert (row["offset"], row["offset_share"]) == (0, 1.0)


def test_words_of_another_batch_are_refused(unchecked):
    profile = Profile(words={"encoder": torch.ones(2, 3, dtype=torch.bool)})
    with pytest.raises(ValueError, match=r"shape \(1, 4\) for this batch, got \(2, 3\)"):
        profile(site_of(SELF), pointing_at([[[0, 1, 2, 3]]], 4))


def test_recording_costs_no_gradient_and_no_whole_matrix():
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    attended = softmax_attention(q, q, q)
    Profile()(site_of(SELF), attended)
    assert "weights" not in vars(attended)
