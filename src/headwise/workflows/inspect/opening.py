"""Opening a folder: which kind of model it holds, and how `inspect` reads that model."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headwise.hf import adopt
from headwise.json_files import read_json
from headwise.kinds import Kind, find_kind, kinds
from headwise.recording import Run
from headwise.recording.checksums import check_checksums
from headwise.workflows.inspect.config import MAX_TRANSLATION
from headwise.workflows.inspect.hugging_face import (
    HuggingFaceSubject,
    check_reads_text,
    padding_right,
)
from headwise.workflows.inspect.subject import Subject, check_finite

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
POOLER = "pooler"  # the only part that is left out of files on purpose
NO_MODEL = "is a run without a model of its own, which is not opened; give a run that has one."
# runs of the library's own commands, and those of no kind
REFUSED = {
    "pruning": "is the run of a pruning; give the smaller model that stands beside it.",
    **dict.fromkeys(("inspection", "experiment", ""), NO_MODEL),
}


def open_subject(
    folder: Path,
    *,
    special: Sequence[str] = (),
    device: str = "auto",
    max_translation: int = MAX_TRANSLATION,
) -> Subject:
    """Open the model in a folder: a run, a Hugging Face model, or one that another package knows.

    Nothing is downloaded: a model of the hub must lie in a local folder first.

    Args:
        folder: of the model.
        special: more tokens that are not to count as words.
        device: such as "cpu" or "cuda:1"; "auto" takes a GPU where there is one.
        max_translation: tokens of a translation that a Hugging Face model writes, at most.
    """
    place = chosen_device(device)
    if (kind := kind_of(folder)) is not None:
        if kind.subject is None:
            raise ValueError(f"{folder} is a run of kind {kind.name!r}, which cannot be inspected.")
        return kind.subject(folder, special=special, device=place)
    model = _hugging_face(folder).to(place)
    tokenizer = padding_right(load_tokenizer(folder))
    return HuggingFaceSubject(adopt(model), tokenizer, frozenset(special), max_translation)


def kind_of(folder: Path) -> Kind | None:
    """Return the kind of a folder's run or model; None for a Hugging Face model.

    A folder that nothing opens is refused with one sentence.
    """
    if not folder.is_dir():
        raise ValueError(
            f"There is no model folder {folder}. Give the folder of a headwise run or of a saved "
            "Hugging Face model; models of the hub are fetched with `hf download NAME`."
        )
    if Run.is_in(folder):
        return _kind_of_run(folder)
    if (folder / "config.json").exists():
        return None
    for kind in map(find_kind, kinds()):
        if kind.matches is not None and kind.matches(folder):
            return kind
    raise ValueError(
        f"{folder} holds neither a headwise run nor a Hugging Face model, nor one of Marian."
    )


def _kind_of_run(folder: Path) -> Kind:
    name = Run.open(folder).kind
    if said := REFUSED.get(name):
        raise ValueError(f"{folder} {said}")
    kind = find_kind(name)
    if kind.refusal is not None and (said := kind.refusal(folder)):
        raise ValueError(said)
    return kind


def _hugging_face(folder: Path) -> Any:
    pruned = (folder / "pruning.json").exists()
    model = (_pruned(folder) if pruned else _loaded(folder)).eval()
    if not hasattr(model, "main_input_name"):
        raise ValueError(
            f"{folder} holds a {type(model).__name__} of headwise without its words. From Python, "
            "observe(pruning.load(folder), Profile()) works for it."
        )
    check_reads_text(model)
    check_finite(model)
    return model


def _pruned(folder: Path) -> Any:
    from headwise.pruning import load  # lazy: only pruned models need it

    return load(folder)


def _loaded(folder: Path) -> Any:
    import transformers

    with opened(folder):
        kind = _model_class(transformers, read_json(folder / "config.json", dict))
    return load_model(folder, kind)


def _model_class(transformers: Any, settings: dict[str, Any]) -> Any:
    """Return the class the model was saved as, which keeps its output layer."""
    named = settings.get("architectures") or [""]
    found = getattr(transformers, str(named[0]), None) if isinstance(named, list) else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if is_model else transformers.AutoModel


def chosen_device(name: str) -> torch.device:
    """Return the device of a name; "auto" takes a GPU where there is one."""
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


def load_model(folder: Path, kind: Any, *, new_head: Mapping[str, Any] | None = None) -> Any:
    """Load the Hugging Face model in a folder; raise where weights are missing.

    Transformers would draw random weights instead. A missing pooler is accepted: it is 0, so that
    the model is the same each time, or drawn with a new head.

    Args:
        folder: with `config.json` and safetensors.
        kind: the class, of transformers.
        new_head: settings of a head that may be new; None loads the saved head.
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
    """Return the names of weights with another shape than the configuration says."""
    return [one if isinstance(one, str) else one[0] for one in found["mismatched_keys"]]


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer in a folder."""
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
    """Silence transformers, and turn its errors into one sentence."""
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
    """Return the first file that safetensors cannot open; its error does not name the file."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError:
            return path.name
    return None


def _trouble(error: Exception) -> str:
    """Return the first line of an error, without advice to run code of the folder."""
    if "trust_remote_code" in str(error):
        return (
            "it needs Python code of its own (auto_map), which headwise never runs; take a model "
            "whose classes transformers has."
        )
    if isinstance(error, RecursionError):
        return "a JSON file in it is nested too deeply; it was changed. Fetch it again."
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Silence the progress bars and load reports of transformers for the length of the block."""
    from transformers.utils import logging  # lazy: takes seconds

    shown, before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()
