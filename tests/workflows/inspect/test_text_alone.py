"""Models that need more than text are refused before their forward pass fails."""

import pytest
import transformers as hf
from torch import nn

from headwise.workflows.inspect import inspect
from headwise.workflows.inspect.hugging_face import check_reads_text
from headwise.workflows.inspect.opening import open_subject
from tests.hf.families import EVERY, SIZES
from tests.workflows.small_hosts import LINES, host, save, tokenizer_for

STACK = {name: size for name, size in SIZES.items() if name != "vocab_size"}
TEXT = {**SIZES, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
VISION = {**STACK, "image_size": 16, "patch_size": 4}
SOUND = {
    **STACK,
    "vocab_size": 30,
    "conv_dim": (8, 8),
    "conv_stride": (2, 2),
    "conv_kernel": (3, 3),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
READS = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
WRITES = {
    **READS,
    "num_channels": 3,
    "cross_num_attention_heads": 4,
    "cross_num_key_value_heads": 4,
    "cross_head_dim": 8,
    "cross_hidden_size": 32,
    "pad_token_id": 97,
    "eos_token_id": 96,
    "bos_token_id": 98,
}
TWO_TEXTS = {**TEXT, "sep_token_id": 2, "encoder_hidden_size": 32}


def clip() -> hf.PreTrainedModel:
    return hf.CLIPModel(hf.CLIPConfig(text_config=TEXT, vision_config=VISION))


def llava() -> hf.PreTrainedModel:
    text = {**TEXT, "model_type": "llama", "num_key_value_heads": 4}
    vision = {**VISION, "model_type": "clip_vision_model"}
    config = hf.LlavaConfig(text_config=text, vision_config=vision, image_token_id=99)
    return hf.LlavaForConditionalGeneration(config)


def dia(kind: type[hf.PreTrainedModel]) -> hf.PreTrainedModel:
    config = hf.DiaConfig(encoder_config=READS, decoder_config=WRITES, delay_pattern=[0, 1, 2])
    return kind(config)


REFUSED = {
    "reads pixel_values, not text": lambda: hf.Dinov2Model(hf.Dinov2Config(**VISION)),
    "reads input_values, not text": lambda: hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**SOUND)),
    "CLIPModel also needs pixel_values, which inspect cannot give it": clip,
    "BlipForImageTextRetrieval also needs pixel_values": lambda: hf.BlipForImageTextRetrieval(
        hf.BlipConfig(text_config=TWO_TEXTS, vision_config=VISION)
    ),
    "DiaForConditionalGeneration reads or writes": lambda: dia(hf.DiaForConditionalGeneration),
    "DiaModel reads or writes codes": lambda: dia(hf.DiaModel),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_that_needs_more_than_text_is_refused_and_stays_as_it_was(why):
    model = REFUSED[why]().train()
    with pytest.raises(ValueError, match=why):
        inspect(model, tokenizer_for("BERT"), LINES)
    assert model.training
    assert not any("site" in module.__dict__ for module in model.modules())


def test_a_folder_of_such_a_model_is_refused_as_well(tmp_path):
    folder = save(clip(), tokenizer_for("BERT"), tmp_path / "model")
    with pytest.raises(ValueError, match="CLIPModel also needs pixel_values"):
        open_subject(folder)


def test_models_of_text_and_of_text_and_images_pass():
    for name, family in EVERY.items():
        if family.kind != "image":
            check_reads_text(host(name))
    check_reads_text(llava())
    check_reads_text(hf.CLIPTextModel(hf.CLIPTextConfig(**TEXT)))


def test_a_model_of_sentence_transformers_is_inspected_as_the_model_inside():
    inner, first = host("MPNet"), nn.Module()
    first.auto_model = inner
    tokenizer, options = tokenizer_for("MPNet"), {"sample": 3, "ablation_lines": 1}
    wrapped = inspect(nn.Sequential(first, nn.Identity()), tokenizer, LINES, **options)
    assert wrapped == inspect(inner, tokenizer, LINES, **options)
