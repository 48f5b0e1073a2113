"""Guidance compiled, in several processes, in `fit`, and killed."""

import pytest
import torch
from safetensors.torch import load_file

import headwise as hw
from headwise.guidance import Plan
from headwise.recording import Run
from headwise.training import FitConfig, fit
from tests.alone import run_alone
from tests.guidance.toy import Toy

CONFIG = FitConfig(steps=6, accumulate=2, log_every=2, checkpoint_every=2, warmup=0)


@pytest.mark.slow
def test_a_guided_model_is_one_compiled_graph():
    out = run_alone("tests/guidance/compiling.py")
    assert "packed_encoder has the same" in out and "padded_roberta has the same" in out


@pytest.mark.slow
def test_two_processes_are_guided_as_one(tmp_path):
    run_alone("-m", "tests.guidance.processes", str(tmp_path))
    one, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", 0, 1))
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name
        torch.testing.assert_close(one[name], tensor, atol=1e-6, rtol=1e-5)


class KilledError(Exception):
    pass


def batch(number):
    return torch.randint(1, 8, (2, 5), generator=torch.Generator().manual_seed(number))


def trained(folder, *, stop=0):
    def progress(step, metrics):
        if step == stop:
            raise KilledError

    torch.manual_seed(0)
    model = Toy()
    guidance = hw.guide(model, Plan(next=1, first=1), steps=6)
    steps = []

    def on_step(step):
        steps.append(step)
        guidance.at_step(step)

    def loss(called, ids):
        return called(ids).square().mean() + guidance.loss()

    with Run.open(folder) if folder.exists() else Run.create(folder, CONFIG) as run:
        fit(model, loss, batch, run=run, config=CONFIG, progress=progress, on_step=on_step)
    return model, guidance, steps


def test_fit_lets_alpha_fall_and_goes_on_the_same_after_it_was_killed(tmp_path):
    whole, guidance, steps = trained(tmp_path / "whole")
    assert steps == [0, 1, 2, 3, 4, 5] and guidance.alpha == pytest.approx(10 / 6)
    with pytest.raises(KilledError):
        trained(tmp_path / "killed", stop=4)
    resumed, _, steps = trained(tmp_path / "killed")
    assert steps == [2, 3, 4, 5]
    for name, tensor in resumed.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name
