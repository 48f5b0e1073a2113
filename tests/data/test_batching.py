"""Padding keeps every id, and batches use every sequence once."""

import random

import pytest
import torch

from headwise.data.batching import Ragged, batches_by_length, pad

LENGTHS = random.Random(0).choices(range(1, 31), k=503)


def padded_tokens(batch: list[int]) -> int:
    return len(batch) * max(LENGTHS[index] for index in batch)


def test_padding_keeps_the_ids_and_their_lengths():
    sequences = [[4, 5, 6], [7], [8, 9]]
    padded = pad(sequences, value=-1)
    assert padded.ids.shape == (3, 3)
    for row, length, sequence in zip(padded.ids, padded.lengths, sequences, strict=True):
        assert row[:length].tolist() == sequence
        assert (row[length:] == -1).all()


def test_nothing_to_pad_is_refused():
    with pytest.raises(ValueError, match="At least one sequence"):
        pad([])
    with pytest.raises(ValueError, match="Sequence 1 is empty"):
        pad([[1], []])


@pytest.mark.parametrize("option", [{"size": 16}, {"size": 1000}, {"tokens": 100}])
def test_every_sequence_is_in_one_batch(option):
    batches = list(batches_by_length(LENGTHS, seed=0, **option))
    assert sorted(index for batch in batches for index in batch) == list(range(len(LENGTHS)))


def test_batches_have_the_size_or_stay_within_the_tokens():
    sizes = sorted(len(batch) for batch in batches_by_length(LENGTHS, size=16, seed=0))
    assert set(sizes[1:]) == {16}
    batches = list(batches_by_length(LENGTHS, tokens=100, seed=0))
    assert all(padded_tokens(batch) <= 100 for batch in batches)
    assert sum(map(padded_tokens, batches)) / len(batches) > 80


def test_sequences_of_similar_length_meet():
    wasted = sum(map(padded_tokens, batches_by_length(LENGTHS, size=16, seed=0))) - sum(LENGTHS)
    assert wasted < 0.05 * sum(LENGTHS)


def test_the_seed_sets_the_order():
    first, again, other = (list(batches_by_length(LENGTHS, size=16, seed=s)) for s in (0, 0, 1))
    assert first == again
    assert first != other
    longest = [max(LENGTHS[index] for index in batch) for batch in first]
    assert longest != sorted(longest)


@pytest.mark.parametrize(
    ("lengths", "option", "message"),
    [
        ([], {"size": 2}, "At least one sequence"),
        ([1], {}, "either size or tokens"),
        ([1], {"size": 1, "tokens": 1}, "either size or tokens"),
        ([1], {"size": 0}, "got size=0"),
        ([3, 9], {"tokens": 8}, "Sequence 1 has 9 ids, more than tokens=8"),
    ],
)
def test_bad_requests_are_refused_at_once(lengths, option, message):
    with pytest.raises(ValueError, match=message):
        batches_by_length(lengths, seed=0, **option)


def test_ragged_sequences_are_taken_with_padding_in_any_shape():
    sequences = [[5, 6, 7], [8], [9, 4], [1, 1, 1, 1, 1]]
    ragged = Ragged.of(sequences)
    taken = ragged.take(torch.tensor([[2, 0], [1, 1]]))
    assert taken.ids.tolist() == [[[9, 4, 0], [5, 6, 7]], [[8, 0, 0], [8, 0, 0]]]
    assert taken.lengths.tolist() == [[2, 3], [1, 1]]
    everything = ragged.take(torch.arange(4))
    assert everything.ids.tolist() == pad(sequences).ids.tolist()


def test_the_width_of_ragged_sequences_is_rounded_up():
    assert Ragged.of([[1, 2, 3]]).take(torch.tensor([0]), multiple=8).ids.shape == (1, 8)


@pytest.mark.parametrize("sequences", [[], [[1], []]])
def test_ragged_sequences_are_not_empty(sequences):
    with pytest.raises(ValueError, match="no empty one"):
        Ragged.of(sequences)
