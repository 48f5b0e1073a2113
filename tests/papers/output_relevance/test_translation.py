from pathlib import Path

import pytest
import torch

from headwise_papers.core.running import reproduce
from headwise_papers.output_relevance import _translation
from headwise_papers.output_relevance.translation import EXPECTED, compare, experiment


def test_uniform_relevance_foretells_attention_and_nothing_is_trained_twice(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = reproduce("output_relevance/translation", experiment.smoke, tmp_path / "run")
    chance = figures["multi30k: random baseline"].mean
    assert 0.04 < chance < 0.12
    assert figures["multi30k: hr(alpha*, beta_unif)"].mean > 2 * chance
    assert figures["multi30k: ceiling, another normal run"].mean > 2 * chance
    assert figures["multi30k: best accuracy"].mean > 0.05  # of 1000 pieces
    assert figures["early: alpha starts at the baseline"].mean == 1
    wanted = {item.metric for item in EXPECTED if not item.metric.startswith("iwslt14")}
    assert wanted <= set(figures)
    for name in ("figure-2-right", "table-1"):
        assert (tmp_path / "run" / "pictures" / f"{name}.png").stat().st_size > 5000
    assert (tmp_path / "run" / "multi30k" / "bleu.json").is_file()

    monkeypatch.delattr(_translation, "train_stack")
    assert reproduce("output_relevance/translation", experiment.smoke, tmp_path / "run") == figures


def test_the_curve_that_passes_half_of_the_ceiling_at_an_earlier_evaluation_is_first() -> None:
    steps = torch.tensor([0, 1, 2, 10])
    beta_ER = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.5, 0.1, 0.5], [0.5, 0.1, 0.5]])
    alpha_ER = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.1, 0.5], [0.9, 0.9, 0.9]])
    found = compare(steps, alpha_ER.double(), beta_ER.double(), ceiling=0.8)
    assert found["beta before alpha"].tolist() == [True, False, False]  # a tie is not before
    assert found["lead of beta in updates"].tolist() == [9, 0]
    assert found["update at which beta passes half"].tolist() == [1, 2]
    # until alpha's mean has passed, at update 10: (0.25 + 0.5 + 8 * 0.05) / 10 in the first run
    assert found["area between the curves"][0].item() == pytest.approx(0.115)


def test_a_curve_that_never_passes_half_is_never_first() -> None:
    steps, flat_ER = torch.tensor([0, 1, 2]), torch.full((3, 2), 0.1).double()
    found = compare(steps, flat_ER, flat_ER + 0.05, ceiling=0.8)
    assert found["beta before alpha"].tolist() == [False, False]
    assert found["beta above alpha while alpha learns"].tolist() == [True, True]
    assert not len(found["lead of beta in updates"])
