from pathlib import Path

import torch

from headwise_papers.core.running import reproduce
from headwise_papers.training_dynamics import cnn
from headwise_papers.training_dynamics.cnn import EXPECTED, QUERIES, experiment


def test_score_and_norm_of_topic_pairs_grow_together_and_others_stay_behind(tmp_path: Path) -> None:
    figures = reproduce("training_dynamics/cnn", experiment.smoke, tmp_path / "run")
    for query in QUERIES:
        assert figures[f"{query}: topic pairs whose score and norm grow together"].mean == 1
        assert figures[f"{query}: test accuracy"].mean > 0.9
        for what in ("score", "norm"):
            related = figures[f"{query}: others' {what} over topic pairs'"].mean
            unrelated = figures[f"{query}: unrelated others' {what} over topic pairs'"].mean
            assert unrelated < related < 1
    assert {item.metric for item in EXPECTED} <= set(figures)
    for name in ("fig8-distributions", "fig9-sen"):
        assert (tmp_path / "run" / "pictures" / f"{name}.png").stat().st_size > 5000


def test_models_of_a_seed_differ_in_the_length_of_the_query_alone() -> None:
    stack = cnn._stack(experiment.smoke)
    shape = (len(QUERIES), experiment.smoke.seeds)
    assert torch.allclose(stack.query_norms().view(shape)[0], torch.ones(2, dtype=torch.float64))
    for name, values in stack.parameters.items():
        own = values.unflatten(0, shape)
        if name == "query":
            own = own / own.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(own[0], own[1], rtol=0, atol=1e-15)
