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
    import transformers
    from safetensors import SafetensorError

    try:
        kind = _model_class(transformers, json.loads((folder / "config.json").read_bytes()))
        with _without_bars():
            model = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{folder} could not be opened as a Hugging Face model: {first}"
        ) from error
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} reads {model.main_input_name}, not text. From Python, "
            "adopt(model) and observe(model, Profile()) work for it."
        )
    adopt(model.eval().to(_device()))
    return HuggingFaceSubject(model, _tokenizer(folder))


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
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{folder} has no tokenizer that can be loaded: {first}") from error
    return padding_right(tokenizer)


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
def _without_bars() -> Generator[None]:
    """Loading from disk is quick; transformers' own bar would stand among ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
