import pytest
import torch

from headwise_papers.data.bags import Bags


def test_lists_are_padded_and_their_lengths_known():
    bags = Bags.of([[5, 6, 7], [8]], [0, 1])
    assert bags.tokens.tolist() == [[[5, 6, 7], [8, 0, 0]]]
    assert bags.lengths.tolist() == [[3, 1]]
    assert bags.labels.tolist() == [[0, 1]]


def test_a_stack_gives_back_its_seeds():
    parts = [Bags.of([[seed, 1], [2]], [0, seed]) for seed in range(3)]
    stack = Bags.stack(parts)
    assert stack.seeds == 3
    for seed, part in enumerate(parts):
        assert torch.equal(stack.seed(seed).tokens, part.tokens)
        assert torch.equal(stack.seed(seed).labels, part.labels)


def test_repeated_sentences_are_not_copied():
    bags = Bags.of([[1, 2], [2, 3]], [0, 1])
    many = bags.repeated(50)
    assert many.tokens.shape == (50, 2, 2)
    assert many.tokens.data_ptr() == bags.tokens.data_ptr()
    with pytest.raises(ValueError, match="of one seed can be repeated, got those of 50"):
        many.repeated(2)


def test_empty_sentences_are_refused():
    with pytest.raises(ValueError, match="drop empty sentences"):
        Bags.of([[1, 2], []], [0, 1])
    with pytest.raises(ValueError, match="At least one sentence"):
        Bags.of([], [])


def test_labels_of_another_number_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"labels must have shape \(1, 2\)"):
        Bags.of([[1], [2]], [0])
