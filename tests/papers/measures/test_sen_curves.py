from types import SimpleNamespace

import pytest
import torch

from headwise_papers.data.bags import Bags
from headwise_papers.measures.sen_curves import AttendedWords, SenCurves

BAGS = Bags.of([[0, 1, 2], [1, 3], [0, 3, 3]], [0, 1, 1])


def _attended(**options):
    return AttendedWords(BAGS, **{"scores": lambda model: model, "every": 1, **options})


def test_curves_hold_score_and_norm_of_the_chosen_words():
    recorder = SenCurves(torch.tensor([2, 0]), scores=lambda m: m.s, vectors=lambda m: m.v)
    s, v = torch.randn(5, 3, 4), torch.randn(5, 3, 4, 6)  # epochs, seeds, words, width
    for epoch in range(5):
        recorder(epoch, SimpleNamespace(s=s[epoch], v=v[epoch]))
    curves = recorder.tensors()
    assert torch.equal(curves["score"], s[..., [2, 0]])
    torch.testing.assert_close(curves["norm"], v[..., [2, 0], :].norm(dim=-1))


def test_a_single_model_of_ones_own_is_one_seed():
    embedding = torch.nn.Embedding(4, 6)
    recorder = SenCurves(
        torch.tensor([3]),
        scores=lambda model: model.weight.sum(-1),
        vectors=lambda model: model.weight,
    )
    recorder(0, embedding)
    assert recorder.tensors()["score"].shape == (1, 1, 1)
    assert not recorder.tensors()["norm"].requires_grad


def test_every_seed_may_have_its_own_words():
    words, s = torch.tensor([[0, 1], [2, 3]]), torch.randn(2, 4)
    recorder = SenCurves(words, scores=lambda m: s, vectors=lambda m: torch.randn(2, 4, 3))
    recorder(0, None)
    assert torch.equal(recorder.tensors()["score"][0], s.gather(1, words))


def test_only_some_epochs_are_kept_if_asked():
    recorder = SenCurves(
        torch.tensor([0]), lambda m: torch.zeros(2), lambda m: torch.eye(2), every=3
    )
    for epoch in range(8):
        recorder(epoch, None)
    assert recorder.tensors()["epoch"].tolist() == [0, 3, 6]


def test_a_later_change_of_the_model_does_not_change_what_was_recorded():
    s = torch.zeros(1, 2)
    recorder = SenCurves(
        torch.arange(2), scores=lambda m: s, vectors=lambda m: torch.zeros(1, 2, 3)
    )
    recorder(0, None)
    s += 1
    assert recorder.tensors()["score"].max() == 0


def test_the_attended_word_has_the_largest_score():
    scores = torch.tensor([[0.0, 3.0, 2.0, 1.0], [5.0, 0.0, 1.0, 4.0]])
    assert _attended().attended(scores).tolist() == [[1, 1, 3], [0, 3, 0]]


def test_padding_is_never_attended():
    # the padding of the second sentence is word 0, which has the largest score
    assert _attended().attended(torch.tensor([9.0, 1.0, 0.0, 2.0])).tolist() == [[0, 3, 0]]


def test_attended_words_are_recorded_at_some_epochs():
    recorder = _attended(every=2)
    for epoch in range(4):
        recorder(epoch, torch.tensor([0.0, 3.0, 2.0, 1.0]))
    found = recorder.tensors()
    assert found["epoch"].tolist() == [0, 2]
    assert found["word"].tolist() == [[[1, 1, 3]], [[1, 1, 3]]]


def test_ties_fall_at_random_but_the_same_way_again():
    recorder = _attended()
    picks = torch.stack([recorder.attended(torch.zeros(4), epoch=e) for e in range(200)])
    share = (picks[:, 0, 0, None] == torch.arange(3)).float().mean(0)
    assert share.min() > 0.2
    again = torch.stack([_attended().attended(torch.zeros(4), epoch=e) for e in range(200)])
    assert torch.equal(picks, again)


@pytest.mark.parametrize("make", [_attended, lambda: SenCurves(torch.arange(2), *_tables())])
def test_a_restored_recorder_goes_on(make):
    first, whole = make(), make()
    for epoch in range(4):
        whole(epoch, torch.arange(4.0) + epoch)
    for epoch in range(2):
        first(epoch, torch.arange(4.0) + epoch)
    second = make()
    second.restore(first.tensors())
    for epoch in (2, 3):
        second(epoch, torch.arange(4.0) + epoch)
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value)


def _tables():
    return (lambda scores: scores, lambda scores: torch.outer(scores, torch.ones(3)))
