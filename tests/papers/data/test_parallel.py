"""ParallelData: numbered batches that never depend on what was asked before."""

from collections import Counter

import pytest
import torch

from headwise_papers.data.batches import ParallelData, parallel_batch
from headwise_papers.data.vocabulary import BOS, EOS, PAD

SOURCES = [[10 + i] * (1 + i % 4) for i in range(11)]
TARGETS = [[40 + i] * (1 + i % 3) for i in range(11)]
PER_EPOCH = 4  # 11 pairs, 3 at a time


def data(seed=0):
    return ParallelData(SOURCES, TARGETS, batch_size=3, seed=seed)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_marks_and_padding_stand_where_they_belong():
    batch = parallel_batch([[5, 6], [7]], [[8], [9, 10, 11]])
    assert batch.source.tolist() == [[5, 6, EOS], [7, EOS, PAD]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.target_in.tolist() == [[BOS, 8, PAD, PAD], [BOS, 9, 10, 11]]
    assert batch.target_out.tolist() == [[8, EOS, PAD, PAD], [9, 10, 11, EOS]]
    assert batch.target_lengths.tolist() == [2, 4]


def test_an_empty_sentence_is_only_its_marks():
    batch = parallel_batch([[]], [[]])
    assert (batch.source.tolist(), batch.target_in.tolist()) == ([[EOS]], [[BOS]])


def test_a_batch_depends_on_its_number_alone():
    forwards, backwards = data(), data()
    numbers = range(3 * PER_EPOCH)
    there = [forwards(number) for number in numbers]
    back = [backwards(number) for number in reversed(numbers)][::-1]
    assert all(same(*pair) for pair in zip(there, back, strict=True))


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_every_pair_comes_once_an_epoch_with_its_own_target(epoch):
    seen = Counter()
    for number in range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH):
        batch = data()(number)
        seen.update(zip(batch.source[:, 0].tolist(), batch.target_out[:, 0].tolist(), strict=True))
    assert seen == Counter((10 + i, 40 + i) for i in range(11))


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(data, epoch):
        numbers = range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)
        return [data(number).source[:, 0].tolist() for number in numbers]

    assert order(data(), 0) != order(data(), 1)
    assert order(data(seed=0), 0) != order(data(seed=1), 0)
    assert order(data(seed=0), 0) == order(data(seed=0), 0)


def test_pairs_without_a_partner_are_refused():
    with pytest.raises(ValueError):
        ParallelData(SOURCES, TARGETS[:-1], batch_size=3, seed=0)(0)
