from pathlib import Path

import pytest
import torch

from headwise_papers.core.running import reproduce
from headwise_papers.training_dynamics import predict
from headwise_papers.training_dynamics.predict import EXPECTED, experiment


@pytest.mark.usefixtures("data_folder")
def test_the_state_after_a_tenth_tells_more_than_occurrence(tmp_path: Path) -> None:
    figures = reproduce("training_dynamics/predict", experiment.smoke, tmp_path / "run")
    assert {item.metric for item in EXPECTED} <= set(figures)
    for model in ("FC", "TC"):
        found = {
            ranking: figures[f"{model} {ranking}, share of the top words found"].mean
            for ranking in predict.RANKINGS
        }
        assert found["Eq. 8"] > 0.1 > found["occurrence"]
        assert found["exact speed"] > 0.2
        exact = figures[f"{model} exact speed, rank correlation, all words"].mean
        assert exact > 0.3
    picture = tmp_path / "run" / "pictures" / "early-forecasts-against-final-scores.png"
    assert picture.stat().st_size > 5000


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert predict._ranks(torch.tensor([5.0, 1.0, 5.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]


def test_the_rank_correlation_sees_order_only() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert predict._rank_correlation(x, x.exp()) == pytest.approx([1])
    assert predict._rank_correlation(x, -x) == pytest.approx([-1])
