"""The kinds of runs and models that the papers' commands make, for `headwise inspect` and `prune`.

Opening one kind imports its own parts alone, so everything heavy is imported inside functions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.kinds import Kind, register

if TYPE_CHECKING:
    import torch

    from headwise.recording import Run
    from headwise.workflows.inspect.subject import Subject
    from headwise_papers.recipes.translator import Translator

__all__ = [
    "CAPTIONING",
    "CLASSIFIER",
    "DEMO",
    "FINETUNING",
    "LANGUAGE",
    "MARIAN",
    "PRETRAINING",
    "TRANSLATION",
    "register_all",
]

OPENED = (
    "which is not opened: runs of `headwise demo` and of `headwise train translation`, `mlm`, "
    "`electra` and `classifier` are, and Hugging Face models. From Python, "
    "observe(model, Profile()) works for it."
)


def _translator_subject(
    translator: "Translator", special: Sequence[str], device: "torch.device"
) -> "Subject":
    from headwise.workflows.inspect.subject import check_finite
    from headwise_papers.recipes.own_subjects import TranslatorSubject

    check_finite(translator.model)
    translator.model.to(device)
    return TranslatorSubject.of(translator, special=special)


def _translation_subject(
    folder: Path, *, special: Sequence[str], device: "torch.device"
) -> "Subject":
    from headwise_papers.recipes.translator import Translator

    return _translator_subject(Translator.load(_run(folder)), special, device)


def _marian_subject(folder: Path, *, special: Sequence[str], device: "torch.device") -> "Subject":
    from headwise_papers.data.marian import marian_folder
    from headwise_papers.recipes.translator import Translator

    files = marian_folder(folder)
    assert files is not None, "it was asked before"
    return _translator_subject(Translator.of_marian(files), special, device)


def _is_marian(folder: Path) -> bool:
    from headwise_papers.data.marian import marian_folder

    return marian_folder(folder) is not None


def _pretraining_subject(
    folder: Path, *, special: Sequence[str], device: "torch.device"
) -> "Subject":
    from headwise.workflows.inspect.subject import check_finite
    from headwise_papers.recipes.encoder_subject import encoder_subject
    from headwise_papers.recipes.pretraining import load_pretrained

    trained = load_pretrained(_run(folder))
    check_finite(trained.model)
    return encoder_subject(trained.model.to(device), trained.pieces, special=special)


def _classifier_subject(
    folder: Path, *, special: Sequence[str], device: "torch.device"
) -> "Subject":
    from headwise_papers.recipes.encoder_subject import classifier_subject
    from headwise_papers.recipes.tuning.classifier import Classifier

    classifier = Classifier.load(_run(folder))
    classifier.model.to(device)
    return classifier_subject(classifier, special=special)


def _translation_task(folder: Path, config: Any) -> Any:
    from headwise_papers.recipes.pruning import translation_task

    return translation_task(folder, config)


def _classifier_task(folder: Path, config: Any) -> Any:
    from headwise_papers.recipes.pruning import classifier_task

    return classifier_task(folder, config)


def _encoder_task(folder: Path, config: Any) -> Any:
    from headwise_papers.recipes.pruning import encoder_task

    return encoder_task(folder, config)


def _dropped(folder: Path) -> str:
    """Say that one training of a fine-tuning has not kept its weights; "" where it may have."""
    from headwise.recording import Run

    parent, part = folder.absolute().parent, _run(folder)
    if part.has("classifier.json") or not part.has("figures.json") or not Run.is_in(parent):
        return ""
    said = f"{folder} has not kept its weights."
    return f"{said} {_of_seeds(parent)}" if _run(parent).kind == FINETUNING.name else said


def _of_seeds(folder: Path) -> str:
    kept = [path.parent for path in sorted(folder.glob("*/classifier.json"))]
    if kept:
        return f"{folder} is a run of classifiers, one in a folder each; give {kept[0]}."
    return (
        f"{folder} is a run of classifiers that keeps none of them yet; let it finish, or train "
        "with --set keep=all."
    )


def _run(folder: Path) -> "Run":
    from headwise.recording import Run

    return Run.open(folder)


TRANSLATION = Kind("translation", subject=_translation_subject, task=_translation_task)
DEMO = Kind("demo", subject=_translation_subject, task=_translation_task)
PRETRAINING = Kind("pretraining", subject=_pretraining_subject, task=_encoder_task)
CLASSIFIER = Kind(
    "classifier", subject=_classifier_subject, task=_classifier_task, refusal=_dropped
)
FINETUNING = Kind("finetuning", refusal=_of_seeds)
LANGUAGE = Kind(
    "language", refusal=lambda folder: f"{folder} holds a language model of characters, {OPENED}"
)
CAPTIONING = Kind(
    "captioning", refusal=lambda folder: f"{folder} holds a captioning model, {OPENED}"
)
MARIAN = Kind("marian", subject=_marian_subject, matches=_is_marian)


def register_all() -> None:
    """Register the kinds where the package is not installed, so that no entry point names them."""
    for kind in (
        *(TRANSLATION, DEMO, PRETRAINING, CLASSIFIER),
        *(FINETUNING, LANGUAGE, CAPTIONING, MARIAN),
    ):
        register(kind.name, lambda kind=kind: kind)
    register("model", _model)


def _model() -> Kind:
    from headwise_papers.models.rebuilding import MODEL

    return MODEL
