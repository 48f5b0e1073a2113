"""Gates compiled, in several processes, in `fit`, and killed."""

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from headwise.pruning import Gates, Target, penalised
from headwise.recording import Run
from headwise.training import CHECKPOINT, FitConfig, fit
from tests.alone import run_alone
from tests.support.small_transformer import SmallConfig, SmallTransformer

SHAPE = SmallConfig(heads=2, encoder_layers=1)
CONFIG = FitConfig(steps=12, accumulate=2, log_every=4, checkpoint_every=4, warmup=0)


@pytest.mark.slow
def test_a_gated_model_is_one_compiled_graph():
    out = run_alone("-m", "tests.pruning.gates_compiling")
    assert "translator draws, outputs and gradients agree" in out and "bert draws" in out


@pytest.mark.slow
def test_two_processes_draw_the_same_and_learn_from_both(tmp_path):
    run_alone("-m", "tests.pruning.gates_processes", str(tmp_path))
    one, first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", 0, 1))
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name
        torch.testing.assert_close(one[name], tensor, atol=1e-5, rtol=1e-4)
    assert not torch.equal(first["draw.0"], first["draw.1"])


def batch(number):
    generator = torch.Generator().manual_seed(number)
    source = torch.randint(9, (2, 4), generator=generator)
    return source, torch.full((2,), 4), torch.randint(9, (2, 3), generator=generator)


def summed(model, inputs):
    scores = model(*inputs)
    return cross_entropy(scores.flatten(0, 1), inputs[2].flatten(), reduction="sum"), 6


class KilledError(Exception):
    pass


def trained(folder, *, stop=0):
    def progress(step, metrics):
        if step == stop:
            raise KilledError

    torch.manual_seed(0)
    model = SmallTransformer(SHAPE)
    gates = Gates(model)
    target = Target(gates, 2, steps=12)
    loss = penalised(summed, gates, target, every=2)
    with Run.create(folder, CONFIG) as run:
        fit(model, loss, batch, run=run, config=CONFIG, progress=progress)
        return gates, target, run.load_tensors(CHECKPOINT)


def test_a_killed_fit_goes_on_with_the_same_draws_and_control(tmp_path):
    gates, target, whole = trained(tmp_path / "whole")
    with pytest.raises(KilledError):
        trained(tmp_path / "again", stop=8)
    _, _, again = trained(tmp_path / "again")
    assert int(target.updates) == 12 and int(gates.draws) == 24
    for name, tensor in whole.items():
        assert torch.equal(again[name], tensor), name
    assert gates.open_heads == 2


def test_the_penalty_is_added_to_the_mean_of_a_sum():
    model = SmallTransformer(SHAPE).eval()
    gates = Gates(model, initial=1.0)
    loss = penalised(summed, gates, 0.5, normalise="reference_code")
    total, number = loss(model, batch(0))
    plain, _ = summed(model, batch(0))
    added = 0.5 * gates.penalty("reference_code")
    torch.testing.assert_close(total / number, plain / 6 + added)
    scalar = penalised(lambda model, inputs: summed(model, inputs)[0], gates, 0.5)
    torch.testing.assert_close(scalar(model, batch(0)), plain + 0.5 * gates.penalty())
