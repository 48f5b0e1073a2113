"""Output relevance of Transformers runs end to end, on our model and on an adopted one."""

import pytest
import torch

from headwise.recording.run import Run
from headwise_papers.core.running import reproduce
from headwise_papers.ops.relevance import unpacked
from headwise_papers.output_relevance import transformer
from headwise_papers.output_relevance.transformer import EXPECTED, KINDS, Config, experiment


def test_uniform_attention_has_no_peak_and_a_killed_run_goes_on(data_folder, tmp_path, monkeypatch):
    figures = reproduce("output_relevance/transformer", experiment.smoke, tmp_path / "run")
    assert {item.metric for item in EXPECTED} <= set(figures)
    run = Run.open(tmp_path / "run")
    for kind in KINDS:
        normal, uniform = (
            run.load_tensors(f"trace/{kind}-{variant}/001.safetensors")
            for variant in ("normal", "uniform")
        )
        assert normal["step"].tolist() == [0, 10, 20]
        positions = normal["lengths"].double().mean()
        highly_ranked = {
            name: unpacked(trace["alpha_top"][-1]).sum(-1).double().mean()
            for name, trace in (("normal", normal), ("uniform", uniform))
        }
        assert highly_ranked["uniform"] > 0.95 * positions > 4 * highly_ranked["normal"]
        assert not (normal["beta_peak"][0] == normal["beta_peak"][-1]).all()
        assert all(0 <= x <= 1 for x in figures[f"{kind}: hr(alpha*, beta*)"].values)
        claim = figures[f"{kind}: hr above the random baseline"].values
        hr, lucky = (
            figures[f"{kind}: {name}"].values
            for name in ("hr(alpha*, beta_unif)", "random baseline, best of as many shuffles")
        )
        assert list(claim) == [float(ours > luck) for ours, luck in zip(hr, lucky, strict=True)]
    assert run.has("pictures/curves.png")

    # as if it had been killed during the last model
    last = run.path("trace/bert-uniform/001.safetensors")
    before = run.load_tensors("trace/bert-uniform/001.safetensors")
    last.unlink()
    trained, train = [], transformer._recorded

    def remembering(model, *args, **options):
        trained.append(model)
        return train(model, *args, **options)

    monkeypatch.setattr(transformer, "_recorded", remembering)
    assert reproduce("output_relevance/transformer", experiment.smoke, tmp_path / "run") == figures
    assert len(trained) == 1
    again = run.load_tensors("trace/bert-uniform/001.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in before.items())


def test_one_seed_is_refused():
    with pytest.raises(ValueError, match=r"seeds must be 2 or more, .* got 1"):
        Config(seeds=1)
