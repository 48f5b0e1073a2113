"""Attention that is not understood is refused before it is changed; what is close to it is cut."""

import copy
import warnings

import pytest
import torch
import transformers as hf
from transformers.models.llama.modeling_llama import LlamaAttention

from headwise.hf import adopt
from headwise.pruning.cutting import prune
from headwise.pruning.record import record_of
from headwise.pruning.saving import load, save
from headwise.sites import find_sites, masked
from tests.hf.families import GROUPED, SIZES, build, randomised
from tests.pruning.shrinking import bare_keep, removed, uneven_keep

IDS = torch.arange(3, 21).view(2, 9)
EVEN = {**SIZES, "num_key_value_heads": 4}
SMALL = {"image_size": 16, "patch_size": 4}
IMAGES = {**SMALL, "use_relative_position_bias": True}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
OF_8 = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}


def built(config):
    """A small random model of a configuration, adopted."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return adopt(randomised(hf.AutoModel.from_config(copy.deepcopy(config))).eval())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (hf.StableLmConfig(**EVEN, qk_layernorm=True), r"has q_layernorm\.norms\.0\.weight, of"),
        (hf.DiffLlamaConfig(**EVEN), "has lambda_q1, of"),
        (hf.DogeConfig(**EVEN), "has A, of"),  # of which each is made of the values of all heads
        (hf.Olmo2Config(**EVEN), "has q_norm, which normalises all heads together"),
        (hf.BitNetConfig(**EVEN), "has attn_sub_norm, which normalises all heads together"),
        (hf.UdopConfig(**T5, **SMALL), r"is given encoder\.relative_bias\.biases\.0"),
        (hf.BeitConfig(**SIZES, **IMAGES), r"is given .*relative_position_bias_table from"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, hf.PreTrainedConfig) else "",
)
def test_a_model_that_is_not_understood_is_refused_and_left_alone(config, message):
    model = built(config)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=rf"Attention of \w+\.0\.self {message}.*cannot be pruned"):
        prune(model, {find_sites(model)[0].name: [1, 3]})
    assert record_of(model) is None and find_sites(model)[0].num_heads == 4
    assert all(torch.equal(model.state_dict()[name], old) for name, old in before.items())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (hf.DeepseekV3Config(**EVEN, **LATENT), r"one compressed vector \(multi-head latent att"),
        (hf.JetMoeConfig(**EVEN, kv_channels=8), "has projections that are mixtures of experts"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, hf.PreTrainedConfig) else "",
)
def test_projections_of_another_kind_are_refused_with_what_they_are(config, message):
    model = built(config)
    with pytest.raises(ValueError, match=rf"Attention of decoder\.0\.self .*{message}"):
        prune(model, {find_sites(model)[0].name: [1, 3]})
    assert record_of(model) is None


@pytest.mark.parametrize("choose", [uneven_keep, bare_keep])
@pytest.mark.parametrize(
    "config",
    [
        hf.GptOssConfig(**OF_8, **EXPERTS),  # as many sinks as a head is wide
        hf.GptOssConfig(**GROUPED, **EXPERTS),
        hf.UMT5Config(**T5, decoder_start_token_id=0),
        hf.Qwen3Config(**GROUPED, head_dim=8),
        hf.HunYuanDenseV1Config(**GROUPED, head_dim=8),
        hf.PhiConfig(**SIZES, qk_layernorm=True),
    ],
    ids=["GPT-OSS", "GPT-OSS with groups", "UMT5", "Qwen3", "HunYuan", "Phi"],
)
def test_what_else_is_known_of_heads_is_cut_with_them(config, choose, tmp_path):
    model = built(config)
    keep = choose(model)
    batch = {"input_ids": IDS}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = IDS[:, :5]
    with torch.no_grad():
        with masked(model, removed(model, keep)):
            wanted = model(**batch)[0]
        assert not torch.allclose(model(**batch)[0], wanted, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(prune(model, keep)(**batch)[0], wanted, rtol=1e-4, atol=1e-5)
        save(model, tmp_path / "small")
        again = load(tmp_path / "small")(**batch)[0]
    torch.testing.assert_close(again, wanted, rtol=1e-4, atol=1e-5)


class Reading(LlamaAttention):
    """Attention that knows how wide its heads are together, as older code does."""

    def forward(self, *inputs, **named):
        assert self.hidden_size == self.o_proj.in_features
        return super().forward(*inputs, **named)


class Asking(LlamaAttention):
    """Attention that asks its configuration for the number of heads."""

    def forward(self, *inputs, **named):
        assert self.config.num_attention_heads == 4
        return super().forward(*inputs, **named)


def test_numbers_that_would_no_longer_be_true_are_refused():
    for kind, read in ((Reading, "hidden_size"), (Asking, r"config\.num_attention_heads")):
        model = build("Llama")
        model.model.layers[1].self_attn.__class__ = kind
        model.model.layers[1].self_attn.hidden_size = 32
        adopt(model)
        prune(model, {"decoder.0.self": [0, 1]})
        with pytest.raises(ValueError, match=rf"{kind.__name__} .* computes with self\.{read}, "):
            prune(model, {"decoder.1.self": [0, 1]})


def test_what_rotates_all_heads_together_is_refused():
    """EfficientLoFTR applies positions to queries before it splits them into heads."""
    small = {"num_attention_heads": 2, "stage_num_blocks": [1, 1, 1, 1], "num_attention_layers": 1}
    widths = {"stage_stride": [2, 1, 2, 2], "out_features": [8, 8, 8, 8], "hidden_size": 8}
    model = built(hf.EfficientLoFTRConfig(**small, **widths))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="computes with dim, the width of the model, as that of"):
        prune(model, {find_sites(model)[0].name: [1]})
    assert all(torch.equal(model.state_dict()[name], old) for name, old in before.items())
    assert record_of(model) is None


def test_offloaded_weights_are_refused_and_left_alone(tmp_path):
    build("Llama").save_pretrained(tmp_path)
    places = {f"model.{part}": "cpu" for part in ("embed_tokens", "layers.1", "norm", "rotary_emb")}
    places |= {"model.layers.0": "disk", "lm_head": "cpu"}
    model = hf.LlamaForCausalLM.from_pretrained(
        tmp_path, device_map=places, offload_folder=tmp_path / "offloaded"
    )
    wanted = adopt(model)(IDS).logits
    for site in ("decoder.0.self", "decoder.1.self"):
        with pytest.raises(ValueError, match=r"layers\.0\.\S+ are offloaded by accelerate, so"):
            prune(model, {site: [0, 1]})
    assert record_of(model) is None
    assert torch.equal(model(IDS).logits, wanted)


def test_a_model_without_weights_is_refused():
    config = copy.deepcopy(build("BERT").config)
    with torch.device("meta"):
        model = adopt(hf.BertForMaskedLM(config))
    with pytest.raises(ValueError, match=r"word_embeddings\.weight is on the meta device, which"):
        prune(model, {"encoder.0.self": [0]})


class Adapted(torch.nn.Module):
    """A layer as peft wraps it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(32, 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(2, 32, bias=False)})

    def forward(self, hidden):
        return self.base_layer(hidden) + self.lora_B["default"](self.lora_A["default"](hidden))


class Packed(torch.nn.Module):
    """A layer as GPTQ keeps it."""

    def __init__(self, layer):
        super().__init__()
        self.register_buffer("qweight", layer.weight.detach().to(torch.int32))


def narrow(layer):
    """A layer with weights as bitsandbytes keeps them, in another precision."""
    layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.int8), requires_grad=False)
    return layer


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (Adapted, r"has an adapter on {} \(Adapted\); merge the adapters first: model\.merge_and"),
        (Packed, r"has a quantised {} \(Packed\); prune before quantising"),
        (narrow, r"has a quantised {} \(Linear\); prune before quantising"),
    ],
)
@pytest.mark.parametrize("layer", ["attention.self.value", "attention.output.dense"])
def test_adapters_and_quantised_layers_are_refused_with_what_to_do(wrap, message, layer):
    model = adopt(build("BERT"))
    place = f"bert.encoder.layer.1.{layer}"
    model.set_submodule(place, wrap(model.get_submodule(place)))
    with pytest.raises(ValueError, match=message.format(layer.split(".", 1)[1].split("self.")[-1])):
        prune(model, {"encoder.0.self": [0], "encoder.1.self": [0]})
    assert record_of(model) is None and find_sites(model)[0].num_heads == 4


def test_layers_that_pytorch_quantised_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.ao.quantization.quantize_dynamic(build("Llama"), {torch.nn.Linear})
    with pytest.raises(ValueError, match=r"quantised q_proj \(Linear\); prune before quantising"):
        prune(adopt(quantised), {"decoder.0.self": [0, 1]})


def test_layers_and_buffers_that_may_tell_heads_apart_are_refused():
    model = adopt(build("BERT"))
    attention = model.bert.encoder.layer[0].attention.self
    attention.talking = torch.nn.Softmax(1)
    with pytest.raises(ValueError, match="has talking, of which headwise does not know"):
        prune(model, {"encoder.0.self": [0]})
    del attention.talking
    attention.register_buffer("slopes", torch.ones(4))
    with pytest.raises(ValueError, match="has slopes, of which headwise does not know"):
        prune(model, {"encoder.0.self": [0]})


def test_the_last_head_of_a_layer_is_no_obstacle():
    model = prune(adopt(build("BERT")), {"encoder.0.self": [1]})
    assert len(find_sites(prune(model, {"encoder.0.self": []}))) == 1
