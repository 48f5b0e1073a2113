"""Batches use every sequence once."""

import doctest
import random

import pytest

from headwise.text import batching
from headwise.text.batching import Epochs, batches_by_length

LENGTHS = random.Random(0).choices(range(1, 31), k=503)


def padded_tokens(batch: list[int]) -> int:
    return len(batch) * max(LENGTHS[index] for index in batch)


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


def width(batch: list[int], multiple: int) -> int:
    return -(-max(LENGTHS[index] for index in batch) // multiple) * multiple


def test_token_budgets_leave_few_shapes():
    batches = list(batches_by_length(LENGTHS, tokens=256, multiple=8, seed=0))
    assert sorted(index for batch in batches for index in batch) == list(range(len(LENGTHS)))
    assert all(len(batch) * width(batch, 8) <= 256 for batch in batches)
    shapes = {(len(batch), width(batch, 8)) for batch in batches}
    assert len(shapes) <= 30 // 8 + 2  # a shape a width, and that of the last batch


def test_a_sequence_that_is_too_long_once_rounded_is_refused():
    with pytest.raises(ValueError, match="Sequence 0 has 9 ids, more than tokens=12"):
        batches_by_length([9], tokens=12, multiple=8, seed=0)
    with pytest.raises(ValueError, match="a multiple of at least 1, got 0"):
        batches_by_length([9], tokens=12, multiple=0, seed=0)


@pytest.mark.parametrize("option", [{"size": 16}, {"tokens": 100}, {"tokens": 96, "multiple": 4}])
def test_every_epoch_has_every_sequence_once_in_an_order_of_its_own(option):
    batches = Epochs(LENGTHS, list, seed=3, **option)
    epochs = [
        [batches(number) for number in range(first, first + len(batches))]
        for first in range(0, 3 * len(batches), len(batches))
    ]
    for epoch in epochs:
        assert sorted(index for batch in epoch for index in batch) == list(range(len(LENGTHS)))
    assert epochs[0] != epochs[1] != epochs[2]


def test_batches_of_epochs_are_the_same_whatever_was_asked_before():
    numbers = [700, 3, 0, 90_000, 3, 701]
    together = Epochs(LENGTHS, list, tokens=100, seed=3)
    assert [together(number) for number in numbers] == [
        Epochs(LENGTHS, list, tokens=100, seed=3)(number) for number in numbers
    ]
    assert together(0) != Epochs(LENGTHS, list, tokens=100, seed=4)(0)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(batching)
    assert result.attempted > 0
    assert result.failed == 0
