"""ablate: each head off once, alone, and the model as it was afterwards."""

import pytest
import torch
from torch import nn

from headwise.analysis import ablate
from headwise.analysis.importance import ablate_items
from headwise.hf import adopt
from headwise.sites import find_sites, masked
from headwise_papers.models.attention import MultiHeadAttention
from tests.hf.families import batch_of, build


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            MultiHeadAttention(8, heads=2, name=f"encoder.{layer}.self") for layer in range(2)
        )

    def forward(self, x_BTM):
        for layer in self.layers:
            x_BTM = x_BTM + layer(x_BTM, layer.keys_values(x_BTM))
        return x_BTM


@torch.no_grad()
def test_each_head_is_measured_once_with_that_head_alone_off():
    model, off = TwoLayers(), []

    def measure():
        gates = {site.name: [gate.tolist() for gate in site.gates] for site in find_sites(model)}
        off.append(gates)
        return {"number": float(len(off)), "twice": 2.0 * len(off)}

    columns = ablate(model, measure)
    assert off == [
        {"encoder.0.self": [[0, 1]], "encoder.1.self": []},
        {"encoder.0.self": [[1, 0]], "encoder.1.self": []},
        {"encoder.0.self": [], "encoder.1.self": [[0, 1]]},
        {"encoder.0.self": [], "encoder.1.self": [[1, 0]]},
    ]
    assert columns["number"] == {"encoder.0.self": [1, 2], "encoder.1.self": [3, 4]}
    assert columns["twice"] == {"encoder.0.self": [2, 4], "encoder.1.self": [6, 8]}


@torch.no_grad()
def test_a_head_without_weight_in_the_output_costs_nothing_and_others_do():
    model, x = TwoLayers(), torch.randn(3, 5, 8)
    model.layers[1].out.weight[:, 4:] = 0  # what the second head of layer 1 says is not heard
    whole = model(x)
    moved = ablate(model, lambda: {"moved": (model(x) - whole).norm().item()})["moved"]
    assert moved["encoder.1.self"][1] == 0
    assert min(moved["encoder.0.self"]) > 0.01 and moved["encoder.1.self"][0] > 0.01


@torch.no_grad()
def test_the_model_is_as_before_also_after_an_error():
    model, x = TwoLayers(), torch.randn(3, 5, 8)
    whole = model(x)
    ablate(model, lambda: {"nothing": 0.0})
    assert torch.equal(model(x), whole)

    def fail():
        raise RuntimeError("no measure")

    with pytest.raises(RuntimeError, match="no measure"):
        ablate(model, fail)
    assert torch.equal(model(x), whole)
    assert not any(site.gates for site in find_sites(model))


def test_progress_runs_from_none_to_all():
    steps = []
    ablate(TwoLayers(), dict, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("together", [1, 3, 100])
@torch.no_grad()
def test_heads_off_together_cost_what_they_cost_one_by_one(together):
    model, x = TwoLayers().double(), torch.randn(3, 5, 8).double()

    def measure(numbers_N):
        return model(x[numbers_N]).square().sum((1, 2))

    found = ablate_items(model, measure, items=3, together=together)
    whole = measure(torch.arange(3))
    for site in find_sites(model):
        for index in range(site.num_heads):
            with masked(model, {site.name: [index]}):
                alone = measure(torch.arange(3)) - whole
            torch.testing.assert_close(found[site.name][:, index], alone, rtol=1e-12, atol=1e-12)
    assert not any(site.gates for site in find_sites(model))


@torch.no_grad()
def test_heads_of_chosen_sites_alone_are_switched_off():
    model, x = TwoLayers(), torch.randn(2, 5, 8)
    steps = []
    found = ablate_items(
        model,
        lambda numbers_N: model(x[numbers_N]).sum((1, 2)),
        items=2,
        together=1,
        where="encoder.1.*",
        progress=lambda done, total: steps.append((done, total)),
    )
    assert {name: values.shape for name, values in found.items()} == {"encoder.1.self": (2, 2)}
    assert steps == [(0, 2), (1, 2), (2, 2)]


def test_an_adopted_model_is_ablated_in_one_pass():
    model, batch = adopt(build("BART")), batch_of("BART")

    def measure(numbers_N):
        chosen = {name: values[numbers_N] for name, values in batch.items()}
        return model(**chosen).logits.log_softmax(-1)[..., 3].sum(1)

    together = ablate_items(model, measure, items=3, together=24)
    alone = ablate_items(model, measure, items=3, together=1)
    assert len(together) == 6
    for name, values in together.items():
        assert values.abs().max() > 1e-3
        torch.testing.assert_close(values, alone[name], rtol=1e-3, atol=1e-4)


def test_a_measure_must_give_one_number_an_item():
    model = TwoLayers()
    with pytest.raises(ValueError, match=r"one number per item, shape \(3,\), got \(\)"):
        ablate_items(model, lambda numbers: numbers.float().mean(), items=3)
    with pytest.raises(ValueError, match="together must be at least 1, got 0"):
        ablate_items(model, lambda numbers: numbers.float(), items=3, together=0)
