"""What the generic shrinking gets wrong, per family of transformers (or per class), as data."""

from typing import Any

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
TEXT_MROPE = {"text_config.rope_parameters": MROPE}
WINDOWS = {"vision_config.window_size": 32, "vision_config.fullatt_block_indexes": [1]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPLIT = MROPE | {"mrope_section": [1, 1, 2]}
BY_LAYER = {"full_attention": SPLIT, "sliding_attention": SPLIT}
DETR = {"encoder_hidden_dim": 256, "d_model": 256}
FLAT = {"backbone_config.reshape_hidden_states": False}
SPEECH = {"input_features": (2, 64, 16)}
BLIND = {"pixel_values": None, "image_grid_thw": None}  # a prompt without an image
TILED = {"pixel_values": (2, 2, 3, 32, 32), "image_sizes": [[32, 32], [32, 32]]}
SERIES = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
}
SWIN = {"image_size": 64, "window_size": 2}
PINPOINTS = {"image_grid_pinpoints": [[32, 32]]}
OMNI = {"vision_start_token_id": 70, **TEXT_MROPE}
LINE = {"pixel_values": (2, 3, 96, 640)}
DEAF = {"input_features": None, "input_values": None}  # a prompt without sound
PAIRS = {"pixel_values": (2, 2, 3, 32, 32)}
SERIES_INPUT = {
    "past_values": (2, 10),
    "past_time_features": (2, 10, 1),
    "past_observed_mask": (2, 10),
    "future_values": (2, 4),
    "future_time_features": (2, 4, 1),
}

# classes to try where the best-looking name is not the right one
CLASSES: dict[str, list[str]] = {
    "qwen2_5_omni": ["Qwen2_5OmniThinkerForConditionalGeneration"],
    "qwen3_omni_moe": ["Qwen3OmniMoeThinkerForConditionalGeneration"],
    "seamless_m4t": ["SeamlessM4TForTextToText"],
    "seamless_m4t_v2": ["SeamlessM4Tv2ForTextToText"],
    "bark": ["BarkSemanticModel"],
    "donut": ["DonutSwinModel"],
    "edgetam_video": [],
    "sam2_video": [],
    "sam3_tracker_video": [],
    "sam3_video": [],
    "splinter": ["SplinterModel"],
    "clap": ["ClapTextModel"],
    "musicgen": ["MusicgenForCausalLM"],
    "musicgen_melody": ["MusicgenMelodyForCausalLM"],
    "speecht5": ["SpeechT5ForSpeechToText"],
    "gemma3n": ["Gemma3nForCausalLM"],
    "moshi": ["MoshiForCausalLM"],
    "emu3": ["Emu3ForCausalLM"],
    "videomae": ["VideoMAEModel"],
    "flava": ["FlavaModel"],
    "hiera": ["HieraModel"],
    "slanext": ["SLANeXtForTableRecognition"],
    "decision_transformer": ["DecisionTransformerModel"],
    "wav2vec2_bert": ["Wav2Vec2BertModel"],
    "wav2vec2_conformer": ["Wav2Vec2ConformerModel"],
}
# configurations that are made of two others
COMPOSED: dict[str, dict[str, str]] = {
    "encoder_decoder": {"encoder": "BertConfig", "decoder": "BertConfig"},
    "speech_encoder_decoder": {"encoder": "Wav2Vec2Config", "decoder": "BertConfig"},
    "vision_encoder_decoder": {"encoder": "ViTConfig", "decoder": "BertConfig"},
    "vision_text_dual_encoder": {"vision_config": "ViTConfig", "text_config": "BertConfig"},
}
# fields of configurations; `sub_config.field` for those inside
CONFIGS: dict[str, dict[str, Any]] = {
    "autoformer": {**SERIES, "label_length": 4},
    "informer": SERIES,
    "time_series_transformer": SERIES,
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "bros": {"hidden_size": 128},
    "blip_2": {"image_token_index": 99},
    "instructblip": {"image_token_index": 99},
    "instructblipvideo": {"video_token_index": 99},
    "bridgetower": {
        "hidden_size": 128,
        "text_config.hidden_size": 128,
        "vision_config.hidden_size": 128,
    },
    "chameleon": {"vocabulary_map": {"<image>": 99, "IMGIMGAZ": 10}},
    "emu3": {"vocabulary_map": {"<|extra_200|>": 98, "<image>": 99}},
    "cohere_compass": {"text_config.rope_parameters": BY_LAYER, "rope_parameters": BY_LAYER},
    "mimi": {"upsample_groups": 32},
    "csm": {"codec_config.upsample_groups": 32},
    "kyutai_speech_to_text": {"codec_config.upsample_groups": 32},
    "moshi": {"audio_encoder_config.upsample_groups": 32},
    "qwen4_exp": {
        f"{part}{name}": value
        for part in ("", "text_config.")
        for name, value in {
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 8,
            "indexer_compress_ratio": 4,
        }.items()
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {
        "text_config.mlp_layer_types": ["dense", "sparse"],
        "text_config.num_experts_per_tok": 2,
    },
    **dict.fromkeys(("swin", "swinv2", "donut", "maskformer"), SWIN),
    "efficientnet": {"hidden_dim": 2560},
    "ernie4_5_vl_moe": {"text_config.rope_parameters": MROPE | {"mrope_section": [1, 1, 2]}},
    "fun_asr_nano": {"adaptor_config.intermediate_size": 8},
    "gemma3n": {"num_kv_shared_layers": 0},
    "gemma4": {"text_config.global_head_dim": 8, "global_head_dim": 8},
    "gemma4_unified": {"text_config.global_head_dim": 8, "global_head_dim": 8},
    "diffusion_gemma": {"text_config.global_head_dim": 8},
    "led": {"attention_window": 4},
    "levit": {"patch_size": 16, "image_size": 64},
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), PINPOINTS),
    "step3p7": {"text_config.sliding_window": 4},
    "t5gemma2": {"encoder.mm_tokens_per_image": 4},
    "voxtral": {"audio_token_id": 99},
    "kosmos2": {"latent_query_num": 4},
    "neomme": {"head_dim": 16},
    "vits": {"vocab_size": 100},
    "vitmatte": {"fusion_hidden_sizes": [32, 32, 32, 32]},
    "nemotron_h": {"n_groups": 1},
    "paddleocr_vl": TEXT_MROPE,
    "glm_image": TEXT_MROPE,
    "hunyuan_vl": {"text_config.head_dim": 8, **TEXT_MROPE},
    "colqwen2": {"vlm_config.text_config.rope_parameters": MROPE},
    **dict.fromkeys(("qwen2_5_omni", "qwen3_omni_moe"), OMNI),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine", "deimv2"), DETR),
    **dict.fromkeys(("pp_doclayout_v2", "pp_doclayout_v3"), DETR),
    **dict.fromkeys(("depth_anything", "prompt_depth_anything", "zoedepth"), FLAT),
    "tipsv2_dpt": FLAT,
    "moonshine_streaming": {"num_key_value_heads": 4},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "attention_hidden_size": 64,
    },
    "vibevoice": {"diffusion_head_config.latent_size": 32},
    "seggpt": {"image_size": [64, 32]},
    "cosmos3_edge": TEXT_MROPE,
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "esm": {"vocab_size": 100},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "lilt": {"hidden_size": 48},
    "layoutlmv3": {"coordinate_size": 5, "shape_size": 6, "input_size": 32},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "gemma3": {"mm_tokens_per_image": 4},
    "shieldgemma2": {"mm_tokens_per_image": 4, "yes_token_index": 50, "no_token_index": 51},
    "vipllava": {"vision_feature_layers": [-2, -1]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "mamba2": {"num_heads": 8},
    "glm5_next": {"text_config.num_key_value_heads": 4, "text_config.index_topk": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "granite_speech5": {"encoder_config.context_size": 16},
    "xmod": {"default_language": "en_XX"},
    **dict.fromkeys(("qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm46v"), TEXT_MROPE),
    **dict.fromkeys(("glm_ocr", "qwen3_5", "qwen3_5_moe"), TEXT_MROPE),
    "glm4v_moe": {"text_config.rope_parameters": MROPE | {"partial_rotary_factor": 1.0}},
    "qwen2_5_vl": {**TEXT_MROPE, **WINDOWS},
    "exaone4_5": WINDOWS,
}
# shapes of inputs (tuples), or their values (lists); None leaves one out
INPUTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("autoformer", "informer", "time_series_transformer"), SERIES_INPUT),
    "audio_spectrogram_transformer": {"input_values": (2, 1024, 16)},
    "idefics": {"pixel_values": (2, 1, 3, 32, 32), "image_attention_mask": (2, 10, 1)},
    "instructblip": {"qformer_input_ids": (2, 5)},
    "instructblipvideo": {"qformer_input_ids": (2, 5)},
    "patchtst": {"past_values": (2, 32, 1)},
    "patchtsmixer": {"past_values": (2, 32, 1)},
    "lxmert": {"visual_feats": (2, 4, 2048), "visual_pos": (2, 4, 4)},
    "musicgen": {"input_ids": (8, 10)},
    "musicgen_melody": {"input_ids": (8, 10)},
    **dict.fromkeys(("canary", "cohere_asr", "parakeet", "lasr", "nemotron_asr_streaming"), SPEECH),
    "nemotron3_5_asr": SPEECH,
    "granite_speech5": {"input_features": (2, 64, 64)},
    "wav2vec2_bert": {"input_features": (2, 20, 160)},
    "clvp": {"input_features": (2, 80, 64)},
    "speech_to_text": {"input_features": (2, 64, 80)},
    "pop2piano": {"input_ids": None, "input_features": (2, 6, 32)},
    "qwen2_5_omni": {**BLIND, "input_features": None},
    "qwen3_omni_moe": {**BLIND, "input_features": None},
    **dict.fromkeys(
        ("chameleon", "emu3", "colqwen2", "deepseek_ocr2", "deepseek_vl_hybrid"), BLIND
    ),
    **dict.fromkeys(("glm_image", "hunyuan_vl", "kimi_k25", "paddleocr_vl"), BLIND),
    **dict.fromkeys(("lfm2_vl", "llama4", "mllama", "step3p7", "cohere_compass"), BLIND),
    **dict.fromkeys(("diffusion_gemma", "muse_glimmer", "video_llama_3", "glm5_next"), BLIND),
    "gemma4": {**BLIND, "input_features": None},
    "gemma4_unified": {**BLIND, "input_features": None},
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), TILED),
    "mimi": {"input_values": (2, 1, 1600)},
    "pe_audio": {"input_values": (2, 1, 1600)},
    "vibevoice_acoustic_tokenizer": {"input_values": (2, 1, 3200)},
    "kosmos2": {"image_embeds_position_mask": [[0, 1, 1, 1, 1, 0, 0, 0, 0, 0]] * 2},
    "pix2struct": {
        "flattened_patches": [[[1.0, 1.0 + place, *([0.1] * 32)] for place in range(6)]] * 2
    },
    **dict.fromkeys(("pp_ocrv5_mobile_rec", "pp_ocrv5_server_rec"), LINE),
    **dict.fromkeys(("pp_ocrv6_small_rec", "pp_ocrv6_tiny_rec"), LINE),
    **dict.fromkeys(("qwen2_audio", "qwen3_asr", "granite_speech", "granite_speech_plus"), DEAF),
    "fun_asr_nano": DEAF,
    "kyutai_speech_to_text": {"input_ids": (2, 10, 33), **DEAF},
    "neomme": BLIND,
    "xcodec2": {"input_values": (2, 1, 1600)},
    "speech_encoder_decoder": {"input_features": None, "inputs": (2, 1600), "input_ids": None},
    "pi0": {"state": (2, 32)},
    "timesfm": {
        "past_values": (2, 128),
        "past_values_padding": [[0] * 128] * 2,
        "freq": [[0], [0]],
    },
    "qwen4_exp": BLIND,
    "dia": {"decoder_input_ids": (2, 5, 9)},
    "deberta_v2": {"attention_mask": [[1] * 10] * 2},  # padded queries see nothing there
    "siglip2": {
        "pixel_values": (2, 16, 192),
        "pixel_attention_mask": (2, 16),
        "spatial_shapes": [[4, 4], [4, 4]],
    },
    "seggpt": {
        "pixel_values": (2, 3, 32, 32),
        "prompt_pixel_values": (2, 3, 32, 32),
        "prompt_masks": (2, 3, 32, 32),
    },
    "decision_transformer": {
        "states": (2, 5, 17),
        "actions": (2, 5, 4),
        "rewards": (2, 5, 1),
        "returns_to_go": (2, 5, 1),
        "timesteps": [[0, 1, 2, 3, 4]] * 2,
        "attention_mask": (2, 5),
    },
    "timesfm2_5": {"past_values": (2, 128)},
    "segformer": {"pixel_values": (2, 3, 128, 128)},
    "oneformer": {"task_inputs": [[5] * 77] * 2},
    **dict.fromkeys(("superglue", "lightglue"), PAIRS),
    "audioflamingo3": {"input_features_mask": (2, 64)},
    "musicflamingo": {"input_features_mask": (2, 64)},
    "glmasr": {"input_features_mask": (2, 64)},
    "lighton_ocr": {"image_sizes": [[32, 32], [32, 32]]},
    "mistral3": {"image_sizes": [[32, 32], [32, 32]]},
    "mgp_str": {"pixel_values": (2, 3, 32, 128)},
    "vitpose": {"pixel_values": (2, 3, 256, 192)},
    "vitpose_backbone": {"pixel_values": (2, 3, 256, 192)},
    "encodec": {"input_values": (2, 1, 1600)},
    "dac": {"input_values": (2, 1, 1600)},
    "xcodec": {"input_values": (2, 1, 1600)},
}
