"""What is seen at a host's sites is what the host computes: masks, biases and groups."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from headwise.hf import adopt, release
from headwise.ops import softmax_attention, topk_attention
from headwise.sites import observe, replace
from tests.hf.families import (
    BACKENDS,
    CELLS,
    EVERY,
    WITH_CACHE,
    Batch,
    Watch,
    batch_of,
    build,
    cached_steps,
    outputs,
    randomised,
)

HUGE = torch.finfo(torch.float32).min
every_cell = pytest.mark.parametrize(("name", "backend"), CELLS)
both_backends = pytest.mark.parametrize("backend", BACKENDS)


@every_cell
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_statistics_are_those_of_the_weights_an_eager_host_returns(name, backend, padding):
    batch = batch_of(name, padding=padding)
    padded_BQ = batch.get("attention_mask", torch.ones(3, 9)) == 0
    wanted = returned_weights(build(name, "eager"), batch)
    watch = watched(build(name, backend), batch)
    assert count(wanted) == len(watch.seen)
    for site, attended in watch.seen:
        weights_BHQK = wanted[kind_of(name, site)].pop(0)
        blind_BHQ = attended.peak == 0
        if site.endswith("cross") or weights_BHQK.shape[2] != padded_BQ.shape[1]:
            assert not blind_BHQ.any()  # at least one key is real
        else:
            assert not (blind_BHQ & ~padded_BQ[:, None]).any()
        if EVERY[name].kind == "crossed":  # what a blind query carries on depends on the backend
            blind_BHQ = blind_BHQ | padded_BQ[:, None]
        assert_statistics_are_of(attended, weights_BHQK, ~blind_BHQ)


@pytest.mark.parametrize("name", WITH_CACHE)
@both_backends
def test_statistics_of_cached_steps_are_those_of_the_eager_host(name, backend):
    model, watch = adopt(build(name, backend)), Watch()
    steps = cached_steps(build(name, "eager"), name, output_attentions=True)
    with observe(model, watch, where="decoder.*"):
        for step, _ in zip(steps, cached_steps(model, name), strict=True):
            wanted = weights_of(step)
            for site, attended in watch.seen:
                weights_BHQK = wanted[kind_of(name, site)].pop(0)
                assert_statistics_are_of(attended, weights_BHQK, attended.peak > 0)
                assert (attended.peak > 0).all()
            watch.seen.clear()


@both_backends
@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_a_mask_of_the_users_own_with_finite_biases_is_followed(name, backend):
    mask_BHQK = torch.randn(3, 1, 9, 9)
    mask_BHQK[:, :, :, 4] = HUGE
    mask_BHQK[:, :, :, 6] = -math.inf
    batch = {**batch_of(name), "attention_mask": mask_BHQK}
    wanted = returned_weights(build(name, "eager"), batch)
    watch = watched(build(name, backend), batch)
    for site, attended in watch.seen:
        weights_BHQK = wanted[kind_of(name, site)].pop(0)
        assert_statistics_are_of(attended, weights_BHQK, attended.peak > 0)
        assert (attended.mass(keys=torch.arange(9).eq(4).expand(3, 9)) == 0).all()
    with replace(adopt(model := build(name, backend)), softmax_attention):
        replaced = outputs(model, batch)
    torch.testing.assert_close(replaced, outputs(build(name, backend), batch), atol=1e-5, rtol=1e-5)


@both_backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("least", [-1e4, -1e9])
def test_a_mask_that_adds_a_number_as_low_as_people_write_it_hides(least, dtype, backend):
    real_BK = torch.arange(9) < torch.tensor([9, 6, 4])[:, None]
    additive = ((1.0 - real_BK.to(dtype)) * least).clamp(min=torch.finfo(dtype).min)
    batch = {**batch_of("BERT"), "attention_mask": additive[:, None, None].expand(3, 1, 9, 9)}
    plain, model = (build("BERT", backend).to(dtype) for _ in range(2))
    watch = watched(model, batch)
    for _, attended in watch.seen:
        assert attended.scores.bias is None
        assert torch.equal(attended.scores.mask.expand(3, 1, 9, 9)[:, 0, 0], real_BK)
        assert (attended.mass(keys=~real_BK) == 0).all()
    assert torch.equal(outputs(model, batch), outputs(plain, batch))
    with replace(model, softmax_attention):
        tolerance = 1e-5 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(
            outputs(model, batch), outputs(plain, batch), atol=tolerance, rtol=tolerance
        )


@both_backends
def test_a_prefill_into_a_longer_static_cache_is_causal_from_the_first_position(backend):
    """sdpa then gets no mask, a causal flag, and more keys than queries."""
    batch, watch = batch_of("Llama"), Watch()
    eager, model = build("Llama", "eager"), adopt(build("Llama", backend))
    with torch.no_grad(), observe(model, watch):
        wanted = eager(**batch, past_key_values=static_cache(eager), output_attentions=True)
        model(**batch, past_key_values=static_cache(model))
    for weights_BHQK, (_, attended) in zip(wanted.attentions, watch.seen, strict=True):
        assert attended.weights.shape[-1] == 14
        assert_statistics_are_of(attended, weights_BHQK, attended.peak > 0)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_loss_on_statistics_reaches_the_host_with_and_without_checkpointing(checkpointing):
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = adopt(build("BERT", **no_dropout)).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    entropies: list[Tensor] = []
    with observe(model, lambda site, attended: entropies.append(attended.entropy.mean())):
        logits = model(**batch_of("BERT")).logits
    (torch.stack(entropies).sum() + logits.square().mean()).backward()
    torch.testing.assert_close(query_gradients(model), entropy_gradients(), atol=1e-5, rtol=1e-4)


def gemma2(backend: str) -> nn.Module:
    config = hf.Gemma2Config(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        attn_logit_softcapping=2.0,
        query_pre_attn_scalar=8,
        attn_implementation=backend,
    )
    return randomised(hf.Gemma2ForCausalLM(config)).eval()


def gpt_oss() -> nn.Module:
    config = hf.GptOssConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return randomised(hf.GptOssForCausalLM(config)).eval()


@pytest.mark.parametrize("model", [gemma2("eager"), gpt_oss()], ids=["cap", "sink"])
def test_capped_scores_and_sinks_are_followed(model):
    batch: Batch = {"input_ids": torch.randint(5, 95, (2, 7))}
    wanted, weights = outputs(model, batch), returned_weights(model, batch)["attentions"]
    adopt(model)
    watch = Watch()
    with observe(model, watch):
        assert torch.equal(outputs(model, batch), wanted)
    for weights_BHQK, (_, attended) in zip(weights, watch.seen, strict=True):
        assert_statistics_are_of(attended, weights_BHQK, torch.ones_like(attended.peak) > 0)
        torch.testing.assert_close(attended.sink_weight, 1 - weights_BHQK.sum(-1))
    with replace(model, softmax_attention):
        torch.testing.assert_close(outputs(model, batch), wanted, atol=1e-4, rtol=1e-4)
    with replace(model, partial(topk_attention, keep=2)):
        assert not torch.allclose(outputs(model, batch), wanted, atol=1e-3)
    release(model)


def test_the_cap_is_ignored_where_the_backend_ignores_it():
    """transformers' sdpa does not apply the cap of Gemma 2."""
    batch: Batch = {"input_ids": torch.randint(5, 95, (2, 7))}
    model = adopt(gemma2("sdpa"))
    wanted, watch = outputs(model, batch), Watch()
    with observe(model, watch):
        outputs(model, batch)
    assert all(attended.scores.cap is None for _, attended in watch.seen)
    with replace(model, softmax_attention):
        torch.testing.assert_close(outputs(model, batch), wanted, atol=1e-4, rtol=1e-4)


def test_arguments_that_the_backend_ignores_are_ignored():
    model, watch = adopt(build("Llama")), Watch()
    batch = {**batch_of("Llama"), "rotten_scores": torch.ones(1)}
    wanted = outputs(model, batch)
    with observe(model, watch):
        assert torch.equal(outputs(model, batch), wanted)
    assert len(watch.seen) == 2


def static_cache(model: nn.Module) -> hf.StaticCache:
    return hf.StaticCache(config=model.config, max_cache_len=14)


def watched(model: nn.Module, batch: Batch) -> Watch:
    watch = Watch()
    with observe(adopt(model), watch):
        outputs(model, batch)
    return watch


def returned_weights(model: nn.Module, batch: Batch) -> dict[str, list[Tensor]]:
    with torch.no_grad():
        return weights_of(model(**batch, output_attentions=True))


def weights_of(output: Any) -> dict[str, list[Tensor]]:
    """The lists of weights, one a layer, by the host's name for them."""
    return {kind: list(output[kind]) for kind in output if kind.endswith("attentions")}


def count(weights: dict[str, list[Tensor]]) -> int:
    return sum(len(layers) for layers in weights.values())


def kind_of(name: str, site: str) -> str:
    """Where the host puts the weights of a site."""
    if site.endswith(".cross"):
        return "cross_attentions"
    if EVERY[name].kind == "two stacks":
        return site.split(".")[0] + "_attentions"
    return "attentions"


def assert_statistics_are_of(attended: Any, weights_BHQK: Tensor, rows_BHQ: Tensor) -> None:
    wanted = weights_BHQK[rows_BHQ]
    assert len(wanted) > 0
    positive = wanted.masked_fill(wanted == 0, 1)
    pairs = (
        (attended.weights[rows_BHQ], wanted),
        (attended.peak[rows_BHQ], wanted.amax(-1)),
        (attended.entropy[rows_BHQ], -(positive * positive.log()).sum(-1)),
        (attended.sum_squares[rows_BHQ], wanted.square().sum(-1)),
    )
    for got, right in pairs:
        torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-4)


def query_gradients(model: nn.Module) -> list[Tensor]:
    return [
        parameter.grad
        for path, parameter in model.named_parameters()
        if path.endswith("query.weight") and parameter.grad is not None
    ]


def entropy_gradients() -> list[Tensor]:
    """The same loss from the weights that a plain eager host returns."""
    model = build("BERT", "eager")
    output = model(**batch_of("BERT"), output_attentions=True)
    entropy = sum(-(w * w.log()).sum(-1).mean() for w in output.attentions)
    (entropy + output.logits.square().mean()).backward()
    return query_gradients(model)
