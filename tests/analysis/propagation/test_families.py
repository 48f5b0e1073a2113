"""Relevance in adopted models: conserved in every family, whatever the backend, nothing left."""

import re

import pytest
import torch
import transformers
from torch import nn

from headwise.analysis.propagation import Propagation, head_relevance, top_class
from headwise.hf import adopt
from headwise.hf.projections import output_projection
from headwise.sites import find_sites
from tests.analysis.propagation.tracing import relevances, shares, without_biases
from tests.hf.families import BACKENDS, FAMILIES, batch_of, build, outputs

TEXT = [name for name, family in FAMILIES.items() if family.kind not in ("image", "crossed")]
ONE_STACK = [name for name in TEXT if FAMILIES[name].kind != "two stacks" and name != "ALBERT"]
PLACE = (0, 3, 7)
EXACT = Propagation(eps=0.0)
# these compute norms in float32, whatever the model's dtype
ROUGH = {"Llama", "Qwen2", "T5"}


def adopted(name, backend="sdpa"):
    model = adopt(build(name, backend).double())
    batch = batch_of(name)
    if "encoder_hidden_states" in batch:
        batch["encoder_hidden_states"] = batch["encoder_hidden_states"].double()
    return model, lambda: model(**batch).logits


def close(name):
    return {"abs": 2e-5 if name in ROUGH else 1e-8}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TEXT)
def test_all_relevance_comes_from_the_embeddings(name, backend):
    model, forward = adopted(name, backend)
    without_biases(model)
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    found = relevances(model, forward, PLACE, embeddings, EXACT)
    assert sum(part.sum().item() for part in found) == pytest.approx(1, **close(name))


@pytest.mark.parametrize("rule", ["ratio", "alpha_beta"])
@pytest.mark.parametrize("name", ONE_STACK)
def test_relevance_is_conserved_from_layer_to_layer(name, rule):
    model, forward = adopted(name)
    without_biases(model)
    layers = [m for path, m in model.named_modules() if re.search(r"\.(layers?|h)\.\d+$", path)]
    assert len(layers) == 2
    for found in relevances(model, forward, PLACE, layers, Propagation(rule, eps=0.0)):
        assert found.sum().item() == pytest.approx(1, **close(name))
        assert rule == "ratio" or (found > -1e-9).all()


@pytest.mark.parametrize("name", TEXT)
def test_heads_have_the_relevance_of_what_their_layer_writes(name):
    model, forward = adopted(name)
    without_biases(model)
    found = shares(model, forward, PLACE)
    for site in find_sites(model):
        layer = output_projection(model, site).module
        written = relevances(model, forward, PLACE, [layer], EXACT)
        total = sum(part.sum().item() for part in written)
        assert found[site.name].sum().item() == pytest.approx(total, **close(name))


@pytest.mark.parametrize("rule", ["ratio", "alpha_beta"])
@pytest.mark.parametrize("name", FAMILIES)
def test_backends_agree_and_nothing_is_left_changed(name, rule):
    places = torch.tensor(
        [[0], [2]] if name == "ViT" else [[0, 2], [2, 0], [0, 1]]
    )  # none at padding
    batch = batch_of(name, padding="none" if name == "ViT" else "right")
    by_backend = []
    for backend in BACKENDS:
        model = adopt(build(name, backend))
        before = outputs(model, batch)
        asked = [parameter.requires_grad for parameter in model.parameters()]
        forward = lambda model=model: model(**batch).logits  # noqa: E731
        by_backend.append(head_relevance(model, forward, top_class(places), rule=rule))
        assert torch.equal(outputs(model, batch), before)
        assert [parameter.requires_grad for parameter in model.parameters()] == asked
        assert not any(site.changes for site in find_sites(model))
    sdpa, eager = by_backend
    assert list(sdpa) == [site.name for site in find_sites(model)]
    for site in sdpa:
        assert torch.isfinite(sdpa[site]).all() and sdpa[site].abs().sum() > 0
        torch.testing.assert_close(sdpa[site], eager[site], rtol=1e-2, atol=1e-3)


def test_relevance_goes_through_a_mixture_of_experts():
    config = transformers.MixtralConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    model = adopt(transformers.MixtralForCausalLM(config).eval())
    tokens = torch.randint(4, 60, (2, 6))
    forward = lambda: model(input_ids=tokens).logits  # noqa: E731
    embedding = model.get_input_embeddings()
    (found,) = relevances(model, forward, PLACE, [embedding], EXACT)
    assert found.sum().item() == pytest.approx(1, abs=1e-3)
