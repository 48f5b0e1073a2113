from pathlib import Path

from headwise.experiments.running import reproduce
from headwise.experiments.sen.transformer import EXPECTED, VARIANTS, experiment
from headwise.recording.run import Run


def test_pure_words_move_further_than_mixed_ones(data_folder: Path, tmp_path: Path) -> None:
    figures = reproduce("sen/transformer", experiment.smoke, tmp_path / "run")
    for variant in VARIANTS:
        if variant.endswith("AdamW"):  # one epoch of SGD moves nothing far
            pure = figures[f"{variant}: value change of pure words"].mean
            assert pure > figures[f"{variant}: value change of mixed words"].mean
            assert figures[f"{variant}: test accuracy"].mean > 0.55
        assert -1 <= figures[f"{variant}: correlation, value change"].mean <= 1
    assert {item.metric for item in EXPECTED} <= set(figures)
    for name in ("sen-curves", "sen-heads", "correlations"):
        assert (tmp_path / "run" / "pictures" / f"{name}.png").stat().st_size > 5000

    run = Run.open(tmp_path / "run")
    kept = run.names("trace/*/*")
    assert len(kept) == len(VARIANTS) * experiment.smoke.seeds
    times = [run.path(name).stat().st_mtime_ns for name in kept]
    again = reproduce("sen/transformer", experiment.smoke, tmp_path / "run")
    assert again == figures
    assert [run.path(name).stat().st_mtime_ns for name in kept] == times  # nothing trained anew
