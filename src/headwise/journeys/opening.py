"""From a folder to something that can be inspected."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from headwise.hf import adopt
from headwise.journeys.subject import HuggingFaceSubject, Subject, TranslatorSubject
from headwise.journeys.translator import Translator
from headwise.recording import Run


def open_subject(folder: Path) -> Subject:
    """The model in a folder: a run of Headwise, or a Hugging Face model saved there.

    Nothing is downloaded: a model of the hub must lie in a local folder first.
    """
    if not folder.is_dir():
        raise ValueError(
            f"There is no model folder {folder}. Give the folder of a headwise run or of a saved "
            "Hugging Face model; models of the hub are fetched with `hf download NAME`."
        )
    if (folder / "environment.json").exists():
        translator = Translator.load(Run.open(folder))
        translator.model.to(_device())
        return TranslatorSubject(translator)
    if (folder / "config.json").exists():
        return _hugging_face(folder)
    raise ValueError(f"{folder} holds neither a headwise run nor a Hugging Face model.")


def _hugging_face(folder: Path) -> HuggingFaceSubject:
    model = _loaded(folder).eval()
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} reads {model.main_input_name}, not text. From Python, "
            "adopt(model) and observe(model, Profile()) work for it."
        )
    return HuggingFaceSubject(adopt(model.to(_device())), _tokenizer(folder))


def _loaded(folder: Path) -> Any:
    import transformers
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    troubles = (OSError, ValueError, KeyError, RuntimeError, SafetensorError, StrictDataclassError)
    try:
        kind = _model_class(transformers, json.loads((folder / "config.json").read_bytes()))
        with _quietly():
            model, found = kind.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
    except troubles as error:
        raise ValueError(
            f"{folder} could not be opened as a Hugging Face model: {_first_line(error)}"
        ) from error
    # transformers would go on with random numbers; only a pooler is left out of files on purpose
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(
            f"The weights in {folder} are not those of a {type(model).__name__}: {len(missing)} "
            f"are missing, {missing[0]} among them. Save the model again with save_pretrained."
        )
    return model


def _model_class(transformers: Any, settings: Any) -> Any:
    """The class the model was saved as, which keeps its output layer."""
    if not isinstance(settings, dict):
        raise ValueError("config.json must hold a JSON object of settings.")
    named = cast(dict[str, Any], settings).get("architectures") or [""]
    found = getattr(transformers, str(named[0]), None)
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if is_model else transformers.AutoModel


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{folder} has no tokenizer that can be loaded: {_first_line(error)}"
        ) from error
    # without files transformers makes an empty tokenizer, for which every word is unknown
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise ValueError(
            f"{folder} has no tokenizer that can be loaded: its files are missing. Save them there "
            "with tokenizer.save_pretrained."
        )
    return padding_right(tokenizer)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def padding_right(tokenizer: Any) -> Any:
    """Let a tokenizer put padding after each line, with its end mark where it has no own token."""
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError(
                f"{type(tokenizer).__name__} has neither a padding token nor an end mark; "
                "set tokenizer.pad_token."
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


@contextmanager
def _quietly() -> Generator[None]:
    """Without transformers' own bar and report: what matters of them we say ourselves."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
