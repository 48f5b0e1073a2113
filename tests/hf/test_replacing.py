"""Replacing what a host computes, masking and gating its heads, and undoing all of it."""

from functools import partial

import pytest
import torch
from torch import Tensor

from headwise.hf import adopt
from headwise.ops import softmax_attention, topk_attention, uniform_attention
from headwise.sites import find_sites, gated, masked, observe, replace
from tests.alone import run_alone
from tests.hf.families import (
    BACKENDS,
    CELLS,
    EVERY,
    Batch,
    Watch,
    batch_of,
    build,
    outputs,
)

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
every_cell = pytest.mark.parametrize(("name", "backend"), CELLS)
both_backends = pytest.mark.parametrize("backend", BACKENDS)
top_two = partial(topk_attention, keep=2)


@every_cell
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_softmax_in_the_hosts_place_gives_the_hosts_outputs(name, backend, padding):
    model, batch = adopt(build(name, backend)), batch_of(name, padding=padding)
    wanted = outputs(model, batch)
    with replace(model, softmax_attention):
        got = outputs(model, batch)
    torch.testing.assert_close(real(name, got, batch), real(name, wanted, batch), **CLOSE)
    assert torch.equal(outputs(model, batch), wanted)


@every_cell
def test_top_k_in_the_hosts_place_changes_outputs_and_keeps_them_finite(name, backend):
    model, batch = adopt(build(name, backend)), batch_of(name, padding="right")
    wanted, watch = outputs(model, batch), Watch()
    with replace(model, top_two), observe(model, watch):
        got = outputs(model, batch)
    assert got.isfinite().all() and not torch.allclose(got, wanted, atol=1e-3)
    assert all(((attended.weights > 0).sum(-1) <= 2).all() for _, attended in watch.seen)
    assert torch.equal(outputs(model, batch), wanted)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BART", "T5"])
def test_a_replaced_host_generates_with_its_cache(name):
    model, batch = adopt(build(name)), batch_of(name)
    batch.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    wanted = model.generate(**batch, **options)
    with replace(model, softmax_attention):
        assert torch.equal(model.generate(**batch, **options), wanted)


@pytest.mark.parametrize("name", ["BERT", "MPNet", "DeBERTa-v2"])
def test_a_replaced_eager_host_returns_the_weights_that_were_used(name):
    model = adopt(build(name, "eager"))
    with torch.no_grad(), replace(model, top_two):
        attentions = model(**batch_of(name), output_attentions=True).attentions
    assert all(((weights > 0).sum(-1) == 2).all() for weights in attentions)


@both_backends
def test_a_replaced_host_can_be_trained(backend):
    model = adopt(build("Llama", backend)).train()
    with replace(model, top_two):
        model(**batch_of("Llama", padding="left")).logits.square().mean().backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), path
        assert parameter.grad.any(), path


@both_backends
def test_everything_is_put_back_when_the_block_fails(backend):
    model, batch = adopt(build("BART", backend)), batch_of("BART")
    wanted = outputs(model, batch)
    with (
        pytest.raises(ZeroDivisionError),
        replace(model, top_two),
        masked(model, {"encoder.0.self": [1]}),
        observe(model, lambda site, attended: 1 / 0),
    ):
        outputs(model, batch)
    assert torch.equal(outputs(model, batch), wanted)
    for site in find_sites(model):
        assert not (site.watchers or site.replacements or site.gates)


def test_the_innermost_replacement_counts_and_the_outer_one_returns():
    model, batch = adopt(build("BERT")), batch_of("BERT")
    with replace(model, uniform_attention):
        uniform = outputs(model, batch)
        with replace(model, top_two):
            assert not torch.equal(outputs(model, batch), uniform)
        assert torch.equal(outputs(model, batch), uniform)


def test_replacements_may_be_undone_in_any_order():
    model, batch = adopt(build("BERT")), batch_of("BERT")
    plain = outputs(model, batch)
    first, second = replace(model, uniform_attention), replace(model, top_two)
    sparse = outputs(model, batch)
    first.undo()
    assert torch.equal(outputs(model, batch), sparse)
    second.undo()
    assert torch.equal(outputs(model, batch), plain)


@pytest.mark.parametrize(
    ("where", "sites"),
    [
        ("decoder.*.cross", ["decoder.0.cross", "decoder.1.cross"]),
        ("encoder.1.*", ["encoder.1.self"]),
        (lambda site: site.name.endswith("0.self"), ["encoder.0.self", "decoder.0.self"]),
    ],
)
def test_where_chooses_the_sites_that_change(where, sites):
    model, watch = adopt(build("BART")), Watch()
    with replace(model, uniform_attention, where=where), observe(model, watch):
        outputs(model, batch_of("BART"))
    flat = [name for name, attended in watch.seen if is_uniform(attended.weights)]
    assert flat == sites


@both_backends
def test_masking_a_head_is_zeroing_its_columns_of_the_output_projection(backend):
    model, batch = adopt(build("BERT", backend)), batch_of("BERT", padding="right")
    with masked(model, {"encoder.1.self": [0, 3]}):
        got = outputs(model, batch)
    with torch.no_grad():
        weight_MM = model.bert.encoder.layer[1].attention.output.dense.weight
        weight_MM.unflatten(1, (4, 8))[:, [0, 3]] = 0
    torch.testing.assert_close(got, outputs(model, batch), **CLOSE)


@pytest.mark.parametrize("name", EVERY)
def test_masked_heads_change_the_outputs_alike_on_all_backends(name):
    batch, seen = batch_of(name, padding="right"), []
    for backend in (backend for family, backend in CELLS if family == name):
        model = adopt(build(name, backend))
        wanted = outputs(model, batch)
        with masked(model, {find_sites(model)[-1].name: [2]}):
            seen.append(outputs(model, batch))
        assert not torch.allclose(seen[-1], wanted, atol=1e-4)
        assert torch.equal(outputs(model, batch), wanted)
    torch.testing.assert_close(real(name, seen[0], batch), real(name, seen[-1], batch), **CLOSE)


def test_masking_all_heads_of_a_layer_leaves_the_bias_of_its_projection():
    model, batch = adopt(build("BERT")), batch_of("BERT")
    seen: list[Tensor] = []
    dense = model.bert.encoder.layer[0].attention.output.dense
    dense.register_forward_hook(lambda module, args, out: seen.append(out))
    with masked(model, {"encoder.0.self": range(4)}):
        assert outputs(model, batch).isfinite().all()
    assert torch.equal(seen[0], dense.bias.expand_as(seen[0]))


def test_masks_add_up_and_compose_with_replacements():
    model, batch = adopt(build("BERT")), batch_of("BERT")
    with masked(model, {"encoder.0.self": [0]}), masked(model, {"encoder.0.self": [1]}):
        both = outputs(model, batch)
        with replace(model, softmax_attention):
            torch.testing.assert_close(outputs(model, batch), both, **CLOSE)
    with masked(model, {"encoder.0.self": [0, 1]}):
        assert torch.equal(outputs(model, batch), both)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("BERT", "sdpa"),
        ("Llama", "eager"),
        ("MPNet", "eager"),
        pytest.param("DeBERTa-v3", "eager", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_host_obeys_masks_and_forgets_them(name, backend, unchecked):
    check_compiled(name, backend, compiler="eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_host_compiled_with_inductor_obeys_masks_and_forgets_them(unchecked):
    check_compiled("BERT", "sdpa", compiler="inductor")


@pytest.mark.slow
def test_kernels_take_the_masks_of_compiled_hosts():
    pytest.importorskip("triton", reason="Triton is not installed")
    run_alone("-m", "tests.hf.compiling")


def test_gates_of_each_item_act_on_that_item_alone():
    model, batch = adopt(build("BERT")), batch_of("BERT")
    plain = outputs(model, batch)
    with masked(model, {"encoder.0.self": [3]}):
        off = outputs(model, batch)
    gates_BH = torch.ones(3, 4)
    gates_BH[1, 3] = 0
    with gated(model, {"encoder.0.self": gates_BH}):
        got = outputs(model, batch)
    wanted = torch.stack([plain[0], off[1], plain[2]])
    torch.testing.assert_close(got, wanted, **CLOSE)


@every_cell
def test_gradients_reach_gates(name, backend):
    model = adopt(build(name, backend))
    gates = {
        site.name: torch.ones(site.num_heads, requires_grad=True) for site in find_sites(model)
    }
    with gated(model, gates):
        model(**batch_of(name)).logits.square().mean().backward()
    for site, gate_H in gates.items():
        assert gate_H.grad is not None and gate_H.grad.all(), site


def check_compiled(name: str, backend: str, *, compiler: str) -> None:
    torch.compiler.reset()
    model, batch = adopt(build(name, backend)), batch_of(name)
    compiled = torch.compile(model, backend=compiler)
    heads = {find_sites(model)[0].name: [1, 2]}
    plain = outputs(model, batch)
    with masked(model, heads):
        wanted = outputs(model, batch)
    torch.testing.assert_close(outputs(compiled, batch), plain, **CLOSE)
    with masked(compiled, heads):
        torch.testing.assert_close(outputs(compiled, batch), wanted, **CLOSE)
    torch.testing.assert_close(outputs(compiled, batch), plain, **CLOSE)
    assert not torch.allclose(plain, wanted, atol=1e-3)


def real(name: str, logits: Tensor, batch: Batch) -> Tensor:
    """The logits at real tokens; at padding a host may carry on anything."""
    if "attention_mask" not in batch or EVERY[name].kind == "two stacks":
        return logits
    return logits[batch["attention_mask"] == 1]


def is_uniform(weights_BHQK: Tensor) -> bool:
    visible = weights_BHQK > 0
    return torch.allclose(weights_BHQK, visible / visible.sum(-1, keepdim=True))
