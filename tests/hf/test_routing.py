"""Hosts stay themselves: attention is routed by module, whatever the backend and whoever asks."""

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import headwise as hw
from headwise.hf import adopt, check_parity, release
from headwise.hf.backends import CannotFollow, classify
from headwise.ops import softmax_attention, topk_attention
from headwise.sites import masked, observe, replace
from tests.hf.families import SIZES, Batch, Watch, batch_of, build, outputs, randomised

SPARSE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "index_topk": 4,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MINIMAX = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 4,
    "index_topk_blocks": 1,
    "index_local_blocks": 1,
    "layer_types": ["minimax_m3_sparse", "minimax_m3_sparse"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def sparse_host(name: str, backend: str) -> nn.Module:
    """A host that chooses keys by an indexer of its own, with weights large enough to matter."""
    kind, sizes = ("TextModel", MINIMAX) if name == "MiniMaxM3VL" else ("ForCausalLM", SPARSE)
    config = getattr(hf, f"{name}{'Text' if name == 'MiniMaxM3VL' else ''}Config")
    torch.manual_seed(0)
    model = getattr(hf, name + kind)(config(**sizes, attn_implementation=backend)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    return model


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(("DeepseekV32", "sdpa"), ("GlmMoeDsa", "eager"), ("AXK2", "sdpa"), ("HYV4", "eager")),
        *(("MiniMaxM3VL", "sdpa"), ("MiniMaxM3VL", "eager")),
    ],
)
def test_hosts_that_choose_keys_themselves_stay_equal_and_their_choice_is_a_mask(name, backend):
    model = sparse_host(name, backend)
    batch: Batch = {"input_ids": torch.randint(5, 95, (2, 12))}
    with torch.no_grad():
        wanted = model(**batch)[0]
        adopt(model)
        watch = Watch()
        with observe(model, watch):
            assert torch.equal(model(**batch)[0], wanted)
        with replace(model, softmax_attention):
            torch.testing.assert_close(model(**batch)[0], wanted, atol=2e-4, rtol=2e-4)
    attended = watch.seen[-1][1]
    seen = attended.scores.visible().expand(attended.scores.shape)
    assert seen[0, 0, -1].sum() < 12, "the indexer hid no key"


def test_nothing_of_headwise_is_in_the_configuration():
    model = build("T5")
    before = copy.deepcopy(model.config.to_dict())
    adopt(model)
    assert model.config.to_dict() == before and model.config._attn_implementation == "sdpa"
    twin = hf.T5ForConditionalGeneration(model.config).eval()
    watch = Watch()
    with observe(model, watch):
        outputs(twin, batch_of("T5"))
    assert not watch.seen and not any("site" in module.__dict__ for module in twin.modules())


def test_hosts_get_the_same_function_each_time_and_unadopted_ones_their_own():
    registry = AttentionInterface()
    assert registry.get_interface("sdpa", print) is registry.get_interface("sdpa", print)
    model, batch = build("BERT"), batch_of("BERT")
    wanted = outputs(model, batch)
    adopt(build("BERT"))
    assert torch.equal(outputs(model, batch), wanted)
    with pytest.raises(KeyError, match="is not a valid attention implementation"):
        registry.get_interface("nonsense", print)


def test_a_pickled_model_works_in_a_fresh_process_with_its_masked_head(tmp_path: Path):
    model, batch = adopt(build("BERT")), batch_of("BERT")
    change = masked(model, {"encoder.0.self": [1]})
    without = outputs(model, batch)
    torch.save((model, batch, without), tmp_path / "model.pt")
    change.undo()
    assert not torch.equal(outputs(model, batch), without)
    script = (
        "import torch, sys; model, batch, wanted = torch.load(sys.argv[1], weights_only=False)\n"
        "with torch.no_grad(): got = model(**batch)[0]\n"
        "assert torch.equal(got, wanted), (got - wanted).abs().max()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.pt")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_model_that_returns_attentions_is_saved(tmp_path: Path):
    config = hf.BertConfig(**SIZES, attn_implementation="eager", output_attentions=True)
    model = adopt(hf.BertModel(config))
    model.save_pretrained(tmp_path)
    assert "headwise" not in (tmp_path / "config.json").read_text()
    model.config.output_attentions = True


def flash_stand_in(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """What flash attention computes, by its rules for masks, written out for one sequence each."""
    causal = module.is_causal if is_causal is None else is_causal
    n_queries, n_keys = query.shape[2], key.shape[2]
    out_BHQE = torch.zeros(*query.shape[:3], value.shape[-1])
    for item in range(len(query)):
        kept_K = torch.ones(n_keys) if attention_mask is None else attention_mask[item]
        keys = kept_K.bool().nonzero()[:, 0]
        queries = keys if n_queries == n_keys else torch.arange(n_queries)
        apart = torch.arange(len(keys)) - torch.arange(len(queries))[:, None]
        apart = apart - (len(keys) - len(queries))  # the last query stands at the last key
        mask = apart <= 0 if causal else torch.ones_like(apart, dtype=torch.bool)
        if sliding_window is not None:
            mask &= apart.abs() < sliding_window
        one = [
            nn.functional.scaled_dot_product_attention(
                query[item, :, queries][None], key[item, :, keys][None], value[item, :, keys][None],
                attn_mask=mask, scale=scaling, enable_gqa=True,
            )
        ]  # fmt: skip
        out_BHQE[item, :, queries] = one[0][0]
    return out_BHQE.transpose(1, 2).contiguous(), None


@pytest.fixture
def flash(monkeypatch):
    """The name of flash attention, with a function of its signature that runs on a CPU."""
    name = "flash_attention_2"
    functions = {**AttentionInterface._global_mapping, name: flash_stand_in}
    monkeypatch.setattr(AttentionInterface, "_global_mapping", functions)
    return name


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("name", ["BERT", "Llama", "ModernBERT", "BART"])
def test_flash_hosts_are_adopted_and_their_statistics_come_from_q_and_k(name, padding, flash):
    model, batch = build(name), batch_of(name, padding=padding)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation_internal = flash
    wanted, watch = outputs(model, batch), Watch()
    with observe(adopt(model), watch):
        assert torch.equal(outputs(model, batch), wanted)
    assert watch.seen
    for _, attended in watch.seen:
        sums = attended.weights.sum(-1)
        torch.testing.assert_close(sums, (sums > 0).float())
    real = batch.get("decoder_attention_mask", batch.get("attention_mask"))
    rows = ... if real is None or "decoder_input_ids" in batch else real.bool()
    with replace(model, softmax_attention):
        got = outputs(model, batch)
        torch.testing.assert_close(got[rows], wanted[rows], atol=1e-4, rtol=1e-4)
    with masked(model, {watch.names[0]: [0]}):
        assert not torch.allclose(outputs(model, batch), wanted)


def test_packed_sequences_of_flash_hosts_are_not_followed(flash):
    model = adopt(build("Llama"))
    model.config._attn_implementation_internal = flash
    for positions in ([0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 1, 2, 3, 4, 5, 6]):
        batch = {"input_ids": torch.arange(5, 13)[None], "position_ids": torch.tensor([positions])}
        with observe(model, Watch()), pytest.raises(CannotFollow, match="packed into one"):
            outputs(model, batch)


def halved(module, query, key, value, attention_mask, **others):
    """A backend of another tool: it asks the interface for sdpa and halves the output."""
    function = AttentionInterface().get_interface("sdpa", print)
    out, weights = function(module, query, key, value, attention_mask, **others)
    return out / 2, weights


def test_backends_of_others_work_with_gates_and_are_not_guessed_at():
    AttentionInterface.register("halved", halved)
    model, batch = build("BERT"), batch_of("BERT")
    model.config._attn_implementation_internal = "halved"
    wanted = outputs(model, batch)
    assert torch.equal(outputs(adopt(model), batch), wanted)
    with hw.gated(model, {"encoder.0.self": torch.full((4,), 2.0)}):  # once, not twice
        doubled = outputs(model, batch)
    model.config._attn_implementation_internal = "sdpa"
    with hw.gated(model, {"encoder.1.self": torch.full((4,), 0.5)}):
        assert torch.allclose(outputs(model, batch), doubled, atol=1e-5)
    model.config._attn_implementation_internal = "halved"
    with observe(model, Watch()), pytest.raises(CannotFollow, match="'halved' computes is not"):
        outputs(model, batch)
    parity = check_parity(model, batch)
    assert parity and set(parity.unobserved) == {"encoder.0.self", "encoder.1.self"}
    assert "not observable" in str(parity)


def flat(module, query, key, value, attention_mask, **others):
    """A backend that returns the heads side by side."""
    out, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    return out.flatten(2), weights


@dataclass
class Unhashable:
    """A backend that is an object, equal to others of its kind."""

    calls: int = 0

    def __call__(self, module, query, key, value, attention_mask, **others):
        self.calls += 1
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)


@pytest.mark.parametrize("backend", [flat, Unhashable()], ids=["flat", "unhashable"])
def test_heads_are_found_in_what_backends_of_others_return(backend):
    AttentionInterface.register("of others", backend)
    model = adopt(build("BERT"))
    batch = {"input_ids": torch.randint(5, 95, (4, 9))}  # as many items as heads
    heads = {"encoder.0.self": [1]}
    with masked(model, heads):
        wanted = outputs(model, batch)
        model.config._attn_implementation_internal = "of others"
        torch.testing.assert_close(outputs(model, batch), wanted)


def test_every_thread_sees_a_masked_head_of_a_backend_of_others():
    AttentionInterface.register("halved", halved)
    model, batch = adopt(build("BERT")), batch_of("BERT")
    model.config._attn_implementation_internal = "halved"
    with masked(model, {"encoder.0.self": [0, 1]}):
        wanted = outputs(model, batch)
        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(lambda _: outputs(model, batch), range(40)))
    assert all(torch.equal(one, wanted) for one in got)


def test_a_part_that_is_in_use_is_not_adopted_anew():
    model = build("BERT")
    change = masked(adopt(model.bert), {"encoder.0.self": [0]})
    if "site" in model.bert.encoder.layer[0].attention.self.__dict__:
        model.cls = nn.Sequential(model.cls)  # another model around the same part
    site = model.bert.encoder.layer[1].attention.self.__dict__.pop("site")
    with pytest.raises(ValueError, match=r"adopted before, and encoder\.0\.self is gated"):
        adopt(model)
    model.bert.encoder.layer[1].attention.self.__dict__["site"] = site
    outputs(model, batch_of("BERT"))
    change.undo()


def test_a_copy_of_a_masked_model_can_be_released():
    model, batch = adopt(build("BERT")), batch_of("BERT")
    plain = outputs(model, batch)
    with masked(model, {"encoder.0.self": [0]}):
        twin = copy.deepcopy(model)
        outputs(model, batch)
    with pytest.raises(ValueError, match="force=True"):
        release(twin)
    release(twin, force=True)
    assert torch.equal(outputs(twin, batch), plain)


def test_several_models_in_one_are_refused():
    with pytest.raises(ValueError, match="PreTrainedModel"):
        adopt(nn.Sequential(build("BERT"), build("BERT")))


def test_parity_compares_caches_and_leaves_those_of_the_batch_alone():
    model, batch = build("Llama"), batch_of("Llama")
    cache = hf.DynamicCache(config=model.config)
    model(**batch, past_key_values=cache)
    parity = check_parity(model, {"input_ids": torch.tensor([[7]] * 3), "past_key_values": cache})
    assert parity and parity.outputs > 1 and cache.get_seq_length() == 9
    bart = check_parity(build("BART"), {**batch_of("BART"), "use_cache": True})
    assert bart and bart.outputs > 8  # the cache has two parts


@pytest.mark.filterwarnings("ignore")
def test_an_eager_host_that_is_replaced_can_be_exported(unchecked):
    model = adopt(build("BERT", "eager"))
    with replace(model, softmax_attention):
        program = torch.export.export(model, (), batch_of("BERT", padding="right"), strict=False)
        got = program.module()(**batch_of("BERT", padding="right")).logits
        torch.testing.assert_close(got, outputs(model, batch_of("BERT", padding="right")))


def test_an_op_that_cannot_take_a_sink_is_told_so():
    config = hf.GptOssConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=16, num_local_experts=2,
        num_experts_per_tok=1, pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    model = adopt(hf.GptOssForCausalLM(config).eval())

    def plain(q, k, v, *, mask, bias, causal, lengths, scale, dropout):
        return softmax_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)

    with replace(model, plain), pytest.raises(ValueError, match=r"computes with sink=, which the"):
        model(torch.tensor([[5, 6, 7]]))


def test_continuous_batching_works_with_masked_heads_and_is_not_observed():
    torch.manual_seed(0)
    config = hf.LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0, eos_token_id=99)
    model = randomised(hf.LlamaForCausalLM(config)).eval()
    wanted = continuously(model)
    assert continuously(adopt(model)) == wanted and len(wanted) == 2
    with masked(model, {"decoder.0.self": [0, 1, 2], "decoder.1.self": [0, 1, 3]}):
        without = continuously(model)
        assert without == {tokens: generated(model, tokens) for tokens in without} != wanted
    assert continuously(model) == wanted == {tokens: generated(model, tokens) for tokens in wanted}
    with observe(model, Watch()), pytest.raises(RuntimeError, match="paged cache inside the call"):
        continuously(model)


def continuously(model: nn.Module) -> dict[tuple[int, ...], list[int]]:
    """What continuous batching generates after each prompt."""
    settings = ContinuousBatchingConfig(
        num_blocks=16, block_size=8, max_batch_tokens=32, use_cuda_graph=False,
        use_async_batching=False,
    )  # fmt: skip
    made = model.generate_batch(
        [[5, 6, 7], [8, 9]],
        generation_config=hf.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=99),
        continuous_batching_config=settings,
        warmup=False,
    )
    if errors := [request.error for request in made.values() if request.error]:
        raise RuntimeError(errors[0])
    return {tuple(request.prompt_ids): request.generated_tokens for request in made.values()}


def generated(model: nn.Module, prompt: tuple[int, ...]) -> list[int]:
    given = torch.tensor([prompt])
    settings = hf.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=99)
    made = model.generate(given, attention_mask=torch.ones_like(given), generation_config=settings)
    return made[0, len(prompt) :].tolist()


def test_a_boolean_mask_of_four_axes_is_added_by_eager_hosts():
    """Eager attention adds True as 1; it hides nothing."""
    model, watch = build("BERT", "eager"), Watch()
    seen = torch.ones(3, 1, 9, 9).tril().bool()
    batch = {**batch_of("BERT"), "attention_mask": seen}
    with torch.no_grad():
        weights = model(**batch, output_attentions=True).attentions
    with observe(adopt(model), watch):
        outputs(model, batch)
    for weights_BHQK, (_, attended) in zip(weights, watch.seen, strict=True):
        torch.testing.assert_close(attended.weights, weights_BHQK, atol=1e-5, rtol=1e-4)


def test_weights_that_a_host_returns_by_itself_survive_replace():
    """Kosmos-2 returns the weights of its projection of images, asked for or not."""
    config = hf.Kosmos2Config(
        text_config={"vocab_size": 100, "embed_dim": 32, "layers": 1, "ffn_dim": 64}
        | {"attention_heads": 4, "max_position_embeddings": 64},
        vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
        | {"num_attention_heads": 4, "image_size": 16, "patch_size": 8},
        latent_query_num=4,
        attn_implementation="eager",
    )
    model = adopt(hf.Kosmos2ForConditionalGeneration(config).eval())
    batch = {
        "pixel_values": torch.randn(2, 3, 16, 16),
        "input_ids": torch.randint(5, 95, (2, 7)),
        "image_embeds_position_mask": torch.tensor([[0, 1, 1, 1, 1, 0, 0]] * 2),
    }
    with torch.no_grad():
        wanted = model(**batch).projection_attentions
        with replace(model, softmax_attention):
            torch.testing.assert_close(model(**batch).projection_attentions, wanted)


def test_observing_inside_torch_func_is_refused():
    model, batch = adopt(build("BERT")), batch_of("BERT")
    weight = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (), batch).logits.square().mean()

    assert torch.func.grad(loss)(weight)
    with observe(model, Watch()), pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.grad(loss)(weight)


def test_a_verb_at_a_site_that_no_forward_pass_calls_says_so():
    model = adopt(build("BART"))
    encoder, batch = model.get_encoder(), {"input_ids": batch_of("BART")["input_ids"]}
    with (
        pytest.warns(UserWarning, match=r"decoder\.0\.cross was not called while it was masked"),
        masked(model, {"decoder.0.cross": [0], "encoder.0.self": [0]}),
    ):
        encoder(**batch)
    with observe(model, Watch()):  # the encoder's sites are among those of the pattern
        encoder(**batch)
    with pytest.raises(RuntimeError), masked(model, {"decoder.0.cross": [0]}):
        raise RuntimeError("an error is not made worse by a warning")


def test_parity_names_the_first_site_that_differs():
    model, batch = build("BERT"), batch_of("BERT")

    def disturb(module: nn.Module, args: object, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (output[0] + 0.5 * ("site" in module.__dict__), *output[1:])

    model.bert.encoder.layer[1].attention.self.register_forward_hook(disturb)
    parity = check_parity(model, batch)
    assert not parity and parity.first_different == "encoder.1.self" and parity.repeatable
    assert str(parity).startswith("not equal, largest difference ")
    assert str(parity).endswith(" at encoder.1.self")


def test_eager_attention_with_an_unknown_step_is_not_followed():
    def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0):
        return torch.sigmoid(query @ key.mT * scaling) @ value, None

    assert classify("eager", eager_attention_forward, True).kind == "unknown"
    assert classify("sdpa", sdpa_attention_forward, False).obeys == ("position_bias",)


def test_top_k_of_a_host_that_returns_attentions_gives_its_own():
    model, batch = adopt(build("BERT", "eager")), batch_of("BERT")
    with replace(model, lambda *a, **k: topk_attention(*a, keep=2, **k)), torch.no_grad():
        weights = model(**batch, output_attentions=True).attentions
    assert all((layer > 0).sum(-1).max() <= 2 for layer in weights)
