"""Padding keeps every id."""

import pytest
import torch

from headwise_papers.data.batches import Ragged, pad


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


def test_padding_may_be_rounded_up():
    padded = pad([[1, 2, 3], [4]], multiple=8)
    assert padded.ids.shape == (2, 8)
    assert padded.lengths.tolist() == [3, 1]
    assert pad([[1] * 8], multiple=8).ids.shape == (1, 8)
