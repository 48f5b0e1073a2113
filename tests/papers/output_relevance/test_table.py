"""The measures of Table 1: what the paper's words say, from records made by hand."""

import pytest
import torch

from headwise_papers.ops.relevance import expected_floor, packed, peak_positions, top_positions
from headwise_papers.output_relevance._runs import (
    gold_attention,
    lucky_floor,
    on_rows,
    paired,
    table_row,
)

KEYS, ROWS, EVALUATIONS = 40, 300, 4
LENGTHS = torch.full((ROWS,), KEYS)


def _traces(scores_ESNK, accuracy):
    return {
        "step": torch.tensor([0, 10, 20, 70]),
        "lengths": LENGTHS,
        "accuracy": torch.tensor(accuracy, dtype=torch.float64),
        **{f"{x}_peak": peak_positions(scores_ESNK, LENGTHS).int() for x in ("alpha", "beta")},
        **{f"{x}_top": packed(top_positions(scores_ESNK, LENGTHS)) for x in ("alpha", "beta")},
    }


def _noise(generator, runs):
    return torch.rand(EVALUATIONS, runs, ROWS, KEYS, generator=generator)


def _records():
    """Normal runs look at position 7 from evaluation 2 on, uniform ones find it in evaluation 1."""
    generator = torch.Generator().manual_seed(0)
    normal, uniform = _noise(generator, 3), _noise(generator, 3)
    normal[2:, ..., 7] = 2
    uniform[1, ..., 7] = 2
    accuracy = [[0.5] * 3, [0.6, 0.7, 0.8], [0.9] * 3, [0.9] * 3]
    return _traces(normal, accuracy), _traces(uniform, [[x] * 3 for x in (0.5, 0.6, 0.7, 0.8)])


def test_a_row_says_when_and_how_well_relevance_foretells_attention():
    normal, uniform = _records()
    assert (gold_attention(normal) == 7).all()
    row = table_row(normal, uniform)
    assert row.hr.tolist() == [1, 1, 1]
    assert row.hr_at_best.max() < 0.15  # the uniform runs are best at the end
    assert row.hr_at_end.max() < 0.15
    assert row.ceiling.tolist() == [1, 1, 1]
    assert row.best.tolist() == [0.9] * 3
    assert row.passes.tolist() == [0, 0, 0]  # nothing exceeds 1
    assert row.s.tolist() == [70, 70, 70]
    assert "sst: s" not in row.results("sst")
    assert row.results()["other runs pass hr"].kind == "share"


def test_a_value_is_that_of_one_pair_of_runs():
    normal, uniform = _records()
    lost = {**uniform, "beta_top": uniform["beta_top"].clone()}
    lost["beta_top"][:, 1] = 0  # the second uniform run ranks nothing highly
    assert table_row(normal, lost).hr.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="train as many runs of each kind"):
        paired(gold_attention(normal), uniform["beta_top"][:, :2])


def test_s_is_the_first_update_above_and_accuracy_there_is_that_of_the_others():
    normal, uniform = _records()
    weaker = {**uniform, "beta_top": uniform["beta_top"][[0, 0, 0, 0]]}
    late = {**normal, "accuracy": normal["accuracy"].clone()}
    late["accuracy"][2] = torch.tensor([0.5, 0.6, 0.7])
    row = table_row(late, weaker)
    assert row.passes.all()
    passed = row.s == 20  # by chance noise may pass noise earlier
    torch.testing.assert_close(
        row.accuracy_at_s[passed], torch.tensor([0.65, 0.6, 0.55]).double()[passed]
    )


def test_the_lucky_floor_is_above_the_expected_one():
    generator = torch.Generator().manual_seed(0)
    lucky = lucky_floor(LENGTHS, (50, 200), generator)
    assert (lucky > expected_floor(LENGTHS)).all()
    single = lucky_floor(LENGTHS, (1, 2000), generator)
    assert abs(single.mean().item() - expected_floor(LENGTHS)) < 0.002


def test_some_rows_leave_accuracy_alone():
    normal, _ = _records()
    some = on_rows(normal, torch.arange(ROWS) < 5)
    assert some["alpha_top"].shape == (EVALUATIONS, 3, 5, KEYS // 8)
    assert some["beta_peak"].shape == (EVALUATIONS, 3, 5)
    assert len(some["lengths"]) == 5
    assert torch.equal(some["accuracy"], normal["accuracy"])
