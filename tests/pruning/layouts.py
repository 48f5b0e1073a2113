"""Small random models whose projections, norms or gates are laid out in ways of their own."""

import copy
import warnings
from typing import Any

import torch
import transformers as hf

from tests.hf.families import GROUPED, SIZES, randomised

CODE = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
HYBRID = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["full_attention", "full_attention"],
    "head_dim": 8,
}
PICTURES = {  # of Chameleon, which are no part of these tests
    "vocabulary_map": {"<image>": 90, **{f"IMGIMG{chr(65 + n)}Z": 91 + n for n in range(4)}},
    "vq_config": {
        "embed_dim": 32,
        "num_embeddings": 4,
        "latent_channels": 32,
        "resolution": 16,
        "base_channels": 32,
        "channel_multiplier": [1],
        "num_res_blocks": 1,
    },
}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "feature_projection_input_dim": 6,
    "layerdrop": 0.0,
}
WINDOWS = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 32,
    "depths": [2, 1],
    "num_heads": [4, 4],
    "window_size": 4,
}
PATCHES = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 64,
    "patch_size": 2,
    "temporal_patch_size": 1,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
}

# the names of a class and of its configuration, its settings, and what it is given: "text" to go
# on with, "image", "patches" or "sound"; names, as importing GPTBigCode warns
LAYOUTS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES, "text"),
    "Persimmon": (
        "PersimmonForCausalLM",
        "PersimmonConfig",
        {**SIZES, "pad_token_id": 0, "qk_layernorm": True},
        "text",
    ),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", GROUPED, "text"),
    "GPTBigCode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", CODE, "text"),
    "GPTBigCode, keys of each head": (
        "GPTBigCodeForCausalLM",
        "GPTBigCodeConfig",
        {**CODE, "multi_query": False},
        "text",
    ),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**GROUPED, **HYBRID, **EXPERTS, "shared_expert_intermediate_size": 16},
        "text",
    ),
    "Cohere": ("CohereForCausalLM", "CohereConfig", {**GROUPED, "use_qk_norm": True}, "text"),
    "Chameleon": (
        "ChameleonForConditionalGeneration",
        "ChameleonConfig",
        {**GROUPED, **PICTURES},
        "text",
    ),
    "AFMoE": (
        "AfmoeForCausalLM",
        "AfmoeConfig",
        {**GROUPED, **EXPERTS, "head_dim": 8, "num_dense_layers": 2},
        "text",
    ),
    "CTRL": ("CTRLLMHeadModel", "CTRLConfig", {**CODE, "dff": 64}, "text"),
    "Swin": ("SwinModel", "SwinConfig", WINDOWS, "image"),
    "Qwen3-VL's images": (
        "Qwen3VLVisionModel",
        "Qwen3VLVisionConfig",
        {**PATCHES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        "patches",
    ),
    "EXAONE 4.5's images": (
        "Exaone4_5_VisionModel",
        "Exaone4_5_VisionConfig",
        {**PATCHES, "num_key_value_heads": 2, "window_size": 4, "fullatt_block_indexes": [0, 1]},
        "patches",
    ),
    "Wav2Vec2-BERT": ("Wav2Vec2BertModel", "Wav2Vec2BertConfig", SPEECH, "sound"),
    "Wav2Vec2-BERT, as Transformer-XL": (
        "Wav2Vec2BertModel",
        "Wav2Vec2BertConfig",
        {**SPEECH, "position_embeddings_type": "relative"},
        "sound",
    ),
}
SPEAKING = [name for name, (*_, given) in LAYOUTS.items() if given == "text"]


def built(name: str, backend: str = "sdpa") -> hf.PreTrainedModel:
    """A model in eval mode; norms, biases and factors of heads are random as well."""
    kind, config, settings, _ = LAYOUTS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(hf, config)(**copy.deepcopy(settings), attn_implementation=backend)
        model = randomised(getattr(hf, kind)(made)).eval()
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 1 or "norm" in path or "bias" in path:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
    return model


def batch_of(name: str) -> dict[str, torch.Tensor]:
    """Two inputs."""
    rng = torch.Generator().manual_seed(1)
    if LAYOUTS[name][3] == "sound":
        return {"input_features": torch.randn(2, 9, 6, generator=rng)}
    if LAYOUTS[name][3] == "image":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=rng)}
    if LAYOUTS[name][3] == "patches":
        patches = torch.randn(16, 12, generator=rng)
        return {"hidden_states": patches, "grid_thw": torch.tensor([[1, 4, 4]])}
    return {"input_ids": torch.arange(3, 21).view(2, 9)}
