"""Output relevance of Transformers runs end to end, on our model and on an adopted one."""

from headwise.experiments.relevance.transformer import KINDS, experiment
from headwise.experiments.running import reproduce
from headwise.ops.relevance import unpacked
from headwise.recording.run import Run


def test_uniform_attention_has_no_peak_and_trained_attention_has(data_folder, tmp_path):
    figures = reproduce("relevance/transformer", experiment.smoke, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    for kind in KINDS:
        normal, uniform = (
            run.load_tensors(f"trace/{kind}-{variant}/curves.safetensors")
            for variant in ("normal", "uniform")
        )
        positions = normal["lengths"].double().mean()
        highly_ranked = {
            name: unpacked(trace["alpha_top"][-1]).sum(-1).double().mean()
            for name, trace in (("normal", normal), ("uniform", uniform))
        }
        assert highly_ranked["uniform"] > 0.95 * positions > 4 * highly_ranked["normal"]
        assert not (normal["beta_peak"][0] == normal["beta_peak"][-1]).all()
    assert all(0 <= estimate.mean <= 1 for estimate in figures.values())
    assert run.has("pictures/curves.png")
