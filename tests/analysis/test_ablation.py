"""ablate: each head off once, alone, and the model as it was afterwards."""

import pytest
import torch
from torch import nn

from headwise.analysis import ablate
from headwise.models.attention import MultiHeadAttention
from headwise.sites import find_sites


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
