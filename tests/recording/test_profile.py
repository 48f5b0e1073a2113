"""Profile: every measure of a head, against values derived by hand."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.ops import softmax_attention, topk_attention
from headwise.recording import Profile, Reading, Words, reading
from tests.recording.planted_heads import attended_by, pointing_at, site_of, with_weights

SELF = "encoder.0.self"


def profiled(*calls, words=None, site=SELF, **options):
    """The only head's measures after some calls; `words` are True at words, or number them."""
    profile, numbers = Profile(**options), {}
    for stack, given in (words or {}).items():
        numbers[stack] = Words.each(given) if given.dtype == torch.bool else Words(given)
    sentences = 0
    for attended in calls:
        batch = len(attended.out)
        profile.reading = Reading(range(sentences, sentences + batch), words=numbers)
        profile(site_of(site), attended)
        sentences += batch
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
    assert row["confidence"] == row["first_share"] == 0
    assert row["offset"] is row["offset_share"] is row["offset_share_low"] is None


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
    profile = Profile(reading=Reading([0]))
    profile(site_of(SELF, 2), pointing_at([[[0, 0, 1], [1, 2, 2]]], 3))
    profile(site_of("encoder.1.self"), pointing_at([[[0, 1, 2]]], 3))
    assert profile.drain()["offset"] == {SELF: [-1, 1], "encoder.1.self": [0]}


def test_draining_starts_afresh():
    profile = Profile(reading=Reading([0]))
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
    words = {"encoder": Words(torch.zeros(2, 3, dtype=torch.long))}
    profile = Profile(reading=Reading([0], words=words))
    with pytest.raises(ValueError, match=r"shape \(1, 4\) for this batch, got \(2, 3\)"):
        profile(site_of(SELF), pointing_at([[[0, 1, 2, 3]]], 4))


def test_recording_costs_no_gradient_and_no_whole_matrix():
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    attended = softmax_attention(q, q, q)
    Profile(reading=Reading([0]))(site_of(SELF), attended)
    assert "weights" not in vars(attended)


def test_pieces_are_merged_before_anything_is_counted():
    # words of two, one and two pieces; each word looks at the one before it
    words = {"encoder": torch.tensor([[0, 0, 1, 2, 2]])}
    row = profiled(pointing_at([[[0, 1, 0, 2, 2]]], 5), words=words)
    assert (row["offset"], row["offset_share"]) == (-1, 1.0)
    # one piece of the last word looks at itself: half of its weight, and the first on ties
    row = profiled(pointing_at([[[0, 1, 0, 2, 4]]], 5), words=words)
    assert row["confidence"] == pytest.approx((1 + 1 + 0.5) / 3)
    assert row["entropy"] == pytest.approx(math.log(2) / 3, abs=1e-6)
    assert row["offset_share"] == 1.0


def test_a_word_that_lost_all_its_pieces_is_no_neighbour():
    words = {"encoder": torch.tensor([[0, 2, 3]])}
    row = profiled(pointing_at([[[1, 2, 2]]], 3), words=words)
    # 0 looks two further, where it is; 2 looks one further; only 2 has a next word
    assert (row["offset"], row["offset_share"]) == (0, 1 / 3)
    row = profiled(pointing_at([[[0, 2, 1]]], 3), words=words)
    assert (row["offset"], row["offset_share"]) == (-1, 1.0)


def test_intervals_are_over_sentences():
    torch.manual_seed(1)
    keys = torch.randint(2, (200, 1, 3))
    keys[:, :, 2] = 1
    row = profiled(pointing_at(keys.tolist(), 3))
    for name in ("confidence", "offset_share", "first_share", "special_mass"):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
    spread = row["first_share_high"] - row["first_share_low"]
    share, words = row["first_share"], 600
    assert 0.5 < spread / (2 * 1.96 * math.sqrt(share * (1 - share) / words)) < 1.1
    assert row["special_mass_low"] == 0 and row["confidence_low"] > 0.98


def recorded(scores, sentences, recorder):
    for start in range(0, len(scores), 5):
        part = sentences[start : start + 5]
        recorder.reading = Reading(part)
        recorder(site_of(SELF, 2), attended_by(scores[start : start + 5]))
    return recorder


def test_merging_and_resuming_give_what_one_pass_gives():
    scores, numbers = 3 * torch.randn(20, 2, 6, 6).double(), list(range(20))
    whole = recorded(scores, numbers, Profile()).drain()
    first = recorded(scores[:10], numbers[:10], Profile())
    resumed = Profile()
    resumed.load(first.state())
    assert recorded(scores[10:], numbers[10:], resumed).drain() == whole
    other = recorded(scores[10:], numbers[10:], Profile())
    other.merge(first)
    assert other.drain() == whole


def test_memory_does_not_grow_with_the_corpus():
    profile = recorded(torch.randn(5, 2, 6, 6), range(5), Profile())
    before = {name: tensor.shape for name, tensor in profile.state().items()}
    recorded(torch.randn(25, 2, 6, 6), range(5, 30), profile)
    assert {name: tensor.shape for name, tensor in profile.state().items()} == before


def test_recorders_that_share_a_reading_look_once(monkeypatch):
    calls, look = [], reading.word_rows
    monkeypatch.setattr(reading, "word_rows", lambda *given: calls.append(1) or look(*given))
    shared, attended = Reading([0]), attended_by(torch.randn(1, 1, 3, 3))
    one, other = Profile(reading=shared), Profile(reading=shared)
    for recorder in (one, other):
        recorder(site_of(SELF), attended)
    assert len(calls) == 1 and one.drain() == other.drain()
    one(site_of("encoder.1.self"), attended_by(torch.randn(1, 1, 3, 3)))
    assert len(calls) == 2


def test_a_recorder_without_a_reading_says_what_to_do():
    with pytest.raises(ValueError, match=r"Profile\.reading must be set before each forward"):
        Profile()(site_of(SELF), pointing_at([[[0]]], 1))


def test_a_reading_of_other_sentences_is_refused():
    with pytest.raises(ValueError, match=r"saw a batch of 1, but the reading is of 2 sentences"):
        Profile(reading=Reading([0, 1]))(site_of(SELF), pointing_at([[[0]]], 1))


def test_sites_come_in_the_same_order_after_resuming(tmp_path):
    profile, names = Profile(), [f"encoder.{layer}.self" for layer in range(12)]
    profile.reading = Reading([0])
    for name in names:
        profile(site_of(name), pointing_at([[[0, 0]]], 2))
    save_file(profile.state(), tmp_path / "state.safetensors")
    resumed = Profile()
    resumed.load(load_file(tmp_path / "state.safetensors"))
    assert list(resumed.drain()["offset"]) == names == list(profile.drain()["offset"])


def test_few_sentences_have_no_ends():
    few, enough = (profiled(pointing_at([[[1, 0]]] * count, 2)) for count in (9, 10))
    assert few["offset_share"] == enough["offset_share"] == 1
    assert few["offset_share_low"] is few["confidence_high"] is None
    assert enough["offset_share_low"] == pytest.approx(0.025**0.1)
