from pathlib import Path

import pytest
import torch

from headwise_papers.core.running import reproduce
from headwise_papers.training_dynamics import competition
from headwise_papers.training_dynamics.competition import EXPECTED, SENTENCE, experiment


@pytest.mark.usefixtures("data_folder")
def test_the_common_word_leads_at_first_and_the_pure_one_in_the_end(tmp_path: Path) -> None:
    figures = reproduce("training_dynamics/competition", experiment.smoke, tmp_path / "run")
    assert {item.metric for item in EXPECTED} <= set(figures)
    for model in ("FC", "TC"):
        assert figures[f"{model} best has the longer embedding at first"].mean == 1
        assert figures[f"{model} powerful has the larger weight at the end"].mean == 1
        assert figures[f"{model} score of best drops"].mean == 1
        moment = figures[f"{model} powerful overtakes in score, share of training"].mean
        assert 0.1 < moment < 1
    picture = tmp_path / "run" / "pictures" / "fig5-powerful-against-best.png"
    assert picture.stat().st_size > 5000


def test_weights_in_the_sentence_are_a_softmax_of_its_words() -> None:
    score = torch.randn(3, 2, 2 + len(SENTENCE), dtype=torch.float64)
    curves = competition.Curves(torch.arange(3), score, score.abs())
    contest = competition._contest(curves)
    words = score[..., 2:]
    wanted = words[..., SENTENCE.index("best")].exp() / words.exp().sum(-1)
    torch.testing.assert_close(contest.weight_ESX[..., competition.BEST], wanted)
