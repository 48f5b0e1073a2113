from pathlib import Path

import torch

from headwise_papers.core.running import reproduce
from headwise_papers.data.synthetic import TopicTask
from headwise_papers.training_dynamics import query
from headwise_papers.training_dynamics.query import EXPECTED, MODELS, VARIANCES, experiment


def test_score_and_norm_grow_together_with_a_trained_query(tmp_path: Path) -> None:
    figures = reproduce("training_dynamics/query", experiment.smoke, tmp_path / "run")
    for model in MODELS:
        assert figures[f"{model} words with a positive relation"].mean == 1
        growth = [figures[f"{model} growth of the query, variance {x:g}"].mean for x in VARIANCES]
        assert growth == sorted(growth, reverse=True)
        assert growth[0] > 1
    assert figures["FC deviation, variance 1"].mean < figures["FC deviation, variance 0.1"].mean
    assert {item.metric for item in EXPECTED} <= set(figures)
    picture = tmp_path / "run" / "pictures" / "fig10-trained-query.png"
    assert picture.stat().st_size > 5000


def test_models_of_a_seed_differ_in_the_length_of_the_query_alone() -> None:
    config = experiment.smoke
    task = TopicTask(others=5, dictionary=config.dictionary, train=50, test=10)
    stack = query._stack("TL", config, task)
    shape = (len(VARIANCES), config.seeds)
    squares = stack.query_norms().view(shape).square()
    wanted = torch.tensor(VARIANCES, dtype=torch.float64)[:, None] * squares[2]
    torch.testing.assert_close(squares, wanted)
    for name, values in stack.parameters.items():
        if name != "query":
            own = values.unflatten(0, shape)
            assert torch.equal(own, own[:1].expand_as(own))
