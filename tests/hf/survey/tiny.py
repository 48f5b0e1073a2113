"""Tiny random models of any family of transformers, and inputs for them, made from configurations.

A configuration class is shrunk by the names of its fields (`RULES`), sub-configurations included;
what that gets wrong for one family stands in `corrections.py`, as data.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tests.hf.survey.corrections import CLASSES, CONFIGS, INPUTS, LACKING

Batch = dict[str, Any]
WIDTH, HEADS, IMAGE, TEXT = 32, 4, 32, 9
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
    (r"sliding_window|attention_chunk_size|local_attention|.*window_size", 4),
    (r"(max_|n_).*positions?(_embeddings)?|.*_positions|max_seq_len|context_length", 64),
    (r"image_size|.*img_size", IMAGE),
    (r"patch_size", 8),
    (r".*hidden_size.*|hidden_dim|d_model|n_embd|dim|.*embed_dim|embedding_size", WIDTH),
    (r"projection_dim|.*_hidden_dim|emb_dim|word_embed_proj_dim|embedding_dim|width", WIDTH),
    (r"num_mel_bins", 16),
    (r"first_k_dense_replace", 1),
    (r"(pad|bos|eos)_token_id", None),
)
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
        value = getattr(default, name, None)
        if isinstance(value, PreTrainedConfig):
            nested = {k.removeprefix(f"{name}."): v for k, v in corrections.items() if k.startswith(f"{name}.")}
            values[name] = shrunk(type(value), value, nested)
        elif name in ORDINARY:
            values[name] = ORDINARY[name]
        elif MARK.fullmatch(name) and isinstance(value, int):
            values[name] = next(marks)
        elif _is_number(given) and _is_number(value):
            small = _small(name)
            if small is not None and small < value:
                values[name] = small
    values |= _layer_kinds(kind, default, values)
    values |= {k: v for k, v in corrections.items() if "." not in k}
    return kind(**values)


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
    count = max(2, *(len(held) for held in lists.values()), 2)
    return {counted: count} | {n: (held * count)[:count] for n, held in lists.items()}


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
    """Two inputs that the model's forward accepts; tried, and image tokens counted, by running it."""
    family = type(model).__module__.split(".")[-2]
    given = {**INPUTS.get(family, {}), **INPUTS.get(type(model).__name__, {})}
    counts: dict[str, int] = {}
    for _ in range(4):
        batch = _batch(model, given, counts)
        try:
            with torch.no_grad():
                model(**batch)
        except ValueError as error:
            found = COUNTED.search(str(error))
            if found is None or counts.get(found[1].lower()) == int(found[2]):
                raise
            counts[found[1].lower()] = int(found[2])
        else:
            return batch
    raise ValueError(f"No number of image, video or audio tokens suits {type(model).__name__}.")


COUNTED = re.compile(r"(Image|Video|Audio) features.* do not match.*features:? ?(\d+)", re.DOTALL)


def _batch(model: PreTrainedModel, given: dict[str, Any], counts: dict[str, int]) -> Batch:
    rng = torch.Generator().manual_seed(1)
    parameters = inspect.signature(model.forward).parameters
    batch: Batch = {}
    for name, parameter in parameters.items():
        required = parameter.default is inspect.Parameter.empty and parameter.kind in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        )
        if name in given:
            shape = given[name]
        elif name == "input_ids":
            shape = (2, TEXT)
        elif name in ("decoder_input_ids",):
            shape = (2, 5)
        elif required or name == model.main_input_name or name in USUAL:
            shape = _shape(name, model.config)
        else:
            continue
        if shape is not None:
            batch[name] = _values(name, shape, rng)
    if "input_ids" in batch:
        batch["input_ids"] = _with_marks(batch["input_ids"], model.config, counts)
        if set(batch) <= {"input_ids", "decoder_input_ids"} and "attention_mask" in parameters:
            mask = torch.ones_like(batch["input_ids"])
            mask[1, -2:] = 0
            batch["attention_mask"] = mask
    for name in ("attention_mask", "mm_token_type_ids"):
        if name in given and "input_ids" in batch:
            batch[name] = torch.full_like(batch["input_ids"], int(name == "attention_mask"))
    return batch


USUAL = {"pixel_values", "input_features", "bbox", "image_grid_thw", "image_sizes"}


def _shape(name: str, config: PreTrainedConfig) -> Any:
    vision = _part(config, "vision_config", "image_size")
    audio = _part(config, "audio_config", "num_mel_bins")
    side = getattr(vision, "image_size", IMAGE)
    side = side if isinstance(side, int) else side[0] if isinstance(side, list | tuple) else IMAGE
    channels = getattr(vision, "num_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    if name in ("pixel_values", "images"):
        return (2, channels, side, side)
    if name in ("pixel_values_videos", "videos"):
        return (2, getattr(vision, "num_frames", 2), channels, side, side)
    if name == "bbox":
        return (2, TEXT, 4)
    if name == "input_values":
        return (2, 1600)
    if name == "input_features":
        return (2, getattr(audio, "num_mel_bins", 16), 2 * getattr(audio, "max_source_positions", 32))
    return None


def _part(config: PreTrainedConfig, name: str, field: str) -> PreTrainedConfig:
    """The sub-configuration of this name, or any that has the field, or the configuration."""
    parts = [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]
    named = getattr(config, name, None)
    candidates = [named, config, *parts]
    return next((part for part in candidates if part is not None and hasattr(part, field)), config)


def _values(name: str, shape: Any, rng: torch.Generator) -> Any:
    if not (isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)):
        return torch.tensor(shape) if isinstance(shape, list) else shape
    if "ids" in name.split("_"):
        return torch.randint(10, 60, shape, generator=rng)
    if name == "bbox":
        return torch.randint(0, 10, shape, generator=rng).sort(-1).values
    return torch.randn(shape, generator=rng)


def _with_marks(ids_BT: Tensor, config: PreTrainedConfig, counts: dict[str, int]) -> Tensor:
    """Token ids with each item's share of image, video and audio tokens behind the first."""
    for kind, count in counts.items():
        names = (f"{kind}_token_id", f"{kind}_token_index", f"{kind}_token")
        marks = [getattr(config, name) for name in names if isinstance(getattr(config, name, None), int)]
        mark_BT = torch.full((2, count // 2), marks[0])
        ids_BT = torch.cat([ids_BT[:, :1], mark_BT, ids_BT[:, 1:]], 1)
    return ids_BT
