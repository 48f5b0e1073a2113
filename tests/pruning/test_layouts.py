"""Fused, gated and normed projections: cut heads are as good as masked ones, also when saved."""

import copy

import pytest
import torch

from headwise.hf import adopt
from headwise.hf.projections import input_projections
from headwise.pruning.cutting import prune
from headwise.pruning.saving import load, save
from headwise.sites import find_sites, masked
from tests.pruning.layouts import LAYOUTS, SPEAKING, batch_of, built
from tests.pruning.shrinking import bare_keep, removed, uneven_keep

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def run(model, name):
    """The first output of a batch."""
    with torch.no_grad():
        return model(**batch_of(name))[0]


def told(model, ids):
    """What a model says next, with and without a cache."""
    return [
        model.generate(ids, max_new_tokens=5, do_sample=False, use_cache=cached, pad_token_id=0)
        for cached in (True, False)
    ]


@pytest.mark.parametrize("choose", [uneven_keep, bare_keep])
@pytest.mark.parametrize("backend", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_pruned_model_is_the_masked_one_also_when_loaded(name, backend, choose, tmp_path):
    model = adopt(built(name, backend))
    keep = choose(model)
    whole = run(model, name)
    with masked(model, removed(model, keep)):
        wanted = run(model, name)
    assert not torch.allclose(whole, wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(run(prune(model, keep), name), wanted, **CLOSE)
    save(model, tmp_path / "small")
    again = load(tmp_path / "small")
    assert again.config._attn_implementation == backend
    torch.testing.assert_close(run(again, name), wanted, **CLOSE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_loaded_model_is_pruned_once_more(name, tmp_path):
    model = adopt(built(name))
    save(prune(model, uneven_keep(model)), tmp_path / "small")
    site = find_sites(model)[-1].name
    again = prune(adopt(load(tmp_path / "small")), {site: []})
    torch.testing.assert_close(run(again, name), run(prune(model, {site: []}), name))


def test_sites_that_are_numbered_anew_are_not_taken_for_others(tmp_path):
    """Swin's layers are numbered within a stage, so that a lost one changes the others' names."""
    model = adopt(built("Swin"))
    save(prune(model, {"encoder.0.self": []}), tmp_path / "small")
    again = adopt(load(tmp_path / "small"))
    with pytest.raises(ValueError, match=r"encoder\.0\.self has 4 heads, but 0 by the record of"):
        prune(again, {"encoder.1.self": [0]})


@pytest.mark.parametrize("choose", [uneven_keep, bare_keep])
@pytest.mark.parametrize("name", SPEAKING)
def test_a_pruned_model_goes_on_with_a_text_as_the_masked_one(name, choose):
    model, ids = adopt(built(name)), batch_of(name)["input_ids"]
    keep = choose(model)
    with masked(model, removed(model, keep)):
        wanted = told(model, ids)
    for got, text in zip(told(prune(model, keep), ids), wanted, strict=True):
        assert torch.equal(got, text)


def test_copies_of_a_model_that_asks_its_configuration_for_heads_are_alike():
    """Phi-3's modules have a view of the configuration each, and share its backend."""
    model = prune(adopt(built("Phi-3")), {"decoder.0.self": [0, 1]})
    wanted, copied = run(model, "Phi-3"), copy.deepcopy(model)
    assert torch.equal(run(copied, "Phi-3"), wanted)
    held = copied.model.layers[0].self_attn.config
    assert isinstance(held, type(copied.config)) and held.num_attention_heads == 2
    assert copied.config.num_attention_heads == 4
    copied.config._attn_implementation_internal = "eager"
    assert held._attn_implementation == "eager"
    assert model.config._attn_implementation != "eager"


def test_equal_layers_of_phi_3_are_what_transformers_loads(tmp_path):
    model = adopt(built("Phi-3"))
    prune(model, {"decoder.0.self": [0, 1], "decoder.1.self": [2, 3]})
    assert model.config.num_attention_heads == 2
    save(model, tmp_path / "small")
    again = type(model).from_pretrained(tmp_path / "small", attn_implementation="sdpa")
    torch.testing.assert_close(run(again, "Phi-3"), run(model, "Phi-3"))


def test_what_lies_together_in_a_fused_layer_is_told():
    for name, by_head in (("GPT-NeoX", True), ("Phi-3", False), ("Qwen3-Next", True)):
        model = adopt(built(name))
        first = input_projections(model, find_sites(model)[0])[0]
        assert first.by_head == by_head and len(first.blocks) > 1
