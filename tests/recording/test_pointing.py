"""Pointing: agreement with annotation, counted by hand."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.recording import Gold, Pointing, Profile, Reading, Words
from headwise.recording.pointing import baselines_at, kind_of
from tests.recording.planted_heads import pointing_at, site_of

SELF = "encoder.0.self"


def gold(*right, label="nsubj_to_head", kind="encoder.self"):
    return Gold(label, kind, torch.tensor(right))


def pointing_with(*golds, sentences=1, **options):
    """A recorder that has a reading with this annotation."""
    return Pointing(reading=Reading(range(sentences), gold=golds, **options))


def shares(pointing):
    """What it drains, without the ends of intervals."""
    ends = ("_low", "_high")
    return {name: x for name, x in pointing.drain().items() if not name.endswith(ends)}


def test_a_head_scores_the_share_of_annotated_queries_it_gets_right():
    pointing = pointing_with(gold((0, 0, 2), (0, 1, 3), (0, 3, 0)))
    pointing(site_of(SELF, 2), pointing_at([[[2, 3, 1, 1], [0, 0, 0, 0]]], 4))
    assert shares(pointing) == {"nsubj_to_head": {SELF: [2 / 3, 1 / 3]}}


def test_any_of_several_right_keys_is_one_hit():
    # query 1 has three right keys, query 2 one: two queries in all
    pointing = pointing_with(gold((0, 1, 0), (0, 1, 2), (0, 1, 3), (0, 2, 3)))
    pointing(site_of(SELF), pointing_at([[[0, 2, 0, 0]]], 4))
    assert pointing.drain()["nsubj_to_head"][SELF] == [0.5]


def test_annotation_speaks_of_its_own_kind_of_site():
    pointing = pointing_with(
        gold((0, 0, 1)), gold((0, 1, 0), label="alignment", kind="decoder.cross")
    )
    pointing(site_of(SELF), pointing_at([[[1, 1]]], 2))
    pointing(site_of("decoder.0.self"), pointing_at([[[1, 0]]], 2))
    pointing(site_of("decoder.2.cross"), pointing_at([[[0, 0, 0]]], 2))
    found = shares(pointing)
    assert found == {"nsubj_to_head": {SELF: [1.0]}, "alignment": {"decoder.2.cross": [1.0]}}


def test_many_batches_give_what_one_big_batch_gives():
    keys = torch.randint(6, (4, 2, 6)).tolist()
    right = [(i, q, (i + q) % 6) for i in range(4) for q in range(i, 6)]
    whole = pointing_with(gold(*right), sentences=4)
    whole(site_of(SELF, 2), pointing_at(keys, 6))
    parts = Pointing()
    for item in range(4):
        mine = gold(*((0, q, k) for i, q, k in right if i == item))
        parts.reading = Reading([item], gold=[mine])
        parts(site_of(SELF, 2), pointing_at(keys[item : item + 1], 6))
    assert parts.drain() == whole.drain()


def test_draining_starts_afresh():
    pointing = pointing_with(gold((0, 0, 1)))
    pointing(site_of(SELF), pointing_at([[[0, 0]]], 2))
    assert shares(pointing) == {"nsubj_to_head": {SELF: [0.0]}}
    assert pointing.drain() == {}
    pointing(site_of(SELF), pointing_at([[[1, 0]]], 2))
    assert shares(pointing) == {"nsubj_to_head": {SELF: [1.0]}}


def test_the_baseline_is_what_the_best_fixed_distance_reaches():
    pointing = pointing_with(gold((0, 0, 1), (0, 1, 2), (0, 3, 0)))  # distances 1, 1, -3
    for layer in range(2):  # counted once, not in every layer
        pointing(site_of(f"encoder.{layer}.self"), pointing_at([[[0] * 4]], 4))
    pointing.reading = Reading([1], gold=[gold((0, 2, 3), (0, 2, 1))])  # one word, distances 1, -1
    pointing(site_of(SELF), pointing_at([[[0] * 4]], 4))
    assert pointing.baselines() == {"nsubj_to_head": 3 / 4}
    assert pointing.offsets() == {"nsubj_to_head": {-3: 1, -1: 1, 1: 3}}


def test_a_head_at_the_best_fixed_distance_reaches_the_baseline():
    right = [(0, 1, 3), (0, 2, 4), (0, 3, 1), (0, 0, 2), (0, 4, 0)]
    pointing = pointing_with(gold(*right))
    keys = [[[min(q + 2, 4) for q in range(5)], [0] * 5]]  # two to the right; the first word
    pointing(site_of(SELF, 2), pointing_at(keys, 5))
    assert pointing.drain()["nsubj_to_head"][SELF] == [3 / 5, 1 / 5]
    assert pointing.baselines() == {"nsubj_to_head": 3 / 5}


def test_annotation_is_in_words_not_in_pieces():
    # "un|believ|able cats sleep": the second word looks at the middle of the first
    words = {"encoder": Words(torch.tensor([[-1, 0, 0, 0, 1, 2, -1]]))}
    pointing = pointing_with(gold((0, 1, 0), (0, 2, 1), (0, 0, 1)), words=words)
    keys = [[[0, 4, 4, 1, 2, 0, 0]]]  # the third word looks at no word
    pointing(site_of(SELF), pointing_at(keys, 7))
    assert pointing.drain()["nsubj_to_head"][SELF] == [2 / 3]


def test_what_was_cut_off_is_not_asked():
    pointing = pointing_with(gold((0, 0, 1), (0, 1, 7), (0, 7, 1)))
    pointing(site_of(SELF), pointing_at([[[1, 0]]], 2))
    assert shares(pointing) == {"nsubj_to_head": {SELF: [1.0]}}
    assert pointing.offsets() == {"nsubj_to_head": {1: 1}}


def test_a_decoder_is_not_asked_for_words_to_come():
    right = gold((0, 0, 2), (0, 2, 0), (0, 1, 1), kind="decoder.self")
    pointing = pointing_with(right)
    pointing(site_of("decoder.0.self"), pointing_at([[[0, 0, 0]]], 3))
    assert shares(pointing) == {"nsubj_to_head": {"decoder.0.self": [0.5]}}
    assert pointing.offsets() == {"nsubj_to_head": {-2: 1, 0: 1}}


def test_annotation_of_another_batch_is_refused():
    with pytest.raises(ValueError, match="batch item 3, but the batch has 1"):
        pointing_with(gold((3, 0, 0)))(site_of(SELF), pointing_at([[[0]]], 1))


def test_intervals_are_over_sentences():
    torch.manual_seed(0)
    keys = (torch.rand(100, 1, 2) < 0.5).long()
    pointing = pointing_with(gold(*((i, 0, 0) for i in range(100))), sentences=100)
    pointing(site_of(SELF), pointing_at(keys.tolist(), 2))
    found = {name: sites[SELF][0] for name, sites in pointing.drain().items()}
    share = found["nsubj_to_head"]
    assert 0.3 < found["nsubj_to_head_low"] < share - 0.05
    assert share + 0.05 < found["nsubj_to_head_high"] < 0.7


def test_merging_and_resuming_give_what_one_pass_gives():
    keys = torch.randint(6, (9, 2, 6)).tolist()

    def record(pointing, items):
        for item in items:
            right = gold(*((0, q, (item + q) % 6) for q in range(item % 4, 6)))
            other = gold((0, 1, item % 6), label="a/b: c")
            pointing.reading = Reading([item], gold=[right, *([other] if item > 4 else [])])
            for layer in range(2):
                pointing(site_of(f"encoder.{layer}.self", 2), pointing_at([keys[item]], 6))
        return pointing

    whole, first, resumed = record(Pointing(), range(9)), record(Pointing(), range(3)), Pointing()
    resumed.load(first.state())
    record(resumed, range(3, 9))
    merged = record(Pointing(), range(3, 9))
    merged.merge(first)
    columns, baselines = whole.drain(), whole.baselines()
    assert set(columns) > {"nsubj_to_head", "a/b: c"}
    for pointing in (resumed, merged):
        assert pointing.offsets() == whole.offsets()
        found = pointing.drain()
        assert (found, pointing.baselines()) == (columns, baselines)
        assert list(found) == list(columns)


def test_labels_and_sites_come_in_the_same_order_after_resuming(tmp_path):
    # the label that comes first in the alphabet is met last
    names = [f"encoder.{layer}.self" for layer in range(12)]
    pointing = pointing_with(gold((0, 0, 1), label="next"), gold((0, 1, 0), label="amod"))
    for name in names:
        pointing(site_of(name), pointing_at([[[1, 0]]], 2))
    save_file(pointing.state(), tmp_path / "state.safetensors")
    resumed = Pointing()
    resumed.load(load_file(tmp_path / "state.safetensors"))
    for one in (resumed, pointing):
        assert list(one.baselines()) == list(one.offsets()) == ["amod", "next"]
        columns = one.drain()
        assert [name for name in columns if "_" not in name] == ["amod", "next"]
        assert list(columns["next"]) == names


def test_an_encoder_and_a_decoder_have_baselines_of_their_own():
    # the same label: always the next word in the encoder, anywhere before in the decoder
    pointing = pointing_with(
        gold((0, 0, 1), (0, 1, 2), label="mark"),
        gold((0, 1, 0), (0, 2, 0), label="mark", kind="decoder.self"),
        gold((0, 1, 1), label="alignment", kind="decoder.cross"),
    )
    for name in (SELF, "decoder.0.self", "decoder.0.cross"):
        pointing(site_of(name), pointing_at([[[0, 0, 0]]], 3))
    resumed = Pointing()
    resumed.load(pointing.state())
    resumed.merge(pointing)
    for one in (pointing, resumed):
        assert one.baselines() == {
            "alignment": 1,
            "decoder.self: mark": 1 / 2,
            "encoder.self: mark": 1,
        }
    assert pointing.offsets()["decoder.self: mark"] == {-2: 1, -1: 1}
    assert baselines_at(pointing.baselines(), "decoder.self")["mark"] == 1 / 2
    assert baselines_at(pointing.baselines(), "encoder.self") == {
        "alignment": 1,
        "decoder.self: mark": 1 / 2,
        "mark": 1,
    }


def test_a_profile_and_a_pointing_share_a_reading():
    reading = Reading([0], gold=[gold((0, 1, 0))])
    profile, pointing = Profile(reading=reading), Pointing(reading=reading)
    attended = pointing_at([[[0, 0]]], 2)
    profile(site_of(SELF), attended)
    pointing(site_of(SELF), attended)
    assert profile.drain()["first_share"] == {SELF: [1.0]} == pointing.drain()["nsubj_to_head"]


def test_an_empty_annotation_counts_nothing():
    pointing = pointing_with(Gold("amod", "encoder.self", torch.zeros(0, 3, dtype=torch.long)))
    pointing(site_of(SELF), pointing_at([[[0, 1]]], 2))
    assert pointing.drain() == {} and pointing.baselines() == {}


@pytest.mark.parametrize(
    ("site", "kind"), [("encoder.11.self", "encoder.self"), ("decoder.0.cross", "decoder.cross")]
)
def test_a_kind_is_a_site_without_its_layer(site, kind):
    assert kind_of(site) == kind
