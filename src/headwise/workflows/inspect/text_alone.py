"""Whether a Hugging Face model can be inspected: from text alone, without images or sound."""

import inspect
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel

__all__ = ["check_reads_text"]

OF_TEXT = ("input_ids", "attention_mask")  # what a tokenizer gives every model
OF_OTHERS = ("pixel_values", "input_features", "input_values")  # images and sound
COUNTS = ("num_codebooks", "num_channels")  # tokens that a decoder of sound has at each position
NEEDED = {"udop": "bbox"}  # by type: the signature has it as optional
COMPARES = ("bridgetower", "idefics")  # need images, which neither methods nor signature say


def check_reads_text(model: PreTrainedModel) -> None:
    """Raise if text is not all that a model needs; vision-language models that do with it pass."""
    name = type(model).__name__
    instead = "From Python, adopt(model) and observe(model, Profile()) work for it."
    if model.main_input_name != "input_ids":
        read: Any = model.main_input_name  # OneFormer has a list
        named = read if isinstance(read, str) else " and ".join(read)
        raise ValueError(f"{name} reads {named}, not text. {instead}")
    if missing := list(dict.fromkeys(_needed_beside_text(model))):
        raise ValueError(
            f"{name} also needs {' and '.join(missing)}, which inspect cannot give it: it reads "
            f"text alone. {instead}"
        )
    if not _takes(model, "input_ids"):
        raise ValueError(f"{name} takes no input_ids, so it does not read text. {instead}")
    if _has_codes_of_sound(model):
        raise ValueError(
            f"{name} reads or writes codes of sound, of which inspect knows no words; it takes "
            f"models of text alone. {instead}"
        )


def _needed_beside_text(model: PreTrainedModel) -> Iterator[str]:
    """Name the inputs without which a forward pass fails."""
    for name, parameter in inspect.signature(model.forward).parameters.items():
        optional = parameter.default is not parameter.empty
        collects = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not optional and not collects and name not in OF_TEXT:
            yield name
    if needed := NEEDED.get(model.config.model_type):
        yield needed
    if _compares(model):
        yield from [name for name in OF_OTHERS if _takes(model, name)][:1]


def _compares(model: PreTrainedModel) -> bool:
    """Whether a model compares texts with images or sound, as CLIP does, so that it needs both."""
    config = model.config
    twins = any(hasattr(config, f"{other}_config") for other in ("vision", "audio"))
    return twins and (hasattr(model, "get_text_features") or config.model_type in COMPARES)


def _has_codes_of_sound(model: PreTrainedModel) -> bool:
    """Whether what a model generates or reads at each position are codes of sound."""
    decoders = [getattr(model.config, name, None) for name in ("decoder_config", "decoder")]
    codes = [getattr(decoder, count, 1) for decoder in decoders for count in COUNTS]
    codes.append(getattr(model.config, "num_codebooks", 1))
    generates = model.can_generate() and "text" not in getattr(model, "output_modalities", ["text"])
    return generates or any(isinstance(count, int) and count > 1 for count in codes)


def _takes(model: PreTrainedModel, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters
