"""Opening a folder: which kind of model it holds, and how `inspect` reads that model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headwise.hf import adopt
from headwise.json_files import read_json
from headwise.kinds import Kind, find_kind, kinds
from headwise.recording import Run
from headwise.workflows.folders import load_model, load_tokenizer, opened
from headwise.workflows.inspect.hugging_face_subject import (
    MAX_TRANSLATION,
    HuggingFaceSubject,
)
from headwise.workflows.inspect.identity import check_finite
from headwise.workflows.inspect.subject import Subject
from headwise.workflows.inspect.text_alone import check_reads_text

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
    """The class the model was saved as, which keeps its output layer."""
    named = settings.get("architectures") or [""]
    found = getattr(transformers, str(named[0]), None) if isinstance(named, list) else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if is_model else transformers.AutoModel


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
