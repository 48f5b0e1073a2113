from pathlib import Path

from headwise_papers.core.running import reproduce
from headwise_papers.training_dynamics.synthetic import EXPECTED, MODELS, experiment


def test_topic_words_follow_the_theory_whatever_classifies(tmp_path: Path) -> None:
    figures = reproduce("training_dynamics/synthetic", experiment.smoke, tmp_path / "run")
    for model in MODELS:
        assert figures[f"{model} test accuracy"].mean == 1
        assert 0 < figures[f"{model} deviation"].high < 0.1
        assert figures[f"{model} topic score"].low > 10 * figures[f"{model} others' score"].high
    assert figures["FC sentences whose topic word is attended"].mean == 1
    assert figures["FC scores above TC"].mean == figures["TC scores above TL"].mean == 1
    assert {item.metric for item in EXPECTED} <= set(figures)
    for picture in ("fig1-distributions", "fig2-sen", "loss"):
        assert (tmp_path / "run" / "pictures" / f"{picture}.png").stat().st_size > 5000
