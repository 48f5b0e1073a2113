import json
from pathlib import Path

import pytest
import torch

from headwise_papers.core.running import reproduce
from headwise_papers.ops.sen import theoretical_norm
from headwise_papers.training_dynamics import sst
from headwise_papers.training_dynamics._sst_training import Curves, build_stack, read_corpus
from headwise_papers.training_dynamics.sst import EXPECTED, experiment


@pytest.mark.usefixtures("data_folder")
def test_words_of_feeling_win_and_keep_near_the_theory(tmp_path: Path) -> None:
    figures = reproduce("training_dynamics/sst", experiment.smoke, tmp_path / "run")
    assert figures["SST2 TC test accuracy"].mean > 0.66
    assert figures["SST5 TC test accuracy"].mean > 0.28  # the commonest class has 0.29 at most
    assert figures["SST2 TC deviation at the end, median"].mean < 0.12
    top = json.loads((tmp_path / "run" / "top-words.json").read_text())
    assert all("bad" in words[:10] for words in top["sst2 TC"])
    assert {item.metric for item in EXPECTED} <= set(figures)
    for name in ("fig4-words-of-large-scores", "share-of-top-words-close-to-theory"):
        assert (tmp_path / "run" / "pictures" / f"{name}.png").stat().st_size > 5000


def test_a_word_that_left_the_theory_does_not_come_back() -> None:
    off = torch.tensor([0.0, 0.2, 0.05])[:, None, None]
    assert sst._staying(off, 0.1).flatten().tolist() == [1, 0, 0]


def test_a_curve_on_the_theory_is_close_in_both_readings() -> None:
    score = torch.linspace(0.06, 3, 20, dtype=torch.float64)[:, None, None]
    m = torch.tensor([15.0], dtype=torch.float64)
    curves = Curves(torch.arange(20), score, 1.2 * theoretical_norm(score, m))
    off = sst._off(curves, m, start=0.05)
    torch.testing.assert_close(off["point by point"], torch.full_like(score, 0.2))
    torch.testing.assert_close(off["to the eye"][-1], torch.full_like(score[-1], 1 / 6))
    assert off["to the eye"][0].item() < 0.05


@pytest.mark.usefixtures("data_folder")
def test_stacks_of_one_config_start_from_the_same_numbers() -> None:
    corpus = read_corpus("sst2", experiment.smoke)
    first, second = (build_stack("TC", corpus, experiment.smoke) for _ in range(2))
    for name, values in first.parameters.items():
        assert torch.equal(values, second.parameters[name])
    assert not torch.equal(first.parameters["embeddings"][0], first.parameters["embeddings"][1])
