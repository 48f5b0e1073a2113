"""RelevanceCurves: what it keeps is what the measures need, and nothing is lost on the way."""

import pytest
import torch

from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule
from headwise_papers.ops.relevance import (
    Looked,
    highly_ranked,
    holds,
    mode_match,
    peak_positions,
    top_positions,
    unpacked,
)

LENGTHS = torch.tensor([9, 3, 30, 25, 1])


def _looked(step, keys=30):
    rng = torch.Generator().manual_seed(step)
    alpha, beta = (torch.randn(2, 5, keys, generator=rng) for _ in range(2))
    return Looked(alpha, beta, LENGTHS, torch.rand(2, 5, generator=rng) < 0.5)


def _chunks(looked):
    """The same rows in two chunks, the second of them cut to its longest row."""
    yield Looked(*(x[:, :2, :9] for x in looked[:2]), looked.lengths[:2], looked.right[:, :2])
    yield Looked(*(x[:, 2:] for x in looked[:2]), looked.lengths[2:], looked.right[:, 2:])


def _recorder(at=lambda step: True):
    return RelevanceCurves(lambda step: _chunks(_looked(step)), at)


def test_it_keeps_what_every_measure_needs():
    recorder = _recorder()
    for step in range(3):
        recorder(step, step)
    kept = recorder.tensors()
    assert kept["step"].tolist() == [0, 1, 2]
    assert torch.equal(kept["lengths"].long(), LENGTHS)
    for step in range(3):
        looked = _looked(step)
        alpha, beta = looked.alpha, looked.beta
        assert torch.equal(kept["accuracy"][step], looked.right.double().mean(1))
        assert torch.equal(kept["alpha_peak"][step].long(), peak_positions(alpha, LENGTHS))
        match = kept["alpha_peak"][step] == kept["beta_peak"][step]
        assert torch.equal(match, mode_match(alpha, beta, LENGTHS))
        ranked = holds(kept["beta_top"][step], kept["alpha_peak"][step])
        assert torch.equal(ranked, highly_ranked(alpha, beta, LENGTHS))
        top = unpacked(kept["alpha_top"][step])[..., :30]
        assert torch.equal(top, top_positions(alpha, LENGTHS))


def test_it_keeps_little():
    recorder = _recorder()
    recorder(0, 0)
    kept = recorder.tensors()
    assert kept["alpha_peak"].dtype == kept["beta_peak"].dtype == torch.int32
    assert kept["beta_top"].dtype == torch.uint8 and kept["beta_top"].shape == (1, 2, 5, 4)


def test_a_restored_recorder_goes_on():
    whole, first, second = _recorder(), _recorder(), _recorder()
    for step in range(4):
        whole(step, step)
    for step in range(2):
        first(step, step)
    second.restore(first.tensors())
    for step in (2, 3):
        second(step, step)
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value)


def test_one_that_has_seen_nothing_can_be_restored_too():
    recorder = _recorder(schedule(5))
    recorder.restore(_recorder().tensors())
    recorder(5, 5)
    assert recorder.tensors()["step"].tolist() == [5]


def test_it_looks_when_it_is_time():
    recorder = _recorder(schedule(2, until=4, then=5))
    for step in range(12):
        recorder(step, step)
    assert recorder.tensors()["step"].tolist() == [0, 2, 4, 5, 10]


def test_the_papers_schedule_is_every_ten_steps_and_then_every_fifty():
    at = schedule(10, until=100, then=50)
    assert [s for s in range(260) if at(s)] == [*range(0, 101, 10), 150, 200, 250]
    with pytest.raises(ValueError, match="must be 1 or more, got 0 and None"):
        schedule(0)


def test_no_gradients_are_kept():
    weight = torch.ones(2, 5, 30, requires_grad=True)

    def read(model):
        assert not torch.is_grad_enabled()
        looked = _looked(0)
        yield looked._replace(alpha=looked.alpha * weight)

    RelevanceCurves(read, schedule(1))(0, None)


def test_other_rows_than_before_are_refused():
    recorder = RelevanceCurves(lambda looked: [looked], schedule(1))
    recorder(0, _looked(0))
    with pytest.raises(ValueError, match="At step 1 the rows have other lengths than at step 0"):
        recorder(1, _looked(1)._replace(lengths=LENGTHS.flip(0)))
    with pytest.raises(ValueError, match="`read` gave no rows"):
        RelevanceCurves(lambda model: [], schedule(1))(0, None)


@pytest.mark.usefixtures("unchecked")
def test_rows_without_an_axis_for_seeds_are_refused():
    rows = torch.eye(3)
    looked = Looked(rows, rows, torch.tensor([3, 3, 3]), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"for one model add an axis with \[None\]"):
        RelevanceCurves(lambda model: [looked], schedule(1))(0, None)
