import doctest

import pytest
import torch

from headwise.training import label_smoothed_loss, label_smoothed_sum, loss

PAD = 0


def test_it_is_the_cross_entropy_against_the_smoothed_distribution():
    logits, target = torch.randn(2, 3, 5), torch.randint(1, 5, (2, 3))
    log_p = logits.log_softmax(-1)
    right = log_p.gather(-1, target[..., None])[..., 0]
    wanted = -(0.8 * right + 0.2 * log_p.mean(-1)).mean()
    torch.testing.assert_close(label_smoothed_loss(logits, target, pad=PAD, smoothing=0.2), wanted)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_neither_counts_nor_gets_a_gradient(smoothing):
    logits, target = torch.randn(1, 4, 5), torch.tensor([[2, 4, PAD, PAD]])
    short = label_smoothed_loss(logits[:, :2], target[:, :2], pad=PAD, smoothing=smoothing)
    logits.requires_grad_()
    whole = label_smoothed_loss(logits, target, pad=PAD, smoothing=smoothing)
    whole.backward()
    torch.testing.assert_close(whole.detach(), short)
    assert not logits.grad[:, 2:].any()


def test_smoothing_punishes_certainty():
    sure, target = torch.tensor([[[0.0, 50.0, 0.0]]]), torch.tensor([[1]])
    assert label_smoothed_loss(sure, target, pad=PAD, smoothing=0.0) < 1e-6
    assert label_smoothed_loss(sure, target, pad=PAD, smoothing=0.1) > 1


def test_the_sum_divided_by_its_number_is_the_loss():
    logits, target = torch.randn(2, 4, 5), torch.tensor([[2, 4, PAD, PAD], [1, 1, 3, PAD]])
    total, words = label_smoothed_sum(logits, target, pad=PAD)
    assert words.item() == 5
    torch.testing.assert_close(total / words, label_smoothed_loss(logits, target, pad=PAD))


def test_examples_in_docstrings_hold():
    assert doctest.testmod(loss).failed == 0
