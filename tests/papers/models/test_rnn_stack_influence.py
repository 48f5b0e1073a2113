"""RnnClassifierStack.influence: what token_influence gives for each of its models alone."""

import pytest
import torch

from headwise_papers.measures.influence import token_influence
from headwise_papers.models.rnn import RnnClassifier, RnnClassifierConfig
from headwise_papers.models.rnn_stack import RnnClassifierStack

LENGTHS, LABELS = torch.tensor([9, 4, 1]), torch.tensor([1, 0, 2])


def _stack(words):
    variants = ("normal", "uniform", "frozen", "normal")
    configs = [
        RnnClassifierConfig(words, classes=3, embedding=6, hidden=8, attention=5, variant=variant)
        for variant in variants
    ]
    return RnnClassifierStack([RnnClassifier(config) for config in configs])


# 7 words are fewer than the 27 positions, so that training looks them up after the input layer
@pytest.mark.parametrize("words", [7, 90])
def test_influence_is_that_of_each_model_alone(words):
    stack, tokens = _stack(words), torch.randint(words, (3, 9))
    found = stack.influence(tokens, LENGTHS, LABELS)
    for seed in range(stack.seeds):
        wanted = token_influence(stack.model(seed), (tokens, LENGTHS), LABELS)
        torch.testing.assert_close(found[seed], wanted)
    assert found.abs().amax() > 1e-3


def test_influence_leaves_no_gradient_and_needs_no_grad_mode():
    stack, tokens = _stack(7), torch.randint(7, (3, 9))
    with torch.no_grad():
        found = stack.influence(tokens, LENGTHS, LABELS)
    assert not found.requires_grad
    assert all(weight.grad is None for weight in stack.weights.values())
    assert not found[:, 1, 4:].any()  # padding
