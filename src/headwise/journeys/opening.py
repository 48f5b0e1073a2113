"""From a folder to something that can be inspected."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from headwise.hf import adopt
from headwise.journeys.inspecting.hugging_face_subject import (
    MAX_TRANSLATION,
    HuggingFaceSubject,
)
from headwise.journeys.inspecting.identity import check_finite
from headwise.journeys.inspecting.own_subjects import TranslatorSubject
from headwise.journeys.inspecting.subject import Subject
from headwise.journeys.pretraining import is_pretraining, load_pretrained
from headwise.journeys.translator import Translator
from headwise.models.encoder_heads import MaskedLM, MaskedLMWithNextSentence
from headwise.pruning import load
from headwise.recording import Run

# settings that only one kind of model has, and what it is called
OTHER_MODELS = {"memory": "a language model of characters", "image_size": "a captioning model"}


def open_subject(
    folder: Path,
    *,
    special: Sequence[str] = (),
    device: str = "auto",
    max_translation: int = MAX_TRANSLATION,
) -> Subject:
    """The model in a folder: a run of Headwise, or a Hugging Face model saved there.

    Nothing is downloaded: a model of the hub must lie in a local folder first.

    Args:
        folder: of the model.
        special: more tokens that are not to count as words.
        device: such as "cpu" or "cuda:1"; "auto" takes a GPU where there is one.
        max_translation: tokens of a translation that a Hugging Face model writes, at most.
    """
    place = chosen_device(device)
    marks = frozenset(special)
    if not folder.is_dir():
        raise ValueError(
            f"There is no model folder {folder}. Give the folder of a headwise run or of a saved "
            "Hugging Face model; models of the hub are fetched with `hf download NAME`."
        )
    if (folder / "environment.json").exists():
        run = _run(folder)
        if is_pretraining(run):
            model, tokenizer = _pretrained(run)
            return HuggingFaceSubject(adopt(model.to(place)), tokenizer, marks, max_translation)
        translator = Translator.load(run)
        check_finite(translator.model)
        translator.model.to(place)
        return TranslatorSubject.of(translator, special=special)
    if (folder / "config.json").exists():
        model = _hugging_face(folder).to(place)
        return HuggingFaceSubject(adopt(model), _tokenizer(folder), marks, max_translation)
    raise ValueError(f"{folder} holds neither a headwise run nor a Hugging Face model.")


def _pretrained(run: Run) -> tuple[Any, Any]:
    """The encoder of a pre-training as a model of Hugging Face, with its tokenizer."""
    from headwise.models.encoder_weights import to_hugging_face  # lazy: takes seconds

    model, pieces = load_pretrained(run)
    check_finite(model)
    if isinstance(model, MaskedLMWithNextSentence):  # what reads one text has no use for pairs
        both, model = model, MaskedLM(model.encoder)
        model.words = both.words
    return to_hugging_face(model).eval(), padding_right(pieces.hugging_face())


def _run(folder: Path) -> Run:
    """A run whose model reads text; what else a run may hold is told apart by its files."""
    run = Run.open(folder)
    held = run.read_json("model.json") if run.has("model.json") else {}
    other = next((kind for name, kind in OTHER_MODELS.items() if name in held), None)
    if other is not None:
        raise ValueError(
            f"{folder} holds {other}, which `inspect` does not open: it takes translators and "
            "Hugging Face models. From Python, observe(model, Profile()) works for it."
        )
    return run


def _hugging_face(folder: Path) -> Any:
    pruned = (folder / "pruning.json").exists()
    model = (load(folder) if pruned else _loaded(folder)).eval()
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} reads {model.main_input_name}, not text. From Python, "
            "adopt(model) and observe(model, Profile()) work for it."
        )
    check_finite(model)
    return model


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
    with torch.no_grad():  # the model is to be the same each time it is loaded
        for name in set(found["missing_keys"]) - set(missing):
            model.get_parameter(name).zero_()
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


def chosen_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"A device such as cpu, cuda or cuda:1 was wanted, got {name!r}."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"There is no CUDA device here for {name!r}; use cpu or auto.")
    return device
