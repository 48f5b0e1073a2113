"""Eq. 10 and its inverse, purity, deviation and the velocities of Eq. 6 to 8."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise_papers.ops.sen import (
    class_counts,
    companions,
    deviation,
    predicted_velocities,
    theoretical_norm,
    theoretical_score,
    topic_purity,
)

DOUBLE = torch.float64


@pytest.mark.parametrize(("score", "m"), [(1.0, 20), (5.0, 20), (0.3, 1), (2.0, 9.5)])
def test_the_norm_is_that_of_equation_10(score, m):
    wanted = math.sqrt(2 * (score + (math.exp(score) - 1) / m))
    assert theoretical_norm(torch.tensor(score, dtype=DOUBLE), m).item() == pytest.approx(
        wanted, rel=1e-15
    )


def test_negative_scores_have_norm_0_and_no_gradient():
    score = torch.tensor([-2.0, -1e-9, 0.0, 1.0], dtype=DOUBLE, requires_grad=True)
    norm = theoretical_norm(score, 20)
    norm.sum().backward()
    assert norm[:3].tolist() == [0, 0, 0]
    assert score.grad[:3].tolist() == [0, 0, 0]
    assert score.grad[3] > 0


@pytest.mark.parametrize("m", [0.01, 1, 20, 1e4])
def test_score_and_norm_are_inverse_to_each_other(m):
    norm = torch.logspace(-5, 2, 500, dtype=DOUBLE)
    score = theoretical_score(norm, m)
    assert ((theoretical_norm(score, m) - norm) / norm).abs().max() < 1e-12
    score = torch.logspace(-5, 2, 500, dtype=DOUBLE)
    again = theoretical_score(theoretical_norm(score, m), m)
    assert ((again - score) / score).abs().max() < 1e-12


def test_norm_and_score_have_the_right_gradients():
    x = torch.tensor([0.1, 1.0, 4.0], dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: theoretical_norm(s, 20), x)
    assert torch.autograd.gradcheck(lambda n: theoretical_score(n, 20), x)


def test_every_word_may_have_its_own_m():
    score, m = torch.ones(2, 3, dtype=DOUBLE), torch.tensor([5.0, 10.0, 20.0], dtype=DOUBLE)
    together = theoretical_norm(score, m)
    for column in range(3):
        assert torch.equal(
            together[:, column], theoretical_norm(score[:, column], m[column].item())
        )


@pytest.mark.parametrize("function", [theoretical_norm, theoretical_score])
def test_an_m_that_counts_nothing_is_refused(function):
    with pytest.raises(ValueError, match="must be positive, got 0"):
        function(torch.ones(2), 0)


def test_negative_norms_are_refused():
    with pytest.raises(ValueError, match="A norm is 0 or more"):
        theoretical_score(torch.tensor([-1.0]), 20)


def test_purity_by_hand():
    # word 1 in three sentences, two positive; word 3 twice in one sentence counts once
    sentences = torch.tensor([[1, 2, 2], [1, 3, 3], [1, 2, 0]])
    labels, lengths = torch.tensor([1, 1, 0]), torch.tensor([3, 3, 2])
    purity = topic_purity(sentences, labels, lengths=lengths, vocabulary=5)
    assert purity.tolist() == pytest.approx([0, 1 / 3, 0, 1, 0])  # 0 is padding, 4 never occurs
    counts = class_counts(sentences, labels, lengths=lengths, vocabulary=5, classes=2)
    assert counts.tolist() == [[0, 0], [1, 2], [1, 1], [0, 1], [0, 0]]


def test_purity_of_more_classes_is_the_largest_share_less_the_mean_of_the_others():
    sentences = torch.tensor([[0], [0], [0], [0], [1]])
    purity = topic_purity(sentences, torch.tensor([0, 0, 1, 2, 3]), vocabulary=2, classes=4)
    assert purity.tolist() == pytest.approx([1 / 2 - (1 / 4 + 1 / 4 + 0) / 3, 1])


def test_seeds_are_counted_apart():
    sentences, labels = torch.randint(6, (3, 10, 4)), torch.randint(2, (3, 10))
    together = topic_purity(sentences, labels, vocabulary=6)
    for seed in range(3):
        alone = topic_purity(sentences[seed], labels[seed], vocabulary=6)
        assert torch.equal(together[seed], alone)


def test_companions_are_the_mean_length_less_one():
    sentences = torch.tensor([[0, 1, 1, 2], [1, 3, 0, 0], [4, 0, 0, 0]])
    m = companions(sentences, lengths=torch.tensor([4, 2, 1]), vocabulary=6)
    assert m[:4].tolist() == [3, 2, 3, 1]
    assert m[4:].isnan().all()


def test_deviation_counts_from_the_start_on():
    score = torch.tensor([[0.01, 0.0], [1.0, 0.0], [2.0, 0.01]], dtype=DOUBLE)
    norm = theoretical_norm(score, 20) * torch.tensor([[5.0], [0.9], [1.02]])
    off = deviation(score, norm, 20)
    assert off.largest[0].item() == pytest.approx(0.1)
    assert off.final[0].item() == pytest.approx(0.02)
    assert off.largest[1].isnan()
    assert off.final[1].isnan()


def _state(n_sentences=12, width=5, vocabulary=9, spread=1.0):
    scores = spread * torch.randn(vocabulary, dtype=DOUBLE)
    vectors = torch.randn(vocabulary, 4, dtype=DOUBLE)
    sentences = torch.randint(vocabulary, (n_sentences, width))
    lengths = torch.randint(2, width + 1, (n_sentences,))
    return scores, vectors, sentences, lengths


def _contexts(scores, vectors, sentences, lengths):
    real = torch.arange(sentences.shape[1]) < lengths[:, None]
    weights = scores[sentences].masked_fill(~real, -torch.inf).softmax(-1)
    return torch.einsum("nt,ntd->nd", weights, vectors[sentences])


def _velocities_and_step(scores, vectors, sentences, lengths, rate):
    """What is predicted, and what one gradient step of the mean loss does, per unit of time."""
    read, labels = torch.randn(4, 3, dtype=DOUBLE), torch.randint(3, (len(sentences),))
    context = _contexts(scores, vectors, sentences, lengths).requires_grad_()
    loss = cross_entropy(context @ read, labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, context)
    predicted = predicted_velocities(
        torch.arange(len(scores)),
        scores=scores,
        vectors=vectors,
        sentences=sentences,
        lengths=lengths,
        gradient=gradient,
    )

    def mean_loss(s, v):
        return cross_entropy(_contexts(s, v, sentences, lengths) @ read, labels)

    s, v = scores.clone().requires_grad_(), vectors.clone().requires_grad_()
    optimizer = torch.optim.SGD([s, v], lr=rate)
    mean_loss(s, v).backward()
    optimizer.step()
    return predicted, (s.detach() - scores) / rate, (v.detach() - vectors) / rate


def test_velocities_are_those_of_one_small_gradient_step():
    predicted, score_speed, vector_speed = _velocities_and_step(*_state(), rate=1e-3)
    torch.testing.assert_close(predicted.vectors, vector_speed, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(predicted.exact_scores, score_speed, rtol=1e-9, atol=1e-11)


def test_equation_8_is_exact_where_each_word_is_in_one_sentence():
    scores, vectors, _, _ = _state()
    sentences, lengths = torch.arange(9).view(3, 3), torch.full((3,), 3)
    predicted, score_speed, _ = _velocities_and_step(scores, vectors, sentences, lengths, rate=1e-3)
    torch.testing.assert_close(predicted.scores, score_speed, rtol=1e-9, atol=1e-11)


def test_words_that_never_occur_or_stand_alone_keep_their_score():
    scores, vectors, _, _ = _state()
    sentences, lengths = torch.tensor([[0, 1], [2, 2]]), torch.tensor([2, 1])
    predicted, score_speed, _ = _velocities_and_step(scores, vectors, sentences, lengths, rate=1e-3)
    assert predicted.scores[2:].tolist() == [0] * 7
    torch.testing.assert_close(predicted.exact_scores, score_speed, rtol=1e-9, atol=1e-11)
    assert predicted.vectors[3:].abs().max() == 0
