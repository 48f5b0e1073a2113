"""Pointing: agreement with annotation, counted by hand."""

import pytest
import torch

from headwise.recording import Pointing
from headwise.recording.pointing import Gold, kind_of
from tests.recording.planted_heads import pointing_at, site_of

SELF = "encoder.0.self"


def gold(*right, label="nsubj_to_head", kind="encoder.self"):
    return Gold(label, kind, torch.tensor(right))


def test_a_head_scores_the_share_of_annotated_queries_it_gets_right():
    pointing = Pointing(gold=[gold((0, 0, 2), (0, 1, 3), (0, 3, 0))])
    pointing(site_of(SELF, 2), pointing_at([[[2, 3, 1, 1], [0, 0, 0, 0]]], 4))
    assert pointing.drain() == {"nsubj_to_head": {SELF: [2 / 3, 1 / 3]}}


def test_any_of_several_right_keys_is_one_hit():
    # query 1 has three right keys, query 2 one: two queries in all
    pointing = Pointing(gold=[gold((0, 1, 0), (0, 1, 2), (0, 1, 3), (0, 2, 3))])
    pointing(site_of(SELF), pointing_at([[[0, 2, 0, 0]]], 4))
    assert pointing.drain()["nsubj_to_head"][SELF] == [0.5]


def test_annotation_speaks_of_its_own_kind_of_site():
    pointing = Pointing(
        gold=[gold((0, 0, 1)), gold((0, 1, 0), label="alignment", kind="decoder.cross")]
    )
    pointing(site_of(SELF), pointing_at([[[1, 1]]], 2))
    pointing(site_of("decoder.0.self"), pointing_at([[[1, 0]]], 2))
    pointing(site_of("decoder.2.cross"), pointing_at([[[0, 0, 0]]], 2))
    found = pointing.drain()
    assert found == {"nsubj_to_head": {SELF: [1.0]}, "alignment": {"decoder.2.cross": [1.0]}}


def test_many_batches_give_what_one_big_batch_gives():
    keys = torch.randint(6, (4, 2, 6)).tolist()
    right = [(i, q, (i + q) % 6) for i in range(4) for q in range(i, 6)]
    whole = Pointing(gold=[gold(*right)])
    whole(site_of(SELF, 2), pointing_at(keys, 6))
    parts = Pointing()
    for item in range(4):
        parts.gold = [gold(*((0, q, k) for i, q, k in right if i == item))]
        parts(site_of(SELF, 2), pointing_at(keys[item : item + 1], 6))
    assert parts.drain() == whole.drain()


def test_draining_starts_afresh():
    pointing = Pointing(gold=[gold((0, 0, 1))])
    pointing(site_of(SELF), pointing_at([[[0, 0]]], 2))
    assert pointing.drain() == {"nsubj_to_head": {SELF: [0.0]}}
    assert pointing.drain() == {}
    pointing(site_of(SELF), pointing_at([[[1, 0]]], 2))
    assert pointing.drain() == {"nsubj_to_head": {SELF: [1.0]}}


def test_the_baseline_is_what_the_best_fixed_distance_reaches():
    pointing = Pointing(gold=[gold((0, 0, 1), (0, 1, 2), (0, 3, 0))])  # distances 1, 1, -3
    pointing.count_offsets()
    pointing.gold = [gold((0, 2, 3), (0, 2, 1))]  # one query, distances 1 or -1
    pointing.count_offsets()
    assert pointing.baselines() == {"nsubj_to_head": 3 / 4}


def test_a_head_at_the_best_fixed_distance_reaches_the_baseline():
    right = [(0, 1, 3), (0, 2, 4), (0, 3, 1), (0, 0, 2), (0, 4, 0)]
    pointing = Pointing(gold=[gold(*right)])
    pointing.count_offsets()
    keys = [[[min(q + 2, 4) for q in range(5)], [0] * 5]]  # two to the right; the first word
    pointing(site_of(SELF, 2), pointing_at(keys, 5))
    assert pointing.drain()["nsubj_to_head"][SELF] == [3 / 5, 1 / 5]
    assert pointing.baselines() == {"nsubj_to_head": 3 / 5}


def test_an_empty_annotation_counts_nothing():
    pointing = Pointing(gold=[Gold("amod", "encoder.self", torch.zeros(0, 3, dtype=torch.long))])
    pointing.count_offsets()
    pointing(site_of(SELF), pointing_at([[[0, 1]]], 2))
    assert pointing.drain() == {} and pointing.baselines() == {}


@pytest.mark.parametrize(
    ("site", "kind"), [("encoder.11.self", "encoder.self"), ("decoder.0.cross", "decoder.cross")]
)
def test_a_kind_is_a_site_without_its_layer(site, kind):
    assert kind_of(site) == kind
