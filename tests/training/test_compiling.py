"""A compiled model trains the same, and leaves no trace in names."""

from dataclasses import replace

import pytest
import torch

from headwise.recording import Run
from headwise.training import BEST, CHECKPOINT, fit, kept_checkpoints
from headwise.training.checkpoint import checkpoint_weights
from tests.training.noise import CONFIG, batch, evaluate, make_model, mean_loss

PLAIN = replace(CONFIG, precision="float32", accumulate=1, patience=0, steps=6)


def train(folder, config, loss=mean_loss):
    model = make_model()
    with Run.create(folder, config) as run:
        fit(model, loss, batch, run=run, config=config, evaluate=evaluate)
    return model, run


@pytest.fixture
def compiled(monkeypatch):
    """What was compiled; only traced, since to make kernels takes long."""
    seen, real = [], torch.compile

    def tracing(model):
        seen.append(real(model, backend="eager"))
        return seen[-1]

    monkeypatch.setattr(torch, "compile", tracing)
    return seen


def test_the_loss_calls_the_model_compiled_once(tmp_path, compiled):
    called = []

    def loss(model, batch):
        called.append(model)
        return mean_loss(model, batch)

    config = replace(PLAIN, compile=True)
    model, run = train(tmp_path / "compiled", config, loss)
    assert len(compiled) == 1 and all(seen is compiled[0] for seen in called)
    wanted, plain = train(tmp_path / "plain", PLAIN)
    assert len(compiled) == 1
    assert [e["loss"] for e in run.metrics() if "loss" in e] == pytest.approx(
        [e["loss"] for e in plain.metrics() if "loss" in e]
    )
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_files_have_the_plain_names_and_either_kind_goes_on_from_them(tmp_path, compiled):
    model, run = train(tmp_path / "run", replace(PLAIN, compile=True))
    names = set(make_model().state_dict())
    assert set(checkpoint_weights(run)) == names == set(run.load_tensors(BEST))
    assert all(set(run.load_tensors(kept)) == names for kept in kept_checkpoints(run))
    assert set(model.state_dict()) == names
    with Run.open(tmp_path / "run") as again:
        fit(make_model(), mean_loss, batch, run=again, config=replace(PLAIN, steps=8))
    assert again.note(CHECKPOINT)["step"] == "8"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch itself
def test_kernels_train_like_the_model_itself(tmp_path):
    config = replace(PLAIN, compile=True)
    models = [make_model(), make_model()]
    for model, settings in zip(models, (PLAIN, config), strict=True):
        model[1].p = 0.0  # kernels draw other numbers for dropout
        with Run.create(tmp_path / str(settings.compile), settings) as run:
            fit(model, mean_loss, batch, run=run, config=settings)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
