"""The last checkpoints are kept, and their mean is the mean."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from headwise.recording import Run
from headwise.training import CHECKPOINT, average_checkpoints, fit, keep_weights, kept_checkpoints
from tests.training.noise import CONFIG, batch, make_model, mean_loss

PLAIN = replace(CONFIG, precision="float32", accumulate=1, patience=0, steps=22)


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", PLAIN) as run:
        yield run


def test_the_mean_is_that_of_the_last_checkpoints(run):
    seen = {}

    def watch(model):
        seen[5 * len(seen) + 5] = {k: v.double() for k, v in model.state_dict().items()}
        return {"figure": 0.0}

    model, config = make_model(), replace(PLAIN, evaluate_every=5)
    fit(model, mean_loss, batch, run=run, config=config, evaluate=watch)
    assert kept_checkpoints(run) == [f"checkpoints/{step}.safetensors" for step in (15, 20, 22)]
    final = {name: value.double() for name, value in model.state_dict().items()}
    for last, parts in ((None, [seen[15], seen[20], final]), (2, [seen[20], final]), (1, [final])):
        mean = average_checkpoints(run, last=last)
        assert mean.keys() == final.keys()
        for name, value in mean.items():
            assert torch.equal(value, (sum(part[name] for part in parts) / len(parts)).float())


def test_only_floating_point_numbers_are_averaged(run):
    class Counting(nn.Module):
        def __init__(self, weight, count):
            super().__init__()
            self.register_buffer("weight", torch.tensor(weight, dtype=torch.bfloat16))
            self.register_buffer("count", torch.tensor(count))

    keep_weights(run, Counting(1.0, 10).state_dict(), step=9)
    keep_weights(
        run, Counting(2.0, 21).state_dict(), step=10
    )  # 10 comes after 9, though not as a text
    mean = average_checkpoints(run)
    assert mean["weight"].dtype == torch.bfloat16 and mean["weight"].item() == 1.5
    assert mean["count"].item() == 21


def test_without_keeping_the_only_checkpoint_is_the_mean(run):
    model = make_model()
    fit(model, mean_loss, batch, run=run, config=replace(PLAIN, average=1))
    assert kept_checkpoints(run) == []
    mean = average_checkpoints(run)
    make_model().load_state_dict(mean)
    assert all(torch.equal(mean[name], value) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match=r"kept one checkpoint, but last=2 .* larger FitConfig"):
        average_checkpoints(run, last=2)


def test_more_than_was_kept_is_refused(run):
    fit(make_model(), mean_loss, batch, run=run, config=PLAIN)
    for last in (0, 4):
        with pytest.raises(ValueError, match=f"between 1 and the 3 checkpoints .* got {last}"):
            average_checkpoints(run, last=last)


def test_a_run_without_a_checkpoint_is_refused(run):
    with pytest.raises(ValueError, match=rf"has no {CHECKPOINT}"):
        average_checkpoints(run)
