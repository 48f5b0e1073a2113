"""The cost of guidance is measured of steps that do the same, whoever hosts them."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from headwise.guidance import Plan, guide
from headwise_papers.attention_guidance import _masked_steps, overhead
from headwise_papers.attention_guidance._masked_steps import Settings, from_matrices, guided, plain
from headwise_papers.core.runner import reproduce
from headwise_papers.models import EncoderConfig

CPU = torch.device("cpu")
# without dropout, which the matrices have and guidance has not
STILL = Settings(
    EncoderConfig.tiny(40, dropout=0.0, attention_dropout=0.0, max_length=8), batch=2, length=8
)
HOSTS = list(product((_masked_steps.ROBERTA, _masked_steps.ENCODER), (False, True)))


def test_time_is_measured_of_every_way_and_memory_on_a_gpu_alone(tmp_path):
    folder = tmp_path / "run"
    results = reproduce("attention_guidance/overhead", overhead.SMOKE, folder)
    assert {claim.result for claim in overhead.CLAIMS} <= set(results)
    for name, result in results.items():
        assert name.endswith("of plain") or min(result.values) > 0
        assert len(result.values) == (1 if name.endswith(", ms") else 2)
    assert not any("memory" in name or "GiB" in name for name in results)
    assert (folder / "figures" / "overhead.png").stat().st_size > 5000


def test_results_follow_from_turns_and_bytes():
    seconds = {"plain": [1.0, 2.0, 4.0], "guided": [1.0, 2.1, 5.0], "matrices": [2.0, 4.0, 8.0]}
    held = {"plain": 2**30, "guided": 2**31, "matrices": 2**32}
    config = replace(overhead.SMOKE, checkpointing=False)
    results = overhead.summary(config, "Encoder", overhead.Measured(seconds, held))
    assert results["Encoder: guided over plain, time"].values == (1.0, 1.05, 1.25)
    assert results["Encoder: guided within 1.05 of plain"].values == (1.0, 1.0, 0.0)
    assert results["Encoder: plain, ms"].mean == 2000
    assert results["Encoder: matrices over guided, memory"].mean == 2


def slopes(monkeypatch, way, host, checkpointing):
    """The gradients of a first step."""
    found = []

    class Descent(torch.optim.SGD):
        def __init__(self, parameters, **options):
            super().__init__(parameters, lr=0.0)

        def step(self, closure=None):
            (group,) = self.param_groups
            found.extend(None if x.grad is None else x.grad.clone() for x in group["params"])

    monkeypatch.setattr(torch.optim, "AdamW", Descent)
    trainee = way(STILL, CPU, host=host, checkpointing=checkpointing)
    trainee.step()
    return trainee, found


@pytest.mark.parametrize(("host", "checkpointing"), HOSTS)
def test_both_guided_ways_have_one_loss_and_one_gradient(host, checkpointing, monkeypatch):
    monkeypatch.setattr(_masked_steps, "ALPHA", 1000.0)  # the gradient of guidance matters
    ways = (plain, guided, from_matrices)
    trainees, found = zip(
        *(slopes(monkeypatch, way, host, checkpointing) for way in ways), strict=True
    )
    assert trainees[1].guidance == pytest.approx(trainees[2].guidance, rel=1e-5)
    assert len({round(trainee.own, 4) for trainee in trainees}) == 1
    for mine, wanted in zip(*found[1:], strict=True):
        assert (mine is None) == (wanted is None)
        assert mine is None or torch.allclose(mine, wanted, atol=1e-5, rtol=1e-3)
    own, mine = ([x for x in xs if x is not None] for xs in found[:2])
    assert max((a - b).abs().max() for a, b in zip(own, mine, strict=True)) > 1e-3


def test_nothing_is_reported_of_another_loss(tmp_path, monkeypatch):
    def guide_otherwise(model, plan, **options):
        return guide(model, Plan(next=1), **options)

    monkeypatch.setattr(_masked_steps, "guide", guide_otherwise)
    smoke = replace(overhead.SMOKE, hosts=("Encoder",), checkpointing=False)
    with pytest.raises(ValueError, match=r"Encoder, guided, .* nothing is reported"):
        reproduce("attention_guidance/overhead", smoke, tmp_path / "run")


def test_a_turn_at_least_is_wanted():
    with pytest.raises(ValueError, match="turns=0"):
        overhead.Config(turns=0)
