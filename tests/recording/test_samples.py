"""Samples: attention kept sparsely, as reports read it."""

import json

import pytest
import torch

from headwise.recording import Samples
from tests.recording.planted_heads import site_of, with_weights

SELF = "encoder.0.self"


def test_rows_keep_their_strongest_keys_in_order_and_leave_small_ones_out():
    samples = Samples(most=2, least=0.15)
    samples.start({"encoder": ["a", "b", "c"]})
    weights = torch.tensor([[[[0.1, 0.6, 0.3], [0.9, 0.06, 0.04], [0.34, 0.33, 0.33]]]])
    samples(site_of(SELF), with_weights(weights))
    (sentence,) = samples.drain()["sentences"]
    assert sentence["tokens"] == {"encoder": ["a", "b", "c"]}
    first, second, third = sentence["sites"][SELF][0]
    assert first == [[1, 0.6], [2, 0.3]]
    assert second == [[0, 0.9]]
    assert third[0] == [0, 0.34] and len(third) == 2


def test_all_heads_and_sites_of_a_sentence_stand_together():
    samples = Samples()
    samples.start({"encoder": ["a"]})
    samples(site_of(SELF, 2), with_weights(torch.ones(1, 2, 1, 1)))
    samples(site_of("encoder.1.self"), with_weights(torch.ones(1, 1, 1, 1)))
    samples.start({"encoder": ["b"]})
    samples(site_of(SELF, 2), with_weights(torch.ones(1, 2, 1, 1)))
    first, second = samples.drain()["sentences"]
    one = [[[0, 1.0]]]
    assert first["sites"] == {SELF: [one, one], "encoder.1.self": [one]}
    assert second == {"tokens": {"encoder": ["b"]}, "sites": {SELF: [one, one]}}


def test_draining_starts_afresh_and_gives_plain_json():
    samples = Samples()
    samples.start({"encoder": ("a", "b")})
    samples(site_of(SELF), with_weights(torch.full((1, 1, 2, 2), 0.5)))
    drained = samples.drain()
    assert json.loads(json.dumps(drained)) == drained
    assert samples.drain() == {"sentences": []}


def test_recording_before_a_sentence_began_is_refused():
    with pytest.raises(ValueError, match=r"Call Samples\.start\(tokens\) before"):
        Samples()(site_of(SELF), with_weights(torch.ones(1, 1, 1, 1)))


def test_a_batch_of_several_sentences_is_refused():
    samples = Samples()
    samples.start({"encoder": ["a"]})
    with pytest.raises(ValueError, match="one sentence a forward pass, got a batch of 2"):
        samples(site_of(SELF), with_weights(torch.ones(2, 1, 1, 1)))
