"""Tiny random models of any family of transformers, and inputs for them, made from configurations.

A configuration class is shrunk by the names of its fields (`RULES`), sub-configurations included;
what that gets wrong for one family stands in `corrections.py`, as data.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tests.hf.survey.corrections import CLASSES, COMPOSED, CONFIGS, INPUTS

Batch = dict[str, Any]
WIDTH, HEADS, IMAGE, TEXT = 32, 4, 32, 10
PREFERRED = (  # endings of class names, the best first
    "ForConditionalGeneration",
    "ForCausalLM",
    "MTModel",
    "ForMaskedLM",
    "LMHeadModel",
    "ForSpeechSeq2Seq",
    "ForCTC",
    "ForPreTraining",
    "Model",
    "ForObjectDetection",
    "ForImageClassification",
    "",
)
# (name of a field, value): the first that fits a field with a whole number decides
RULES: tuple[tuple[str, int | None], ...] = (
    (r"type_vocab_size|num_channels|.*num_labels|.*_stride|.*kernel.*", None),
    (r".*vocab_size.*", 100),
    (r".*(num_key_value_heads|kv_heads|num_kv_heads)", 2),
    (r"(.*_)?n(um)?_(.*_)?heads?|(.*_)?attention_heads|heads|n_heads", HEADS),
    (r".*head_dim|d_kv|attention_key_dim|dim_head|d_head", WIDTH // HEADS),
    (r".*(_|^)layers|n_layer|depth|num_blocks|num_hidden_groups|.*num_.*_layers", 2),
    (r".*(intermediate|ffn|feedforward|mlp|inner).*(size|dim)|d_ff|d_inner|ffn_dim|n_inner", 64),
    (r".*lora_rank", 16),
    (r".*(num|n)_.*experts(?!_per).*|num_experts", 4),
    (r".*experts_per_tok.*|moe_topk|moe_k|top_k_experts|num_selected_experts", 2),
    (r"n_group|topk_group", 1),
    (r"n_shared_experts|num_shared_experts", 1),
    (r"index_topk", 4),
    (r"(mamba_)?chunk_size", 8),
    (r"sliding_window|attention_chunk_size|local_attention|.*window_size", 4),
    (r"(max_|n_).*positions?(_embeddings)?|.*_positions|max_seq_len|context_length", 64),
    (r"image_size|.*img_size", IMAGE),
    (r"patch_size", 8),
    (r".*hidden_size.*|hidden_dim|d_model|n_embd|dim|.*embed_dim|embedding_size", WIDTH),
    (r"projection_dim|.*_hidden_dim|emb_dim|word_embed_proj_dim|embedding_dim|width", WIDTH),
    (r"num_mel_bins", 16),
    (r"num_queries|num_query_tokens", 4),
    (r"first_k_dense_replace", 1),
    (r"(pad|bos|eos)_token_id", None),
)
SOFTCAPS = ("attn_logit_softcapping", "attention_logit_cap")  # so small that they matter
ORDINARY = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MARK = re.compile(r".*(_token_id|_token_index|_tok_id)")


def families() -> list[str]:
    """Names of the folders of transformers that hold models."""
    folder = Path(transformers.__file__).parent / "models"
    return sorted({path.parent.name for path in folder.glob("*/modeling_*.py")} - {"auto"})


def classes(family: str) -> list[type[PreTrainedModel]]:
    """One or two classes of a family: the preferred, and the preferred text-only one if another."""
    if family in CLASSES:
        return [getattr(transformers, name) for name in CLASSES[family]]
    found: list[type[PreTrainedModel]] = []
    folder = Path(transformers.__file__).parent / "models" / family
    for path in sorted(folder.glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{family}.{path.stem}")
        exported = [getattr(module, name) for name in getattr(module, "__all__", ())]
        found += [kind for kind in exported if _is_model(kind)]
    ranked = sorted(found, key=_rank)
    first = ranked[:1]
    others = [kind for kind in ranked if kind.__name__.endswith(PREFERRED[1])]
    return first + [kind for kind in others[:1] if kind.config_class is not first[0].config_class]


def _is_model(kind: Any) -> bool:
    return (
        inspect.isclass(kind)
        and issubclass(kind, PreTrainedModel)
        and not kind.__name__.endswith("PreTrainedModel")
        and kind.config_class is not None
    )


def _rank(kind: type) -> int:
    return next(i for i, ending in enumerate(PREFERRED) if kind.__name__.endswith(ending))


def tiny_config(kind: type[PreTrainedModel]) -> PreTrainedConfig:
    """A small configuration of a model class."""
    family = kind.__module__.split(".")[-2]
    corrections = {**CONFIGS.get(family, {}), **CONFIGS.get(kind.__name__, {})}
    if family in COMPOSED:
        parts = {k: shrunk(getattr(transformers, v), None, {}) for k, v in COMPOSED[family].items()}
        if "decoder" in parts:
            parts["decoder"].is_decoder = parts["decoder"].add_cross_attention = True
        config = kind.config_class(**{name: part.to_dict() for name, part in parts.items()})
    else:
        config = shrunk(kind.config_class, None, corrections)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    return config


def shrunk(
    kind: type[PreTrainedConfig], default: PreTrainedConfig | None, corrections: dict[str, Any]
) -> PreTrainedConfig:
    """A configuration with small numbers; corrections name fields, or `sub_config.field`."""
    default = kind() if default is None else default
    values: dict[str, Any] = {}
    marks = iter(range(99, 60, -1))
    for name, given in _fields(kind):
        value = vars(default).get(name)
        if isinstance(value, PreTrainedConfig):
            nested = {
                key.removeprefix(f"{name}."): correction
                for key, correction in corrections.items()
                if key.startswith(f"{name}.")
            }
            values[name] = shrunk(type(value), value, nested)
        elif name in ORDINARY:
            values[name] = ORDINARY[name]
        elif name in SOFTCAPS and value:
            values[name] = 1.0
        elif MARK.fullmatch(name) and isinstance(value, int):
            values[name] = next(marks)
        elif _is_number(given) and _is_number(value):
            small = HEADS if name in KV and value == _heads(default) else _small(name)
            if (small is not None and small < value) or value != given:
                values[name] = min(value, small) if small is not None else value
        elif isinstance(value, list | tuple) and value and all(_is_number(n) for n in value):
            if name in ("depths", "layers_per_stage", "encoder_depths"):
                values[name] = [1] * len(value)
            elif name == "num_heads" and isinstance(getattr(default, "embed_dim", None), int):
                values[name] = [2, 4, 8, 16][: len(value)] if len(value) < 5 else [4] * len(value)
    values |= _layer_kinds(kind, default, values) | _stages(default)
    values |= {k: v for k, v in corrections.items() if "." not in k}
    return kind(**values)


KV = ("num_key_value_heads", "num_kv_heads")


def _heads(config: PreTrainedConfig) -> object:
    return getattr(config, "num_attention_heads", None)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fields(kind: type[PreTrainedConfig]) -> Iterator[tuple[str, Any]]:
    """Each field of a configuration class with its default, sub-configurations too."""
    for field in dataclasses.fields(kind):
        if not field.name.startswith("_"):
            yield field.name, None if field.default is dataclasses.MISSING else field.default


def _small(name: str) -> int | None:
    return next((value for pattern, value in RULES if re.fullmatch(pattern, name)), None)


def _layer_kinds(
    kind: type[PreTrainedConfig], default: PreTrainedConfig, values: dict[str, Any]
) -> dict[str, Any]:
    """Lists with one entry per layer get each kind of layer once."""
    lists: dict[str, list[Any]] = {}
    names = {field.name for field in dataclasses.fields(kind)}
    for name in names & {"layer_types", "layers_block_type", "mlp_layer_types"}:
        held = getattr(default, name, None)
        if isinstance(held, list | tuple) and held:
            lists[name] = list(dict.fromkeys(held))
    counted = next((n for n in ("num_hidden_layers", "num_layers") if n in values), None)
    if not lists or counted is None:
        return {}
    count = max(2, *map(len, lists.values()))
    return {counted: count} | {n: (held * count)[:count] for n, held in lists.items()}


def _stages(default: PreTrainedConfig) -> dict[str, Any]:
    """A backbone gives as many feature maps as it did; one without stages has that many layers."""
    indices = vars(default).get("_out_indices")
    if not isinstance(indices, list | tuple) or len(indices) < 2:
        return {}
    if hasattr(default, "depths") or not hasattr(default, "num_hidden_layers"):
        return {"out_indices": list(indices)}
    return {"num_hidden_layers": len(indices), "out_indices": list(range(1, len(indices) + 1))}


def build(config: PreTrainedConfig, kind: type[PreTrainedModel], backend: str) -> PreTrainedModel:
    """A model in eval mode whose attention differs from uniform; the same at every call."""
    torch.manual_seed(0)
    config._attn_implementation = backend
    model = kind(config).eval()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.normal_(std=0.2, generator=rng)
    return model


def batch_for(model: PreTrainedModel) -> Batch:
    """Two inputs that the model's forward accepts; what it complains about is put right."""
    family = type(model).__module__.split(".")[-2]
    given = {**INPUTS.get(family, {}), **INPUTS.get(type(model).__name__, {})}
    counts: dict[str, int] = {}
    for _ in range(5):
        batch = _batch(model, given, counts)
        try:
            with torch.no_grad():
                model(**batch)
        except ValueError as error:
            if not _learned(str(error), given, counts, model.config):
                raise
        else:
            return batch
    raise ValueError(f"No number of image, video or audio tokens suits {type(model).__name__}.")


COUNTED = re.compile(r"(Image|Video|Audio) features.* do not match.*features:? ?(\d+)", re.DOTALL)


def _learned(
    said: str, given: dict[str, Any], counts: dict[str, int], config: PreTrainedConfig
) -> bool:
    """Take the number of image tokens, or that images have five axes, from a host's message."""
    if "expected 5, got 4" in said and len(given.get("pixel_values", ())) < 5:
        batch, *image = given.get("pixel_values", _shape("pixel_values", config))
        frames = getattr(_part(config, "vision_config", "num_frames"), "num_frames", 1)
        given["pixel_values"] = (batch, frames, *image)
        return True
    if (found := COUNTED.search(said)) is None:
        return False
    kind, count = found[1].lower(), int(found[2])
    if counts.get(kind) == count:  # some hosts tell the number of values
        count //= WIDTH
    counts[kind] = count
    return True


def _batch(model: PreTrainedModel, given: dict[str, Any], counts: dict[str, int]) -> Batch:
    rng = torch.Generator().manual_seed(1)
    parameters = inspect.signature(model.forward).parameters
    batch: Batch = {}
    for name, parameter in parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        required = named and parameter.default is parameter.empty
        if name in given:
            shape = given[name]
        elif required or name == model.main_input_name or name in USUAL:
            shape = _shape(name, model.config, grid="image_grid_thw" in parameters)
        else:
            continue
        if shape is not None:
            batch[name] = _values(name, shape, rng)
    extra = {name: shape for name, shape in given.items() if name not in batch}
    batch |= {n: _values(n, shape, rng) for n, shape in extra.items() if shape is not None}
    if "input_ids" in batch and batch["input_ids"].dim() == 2:
        batch["input_ids"] = _with_marks(batch["input_ids"], model.config, counts)
        if set(batch) <= {"input_ids", "decoder_input_ids"} and "attention_mask" in parameters:
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
            batch["attention_mask"][1, -1] = 0
        if counts and "attention_mask" in parameters:
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        if counts and "mm_token_type_ids" in parameters:
            batch["mm_token_type_ids"] = (batch["input_ids"] > 60).int()
    return batch


USUAL = {
    "input_ids",
    "decoder_input_ids",
    "pixel_values",
    "input_features",
    "bbox",
    "image_grid_thw",
}


def _shape(name: str, config: PreTrainedConfig, *, grid: bool = False) -> Any:
    """The shape of an input, or its values as a list; None if nothing is known of it."""
    vision = _part(config, "vision_config", "image_size")
    audio = _part(config, "audio_config", "num_mel_bins")
    side = getattr(vision, "image_size", IMAGE)
    side = side if isinstance(side, int) else side[0] if isinstance(side, list | tuple) else IMAGE
    channels = getattr(vision, "num_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    if grid:
        vision = _part(config, "vision_config", "patch_size")
        size = getattr(vision, "patch_size", 8)
        patch = 3 * getattr(vision, "temporal_patch_size", 1) * size**2
    mels, frames = getattr(audio, "num_mel_bins", 16), getattr(audio, "max_source_positions", 32)
    return {
        "input_ids": (2, TEXT),
        "decoder_input_ids": (2, 5),
        "pixel_values": (32, patch) if grid else (2, channels, side, side),
        "pixel_values_videos": (2, getattr(vision, "num_frames", 2), channels, side, side),
        "image_grid_thw": [[1, 4, 4], [1, 4, 4]],
        "bbox": (2, TEXT, 4),
        "input_values": (2, 1600),
        "input_features": (2, mels, 2 * frames),
    }.get(name)


def _part(config: PreTrainedConfig, name: str, field: str) -> PreTrainedConfig:
    """The sub-configuration of this name, or any that has the field, or the configuration."""
    parts = [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
    candidates = [getattr(config, name, None), config, *parts]
    return next((part for part in candidates if part is not None and hasattr(part, field)), config)


def _values(name: str, shape: Any, rng: torch.Generator) -> Any:
    """Random values of a shape (a tuple); a list is values already."""
    if not isinstance(shape, tuple):
        return torch.tensor(shape) if isinstance(shape, list) else shape
    if "ids" in name.split("_") or name.endswith("codes"):
        return torch.randint(10, 60, shape, generator=rng)
    if "mask" in name.split("_"):
        return torch.ones(shape, dtype=torch.long)
    if name == "bbox":
        return torch.randint(0, 10, shape, generator=rng).sort(-1).values
    return torch.randn(shape, generator=rng)


def _with_marks(ids_BT: Tensor, config: PreTrainedConfig, counts: dict[str, int]) -> Tensor:
    """Token ids with each item's share of image, video and audio tokens behind the first."""
    for kind, count in counts.items():
        names = (f"{kind}_token_id", f"{kind}_token_index")
        parts = (config, *(v for v in vars(config).values() if isinstance(v, PreTrainedConfig)))
        held = [getattr(part, name, None) for part in parts for name in names]
        mark_BT = torch.full((2, count // 2), next(mark for mark in held if isinstance(mark, int)))
        ids_BT = torch.cat([ids_BT[:, :1], mark_BT, ids_BT[:, 1:]], 1)
    return ids_BT
