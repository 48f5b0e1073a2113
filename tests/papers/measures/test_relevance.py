"""s*, s', crossings and agreement, from recorded curves, against the measures themselves."""

import pytest
import torch

from headwise_papers.measures.relevance import (
    Looked,
    agreement,
    at,
    best_step,
    ceiling,
    crossing,
    expected_floor,
    floor,
    from_others,
    highly_ranked,
    mode_match,
    shuffled,
)
from headwise_papers.measures.relevance_curves import RelevanceCurves, schedule

EVALUATIONS, SEEDS, ROWS, KEYS = 4, 3, 50, 45
LENGTHS = torch.randint(1, KEYS + 1, (ROWS,), generator=torch.Generator().manual_seed(9))


def _looked(step):
    rng = torch.Generator().manual_seed(step)
    alpha, beta = (torch.randn(SEEDS, ROWS, KEYS, generator=rng).round() for _ in range(2))
    return Looked(alpha, beta, LENGTHS, torch.rand(SEEDS, ROWS, generator=rng) < 0.5)


@pytest.fixture
def curves():
    recorder = RelevanceCurves(lambda step: [_looked(step)], schedule(1))
    for step in range(EVALUATIONS):
        recorder(step, step)
    return recorder.tensors()


def test_agreement_of_recorded_curves_is_that_of_the_rows_themselves(curves):
    best = best_step(curves["accuracy"]).evaluation
    gold = at(curves["alpha_peak"], best)
    for measure, kind in ((mode_match, "peak"), (highly_ranked, "top")):
        for which in ("alpha", "beta"):
            found = agreement(gold, curves[f"{which}_{kind}"])
            assert found.shape == (EVALUATIONS, SEEDS, SEEDS)
            for e, i, j in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
                gold_alpha = _looked(int(best[i])).alpha[i]
                other = getattr(_looked(e), which)[j]
                wanted = measure(gold_alpha, other, LENGTHS).double().mean()
                torch.testing.assert_close(found[e, i, j], wanted)


def test_agreement_may_be_over_some_rows_only(curves):
    gold, rows = curves["alpha_peak"][0], torch.arange(ROWS) < 7
    for name in ("beta_peak", "beta_top"):
        part = agreement(gold, curves[name], rows=rows)
        assert torch.equal(part, agreement(gold[:, :7], curves[name][:, :, :7]))
    with pytest.raises(ValueError, match="No rows are left"):
        agreement(gold, curves["beta_top"], rows=torch.zeros(ROWS, dtype=torch.bool))


@pytest.mark.usefixtures("unchecked")
def test_rows_of_two_sets_are_not_compared(curves):
    with pytest.raises(ValueError, match="of 9 rows and the curve of 50"):
        agreement(curves["alpha_peak"][0, :, :9], curves["beta_peak"])


def test_the_best_step_is_the_first_maximum():
    accuracy = torch.tensor([[0.1, 0.9], [0.8, 0.9], [0.8, 0.2]])
    best = best_step(accuracy)
    assert best.evaluation.tolist() == [1, 0]
    assert torch.equal(best.value, torch.tensor([0.8, 0.9]))
    with pytest.raises(ValueError, match="at least one evaluation"):
        best_step(torch.zeros(0, 2))


def test_each_seed_is_read_at_its_own_step():
    records = torch.arange(24).view(3, 2, 4)
    assert at(records, torch.tensor([2, 0])).tolist() == [[16, 17, 18, 19], [4, 5, 6, 7]]
    assert at(records, torch.tensor(1)).tolist() == records[1].tolist()
    with pytest.raises(ValueError, match="never crossed"):
        at(records, torch.tensor([2, -1]))
    with pytest.raises(ValueError, match=r"must have the axes \(3,\)"):
        at(records, torch.tensor([0, 0, 0]))


def test_a_model_is_not_compared_with_itself():
    pairs = torch.rand(5, 4, 4)
    found = from_others(pairs)
    for j in range(4):
        others = [i for i in range(4) if i != j]
        torch.testing.assert_close(found[:, j], pairs[:, others, j].mean(1))
    with pytest.raises(ValueError, match="only one; train two"):
        from_others(torch.ones(1, 1))


def test_a_crossing_is_strict_and_first():
    curve = torch.tensor([[0.2, 0.5, 0.0], [0.4, 0.1, 0.0], [0.6, 0.6, 0.4], [0.1, 0.1, 0.1]])
    assert crossing(curve, 0.4).tolist() == [2, 0, -1]
    assert crossing(curve, torch.tensor([0.3, 0.5, -1.0])).tolist() == [1, 2, 0]


def test_the_floor_shuffles_each_row_once(curves):
    gold, top = curves["alpha_peak"][0], curves["beta_top"][1]
    found = floor(gold, top, LENGTHS, torch.Generator().manual_seed(3))
    assert found.shape == (SEEDS, SEEDS)
    # the same shuffle of beta itself; the recorded rows are as wide as their bytes
    beta = torch.nn.functional.pad(_looked(1).beta, (0, 48 - KEYS))
    mixed = shuffled(beta, LENGTHS, torch.Generator().manual_seed(3))
    alpha = torch.nn.functional.pad(_looked(0).alpha, (0, 48 - KEYS))
    wanted = highly_ranked(alpha[:, None], mixed[None], LENGTHS).double().mean(-1)
    torch.testing.assert_close(found, wanted)


def test_floor_and_ceiling_hold_what_is_between():
    lengths = torch.full((2000,), 40)
    alpha = torch.rand(1, 2000, 40)
    noise = 0.02 * torch.rand(3, 2000, 40)
    looked = Looked(alpha + noise, noise, lengths, torch.ones(3, 2000, dtype=torch.bool))
    recorder = RelevanceCurves(lambda model: [looked], schedule(1))
    recorder(0, None)
    kept = recorder.tensors()
    gold, top = kept["alpha_peak"][0], kept["alpha_top"][0]
    assert ceiling(gold, top).min() > 0.9
    low = floor(gold, top, kept["lengths"], torch.Generator().manual_seed(0))
    assert low.mean().item() == pytest.approx(expected_floor(lengths), abs=0.01)
