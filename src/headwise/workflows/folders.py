"""Models and tokenizers that Hugging Face saved in a folder: loaded whole, or refused."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headwise.json_files import read_json
from headwise.recording.checksums import check_checksums
from headwise.workflows.quiet import quiet_transformers

__all__ = ["load_model", "load_tokenizer", "opened"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
POOLER = "pooler"  # the only part that is left out of files on purpose


def load_model(folder: Path, kind: Any, *, new_head: Mapping[str, Any] | None = None) -> Any:
    """The model in a folder. Where weights are missing transformers would draw random ones.

    A missing pooler is no reason to refuse: it is 0, so that the model is the same each time, or
    drawn with the head.

    Args:
        folder: with `config.json` and safetensors.
        kind: the class, of transformers.
        new_head: settings of a head that may be new; None takes all as it was saved.
    """
    more = {} if new_head is None else {"ignore_mismatched_sizes": True, **new_head}
    check_checksums(folder)
    with opened(folder):
        model, found = kind.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **more,
        )
    body = "" if new_head is None else f"{model.base_model_prefix}."
    missing = sorted(name for name in found["missing_keys"] if name.startswith(body))
    lost = [name for name in missing if POOLER not in name]
    if lost:
        raise ValueError(
            f"The weights in {folder} are not those of a {type(model).__name__}: {len(lost)} are "
            f"missing, {lost[0]} among them. Save the model again with save_pretrained."
        )
    if others := sorted(name for name in _mismatched(found) if name.startswith(body)):
        raise ValueError(
            f"{len(others)} weights in {folder} have other shapes than its configuration says, "
            f"{others[0]} among them, as where heads were pruned; take a model that is whole."
        )
    if new_head is None:
        with torch.no_grad():
            for name in missing:
                model.get_parameter(name).zero_()
    return model


def _mismatched(found: Mapping[str, Any]) -> list[str]:
    """Weights of another shape, which transformers draws anew: names, or names and both shapes."""
    return [one if isinstance(one, str) else one[0] for one in found["mismatched_keys"]]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer  # lazy: takes seconds

    for name in TOKENIZER_FILES:
        if (folder / name).is_file():  # transformers takes any JSON, and fails in many ways
            read_json(folder / name, dict)
    try:
        if (folder / "tokenizer.json").is_file():  # a ValueError here is a bare Exception there
            Tokenizer.from_buffer((folder / "tokenizer.json").read_bytes())
        with quiet_transformers():
            tokenizer: Any = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{folder} has no tokenizer that can be loaded: {_trouble(error)}"
        ) from error
    # without files transformers makes an empty tokenizer, for which every word is unknown
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise ValueError(
            f"{folder} has no tokenizer that can be loaded: its files are missing. Save them there "
            "with tokenizer.save_pretrained."
        )
    return tokenizer


@contextmanager
def opened(folder: Path) -> Generator[None]:
    """Without reports of transformers, and with its troubles said in one sentence."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        with quiet_transformers():
            yield
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        SafetensorError,
        StrictDataclassError,
    ) as error:
        damaged = _damaged_weights(folder) if isinstance(error, SafetensorError) else None
        trouble = (
            f"{damaged} is cut short or damaged; fetch it again." if damaged else _trouble(error)
        )
        raise ValueError(
            f"{folder} could not be opened as a Hugging Face model: {trouble}"
        ) from error


def _damaged_weights(folder: Path) -> str | None:
    """The first file of weights that safetensors cannot open, which does not say which it was."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError:
            return path.name
    return None


def _trouble(error: Exception) -> str:
    """The first line of an error; transformers' advice to run code of the folder is not given."""
    if "trust_remote_code" in str(error):
        return (
            "it needs Python code of its own (auto_map), which headwise never runs; take a model "
            "whose classes transformers has."
        )
    if isinstance(error, RecursionError):
        return "a JSON file in it is nested too deeply; it was changed. Fetch it again."
    return (str(error).strip() or type(error).__name__).splitlines()[0]
