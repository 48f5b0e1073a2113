from pathlib import Path

import pytest

from headwise_papers.core.running import reproduce
from headwise_papers.training_dynamics import transformer
from headwise_papers.training_dynamics.transformer import EXPECTED, VARIANTS, experiment


def test_pure_words_move_further_and_a_finished_training_is_not_done_again(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = reproduce("training_dynamics/transformer", experiment.smoke, tmp_path / "run")
    for variant in VARIANTS:
        if variant.endswith("AdamW"):  # one epoch of SGD moves nothing far
            pure = figures[f"{variant}: value change of pure words"].mean
            assert pure > 1.2 * figures[f"{variant}: value change of mixed words"].mean
            assert figures[f"{variant}: test accuracy"].mean > 0.55
        assert -1 <= figures[f"{variant}: correlation, value change"].mean <= 1
    assert {item.metric for item in EXPECTED} <= set(figures)
    for name in ("sen-curves", "sen-heads", "correlations"):
        assert (tmp_path / "run" / "pictures" / f"{name}.png").stat().st_size > 5000

    for name in ("_learn", "draw_curves", "draw_heads", "draw_correlations"):
        monkeypatch.setattr(transformer, name, lambda *_, **options: None)
    assert reproduce("training_dynamics/transformer", experiment.smoke, tmp_path / "run") == figures
