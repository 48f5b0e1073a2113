"""prune: what is left computes what the whole model computes with the other heads masked."""

import copy

import pytest
import torch

from headwise.hf import adopt, release
from headwise.hf.adoption import is_adopted
from headwise.pruning.cutting import prune, rebuild
from headwise.pruning.gates import Gates
from headwise.pruning.record import PruningRecord, record_of
from headwise.pruning.stand_ins import JustBias
from headwise.sites import Head, find_sites, gated, masked, observe
from tests.hf.families import (
    BACKENDS,
    FAMILIES,
    WITH_CACHE,
    Watch,
    batch_of,
    build,
    cached_steps,
    outputs,
)
from tests.pruning.shrinking import bare_keep, randomised_biases, removed, uneven_keep

BIASED = {"ModernBERT": {"attention_bias": True}}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("choose", [uneven_keep, bare_keep])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pruned_model_gives_what_the_masked_one_gives(name, choose, backend):
    model = adopt(randomised_biases(build(name, backend)))
    keep = choose(model)
    sides = ("none",) if FAMILIES[name].kind == "image" else ("none", "right", "left")
    batches = [batch_of(name, padding=side) for side in sides]
    with masked(model, removed(model, keep)):
        wanted = [outputs(model, batch) for batch in batches]
    before = sum(parameter.numel() for parameter in model.parameters())
    assert prune(model, keep) is model
    assert sum(parameter.numel() for parameter in model.parameters()) < before
    for batch, logits in zip(batches, wanted, strict=True):
        torch.testing.assert_close(outputs(model, batch), logits, **CLOSE)
    if is_adopted(model):  # ALBERT without heads has nothing left to adopt
        release(model)
    torch.testing.assert_close(outputs(model, batches[0]), wanted[0], **CLOSE)


@pytest.mark.parametrize("choose", [uneven_keep, bare_keep])
@pytest.mark.parametrize("name", WITH_CACHE)
def test_a_pruned_model_s_cache_gives_the_same_steps(name, choose):
    model = adopt(randomised_biases(build(name)))
    keep = choose(model)
    with masked(model, removed(model, keep)):
        wanted = [step.logits for step in cached_steps(model, name)]
    prune(model, keep)
    for step, logits in zip(cached_steps(model, name), wanted, strict=True):
        torch.testing.assert_close(step.logits, logits, **CLOSE)


@pytest.mark.parametrize("name", ["GPT-2", "OPT", "Llama", "BART", "T5"])
@pytest.mark.parametrize("beams", [1, 2])
def test_a_pruned_model_generates_what_the_masked_one_generates(name, beams):
    model = adopt(randomised_biases(build(name)))
    keep = {**uneven_keep(model), **bare_keep(model)}
    ids = batch_of(name, padding="left")
    ids.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False}
    with masked(model, removed(model, keep)):
        wanted = model.generate(**ids, **options)
    prune(model, keep)
    assert torch.equal(model.generate(**ids, **options), wanted)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_reaches_all_that_is_left(name):
    model = adopt(randomised_biases(build(name)))
    prune(model, uneven_keep(model))
    model(**batch_of(name)).logits.square().sum().backward()
    trained = {path: weight for path, weight in model.named_parameters() if weight.requires_grad}
    assert not [path for path, weight in trained.items() if weight.grad is None]


def test_gradient_reaches_the_bias_a_layer_without_heads_adds():
    for name in ("BERT", "GPT-2", "OPT", "ModernBERT"):
        model = adopt(randomised_biases(build(name, **BIASED.get(name, {}))))
        prune(model, bare_keep(model))
        model(**batch_of(name)).logits.square().sum().backward()
        alone = [module for module in model.modules() if isinstance(module, JustBias)]
        assert len(alone) == 1 and alone[0].bias.grad.abs().sum() > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_pruning_twice_is_pruning_once(name):
    once, twice = adopt(randomised_biases(build(name))), adopt(randomised_biases(build(name)))
    keep = uneven_keep(once)
    last = {site: numbers[-1:] for site, numbers in keep.items()}
    prune(once, last)
    prune(prune(twice, keep), {site: [len(numbers) - 1] for site, numbers in keep.items()})
    assert torch.equal(outputs(once, batch_of(name)), outputs(twice, batch_of(name)))
    assert record_of(once) == record_of(twice)
    assert record_of(twice).kept == {site: tuple(numbers) for site, numbers in last.items()}
    first = next(iter(last))
    assert record_of(twice).original(Head(first, 0)) == Head(first, last[first][0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pruned_model_is_observed_and_adopted_as_any(name, backend):
    model = adopt(build(name, backend))
    names = [site.name for site in find_sites(model)]
    prune(model, {**uneven_keep(model), **bare_keep(model)})
    if len(names) == 1:  # ALBERT
        with pytest.raises(ValueError, match="were pruned, so there are none"):
            find_sites(model)
        return
    counts = {site.name: site.num_heads for site in find_sites(model)}
    assert list(counts) == names[1:]
    release(model)
    assert {site.name: site.num_heads for site in find_sites(adopt(model))} == counts
    watch = Watch()
    with observe(model, watch):
        alone = outputs(model, batch_of(name))
    assert {site: seen.out.shape[1] for site, seen in watch.seen} == counts
    with gated(model, {site: torch.ones(count) for site, count in counts.items()}):
        assert torch.equal(outputs(model, batch_of(name)), alone)


def test_gates_between_0_and_1_are_folded_in():
    for name in ("BERT", "GPT-2", "Llama", "T5"):
        model = adopt(randomised_biases(build(name)))
        site = find_sites(model)[0].name
        with gated(model, {site: torch.tensor([0.0, 0.25, 0.5, 0.0])}):
            wanted = outputs(model, batch_of(name))
        prune(model, {site: [2, 1]}, scale={site: torch.tensor([0.5, 0.25])})
        torch.testing.assert_close(outputs(model, batch_of(name)), wanted, **CLOSE)


def test_a_factor_is_wanted_for_each_head_kept():
    model = adopt(build("BERT"))
    with pytest.raises(ValueError, match=r"a finite factor for each of the 2 heads"):
        prune(model, {"encoder.0.self": [0, 1]}, scale={"encoder.0.self": [1.0]})


def test_keeping_all_heads_changes_nothing():
    model = adopt(build("BERT"))
    wanted = outputs(model, batch_of("BERT"))
    prune(model, {"encoder.0.self": range(4)})
    assert torch.equal(outputs(model, batch_of("BERT")), wanted)
    assert str(record_of(model)) == "8 of 8 heads left" and not any(
        record_of(model).removed.values()
    )


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"encoder.9.self": [0]}, r"has no site 'encoder\.9\.self'"),
        ({"encoder.0.self": [4]}, "has heads 0 to 3, got 4 to keep"),
        ({"encoder.0.self": [1, 1]}, "named twice"),
        (2, "keep must be {site name: numbers .*; got '2'"),
        (["encoder.0.self"], "keep must be {site name: numbers .*; got"),
        ({0: [1]}, "keep must be {site name: numbers .*; got 0 for the name of a site"),
        ({"encoder.0.self": 2}, r"as {'encoder\.0\.self': \[0, 2\]}; got '2' for encoder\.0"),
        ({"encoder.0.self": "01"}, "keep must be .*; got '01' for encoder"),
        ({"encoder.0.self": [1.0]}, r"keep must be .*; got '\[1\.0\]' for encoder"),
        ({"encoder.0.self": [True, False, True, False]}, "not whether each is kept"),
        ({"encoder.0.self": torch.tensor([True, False])}, "not whether each is kept"),
        ({"encoder.0.self": [torch.tensor(True)]}, "not whether each is kept"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_heads_that_are_not_there_are_refused(keep, message):
    with pytest.raises(ValueError, match=message):
        prune(adopt(build("BERT")), keep)


def test_a_model_that_is_watched_is_refused_and_left_alone():
    model = adopt(build("BERT"))
    refused = pytest.raises(ValueError, match=r"is observed; undo that before prune")
    with observe(model, Watch()), refused:
        prune(model, {"encoder.0.self": [0]})
    assert record_of(model) is None and find_sites(model)[0].num_heads == 4


def test_heads_gone_cannot_be_kept_again():
    model = prune(adopt(build("BERT")), {"encoder.0.self": []})
    prune(model, {"encoder.0.self": [], "encoder.1.self": [0]})
    with pytest.raises(ValueError, match="has no heads left"):
        prune(model, {"encoder.0.self": [0]})


def test_groups_of_different_sizes_are_refused_with_what_is_allowed():
    model = adopt(build("Llama"))
    with pytest.raises(ValueError, match=r"\[\[0, 1\], \[2, 3\]\]\. Keep whole groups, or the"):
        prune(model, {"decoder.0.self": [0, 1, 2]})
    assert find_sites(model)[0].num_heads == 4


def test_heads_that_all_share_one_set_of_keys_go_one_by_one():
    model = adopt(build("Llama", num_key_value_heads=1))
    with masked(model, {"decoder.0.self": [1]}):
        wanted = outputs(model, batch_of("Llama"))
    prune(model, {"decoder.0.self": [0, 2, 3]})
    torch.testing.assert_close(outputs(model, batch_of("Llama")), wanted, **CLOSE)


def test_albert_s_shared_layers_lose_the_same_heads():
    model = adopt(build("ALBERT"))
    assert len(find_sites(model)) == 1
    prune(model, {"encoder.0.self": [1]})
    watch = Watch()
    with observe(model, watch):
        outputs(model, batch_of("ALBERT"))
    assert [seen.out.shape[1] for _, seen in watch.seen] == [1, 1]  # two layers, one site


def test_t5_s_table_of_distances_stays_one_for_all_layers():
    model = adopt(build("T5"))
    prune(model, {"encoder.0.self": [0], "encoder.1.self": [1, 2]})
    layers = [block.layer[0].SelfAttention for block in model.encoder.block]
    assert layers[0].relative_attention_bias.weight is layers[1].relative_attention_bias.weight
    assert layers[0].relative_attention_bias.kept.tolist() == [0]
    model(**batch_of("T5")).logits.sum().backward()
    reached = layers[0].relative_attention_bias.weight.grad.abs().sum(0) > 0
    assert reached.tolist() == [True, True, True, False]


def test_what_modules_say_of_their_heads_is_true_again():
    gpt = prune(adopt(build("GPT-2")), {"decoder.0.self": [1]}).transformer.h[0].attn
    assert (gpt.num_heads, gpt.split_size, gpt.c_attn.nf, gpt.c_proj.nx) == (1, 8, 24, 8)
    bert = prune(adopt(build("BERT")), {"encoder.0.self": [1]}).bert.encoder.layer[0].attention
    assert (bert.self.num_attention_heads, bert.self.all_head_size) == (1, 8)
    assert (bert.self.query.out_features, bert.output.dense.in_features) == (8, 8)
    llama = prune(adopt(build("Llama")), {"decoder.0.self": [1, 3]}).model.layers[0].self_attn
    assert (llama.num_attention_heads, llama.num_key_value_groups) == (2, 1)


def test_the_configuration_tells_the_numbers_where_all_layers_agree():
    model = adopt(build("Llama"))
    prune(model, {"decoder.0.self": [0, 2], "decoder.1.self": [1, 3]})
    config = model.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 2, 8)
    prune(model, {"decoder.0.self": [0]})
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)


def test_a_module_with_parts_unknown_is_refused():
    model = adopt(build("BERT"))
    model.bert.encoder.layer[0].attention.self.sink = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match="has sink, of which headwise does not know"):
        prune(model, {"encoder.0.self": [0]})


def test_rebuilding_wants_the_model_that_was_pruned():
    record = PruningRecord({"encoder.0.self": 2}, {"encoder.0.self": (0,)})
    with pytest.raises(ValueError, match="2 heads at 1 sites, but this BertForMaskedLM has 8"):
        rebuild(build("BERT"), record)


def test_gates_that_ended_between_0_and_1_are_pruned_to_the_same_model():
    model = adopt(randomised_biases(build("BART")))
    gates = Gates(model, mode="reference_code")
    with torch.no_grad():
        for place, site in enumerate(find_sites(model)):
            gates.of(site).log_alpha.copy_(torch.tensor([-9.0, 9.0, 0.5, place - 2.0]))
    wanted = outputs(model.eval(), batch_of("BART"))
    keep, scale = gates.keep(), gates.scale()
    with pytest.raises(ValueError, match="undo that before prune"):
        prune(model, keep, scale=scale)
    gates.undo()
    prune(model, keep, scale=scale)
    torch.testing.assert_close(outputs(model, batch_of("BART")), wanted, **CLOSE)


def half_open(model, mode):
    gates = Gates(model, mode=mode)
    with torch.no_grad():
        for place, site in enumerate(find_sites(model)):
            gates.of(site).log_alpha.copy_(torch.tensor([-9.0, 9.0, 0.5, place - 2.0]))
    return gates


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("mode", ["paper", "reference_code"])
def test_gates_themselves_say_what_to_keep_and_by_how_much(mode, undone):
    model = adopt(randomised_biases(build("BERT")))
    whole = outputs(model, batch_of("BERT"))
    gates = half_open(model, mode)
    wanted = outputs(model.eval(), batch_of("BERT"))
    assert not torch.allclose(whole, wanted, **CLOSE)
    if undone:
        gates.undo()
    prune(model, gates)
    assert not hasattr(model, "head_gates") and not find_sites(model)[0].changes
    torch.testing.assert_close(outputs(model, batch_of("BERT")), wanted, **CLOSE)
    with pytest.raises(ValueError, match=r"for the 4 heads of encoder\.0\.self, of which this"):
        prune(model, gates)


def test_gates_are_left_on_a_model_that_is_not_pruned():
    model, other = adopt(build("BERT")), adopt(build("BERT"))
    gates = half_open(model, "paper")
    with pytest.raises(ValueError, match="These gates are not on this BertForMaskedLM"):
        prune(other, gates)
    with pytest.raises(ValueError, match="Gates bring their own scale"):
        prune(model, gates, scale={})
    refused = pytest.raises(ValueError, match=r"observed .*undo that before prune")
    with observe(model, Watch()), refused:
        prune(model, gates)
    assert model.head_gates is gates and record_of(model) is None


@pytest.mark.slow
def test_copies_and_compiled_models_are_pruned_alike():
    model = adopt(randomised_biases(build("T5")))
    keep = uneven_keep(model)
    wanted = outputs(prune(copy.deepcopy(model), keep), batch_of("T5"))
    assert record_of(model) is None
    compiled = torch.compile(model, backend="eager")
    outputs(compiled, batch_of("T5"))
    prune(compiled, keep)
    torch.testing.assert_close(outputs(compiled, batch_of("T5")), wanted, **CLOSE)
    assert record_of(model) == record_of(compiled) is not None
    torch.testing.assert_close(outputs(copy.deepcopy(model), batch_of("T5")), wanted, **CLOSE)
