from pathlib import Path

import pytest
import torch

from headwise_papers.output_relevance.translation import AREA, LEAD, compare
from tests.papers.output_relevance.conftest import missing


def test_uniform_relevance_foretells_attention(data_folder: Path, smoke) -> None:
    found = smoke("translation")
    chance = found["multi30k: random baseline"].mean
    assert 0.04 < chance < 0.12
    assert found["multi30k: hr(alpha*, beta_unif)"].mean > 2 * chance
    assert found["multi30k: ceiling, another normal run"].mean > 2 * chance
    assert found["multi30k: best accuracy"].mean > 0.05  # of 1000 tokens
    assert abs(found["early: alpha at the start - baseline"].mean) < 0.05
    assert not missing("translation", found.results, "early", "multi30k")
    assert found.has_figures("figure-2-right", "table-1")


def test_the_curve_that_passes_half_of_the_ceiling_at_an_earlier_evaluation_is_first() -> None:
    steps = torch.tensor([0, 1, 2, 10])
    beta_ER = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.5, 0.1, 0.5], [0.5, 0.1, 0.5]])
    alpha_ER = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.1, 0.5], [0.9, 0.9, 0.9]])
    found = compare(steps, alpha_ER.double(), beta_ER.double(), ceiling=0.8)
    assert found["beta before alpha"].tolist() == [True, False, False]  # a tie is not before
    assert found[LEAD].tolist() == [9, 0]
    assert found["update at which beta passes half"].tolist() == [1, 2]
    # until alpha's mean has passed, at update 10: (0.25 + 0.5 + 8 * 0.05) / 10 in the first run
    assert found[AREA][0].item() == pytest.approx(0.115)


def test_a_curve_that_never_passes_half_is_never_first() -> None:
    steps, flat_ER = torch.tensor([0, 1, 2]), torch.full((3, 2), 0.1).double()
    found = compare(steps, flat_ER, flat_ER + 0.05, ceiling=0.8)
    assert found["beta before alpha"].tolist() == [False, False]
    assert (found[AREA] > 0).all()
    assert not len(found[LEAD])
