"""What the sites of hosts are called."""

import copy

import pytest
import torch
import transformers as hf
from torch import nn

from headwise.hf import adopt, check_parity
from headwise.hf.naming import head_count, interface_forward
from headwise.sites import find_sites
from tests.hf.families import ADAPTED, EVERY, SIZES, build

ENCODER = ["encoder.0.self", "encoder.1.self"]
DECODER = ["decoder.0.self", "decoder.1.self"]
CROSSED = ["decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"]
NAMES = {
    "text": ENCODER,
    "image": ENCODER,
    "causal": DECODER,
    "two stacks": ENCODER + CROSSED,
    "crossed": CROSSED,
}


@pytest.mark.parametrize("name", EVERY)
def test_sites_are_named_by_stack_layer_and_what_they_look_at(name):
    sites = find_sites(adopt(build(name, "eager" if name in ADAPTED else "sdpa")))
    wanted = ["encoder.0.self"] if name == "ALBERT" else NAMES[EVERY[name].kind]
    assert [site.name for site in sites] == wanted
    assert {site.num_heads for site in sites} == {4}


def test_cross_attention_asks_from_the_decoder_and_looks_at_the_encoder():
    cross = find_sites(adopt(build("BART")), where="decoder.0.cross")[0]
    assert (cross.queries, cross.keys) == ("decoder", "encoder")


def test_layers_are_counted_as_the_host_counts_them():
    model = build("GPT-2", n_layer=12)
    names = [site.name for site in find_sites(adopt(model))]
    assert names == [f"decoder.{layer}.self" for layer in range(12)]


def test_twin_encoders_are_told_apart():
    stack = {key: SIZES[key] for key in SIZES if key != "vocab_size"}
    text = {**stack, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {**stack, "image_size": 16, "patch_size": 4}
    model = adopt(hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision)))
    names = [site.name for site in find_sites(model)]
    assert names == [
        "text_model.encoder.0.self",
        "text_model.encoder.1.self",
        "vision_model.encoder.0.self",
        "vision_model.encoder.1.self",
    ]
    site = find_sites(model, where="vision_model.*")[0]
    assert (site.queries, site.keys) == ("encoder", "encoder")


def test_a_pair_of_bert_models_is_an_encoder_and_a_decoder():
    encoder = hf.BertConfig(**SIZES)
    decoder = hf.BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, copy.copy(decoder))
    names = [site.name for site in find_sites(adopt(hf.EncoderDecoderModel(config)))]
    assert names == ENCODER + CROSSED


def test_only_what_asks_the_interface_is_taken_for_attention():
    assert interface_forward(nn.MultiheadAttention) is None
    assert interface_forward(hf.BertModel) is None


def test_groups_of_channels_are_heads_where_channels_attend_to_channels():
    vision = {
        "embed_dim": [8, 16],
        "num_heads": [2, 4],
        "num_groups": [4, 2],
        "depths": [1, 1],
        "window_size": 4,
        "patch_size": [3, 3],
        "patch_stride": [2, 2],
        "patch_padding": [1, 1],
        "patch_prenorm": [False, True],
    }
    model = hf.Florence2VisionBackbone(hf.Florence2VisionConfig(**vision)).eval()
    assert check_parity(model, {"hidden_states": torch.randn(2, 3, 16, 16)})
    assert [site.num_heads for site in find_sites(adopt(model))] == [2, 4, 4, 2]


def test_a_module_that_hides_its_heads_is_refused():
    module = nn.Identity()
    module.config = hf.PreTrainedConfig()
    with pytest.raises(ValueError, match="Identity does not say how many heads"):
        head_count(module)
