"""The kinds of runs and models that the papers' commands make, for `headwise inspect` and `prune`.

Opening one kind imports its own parts alone, so everything heavy is imported inside functions.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from headwise.kinds import Kind, register

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


RECIPES = "headwise_papers.recipes"


def _later(module: str, name: str) -> Callable[..., Any]:
    """Make a function that imports another one when it is called, and calls it."""
    return lambda *arguments, **options: getattr(import_module(module), name)(*arguments, **options)


def _dropped(folder: Path) -> str:
    """Say that one training of a fine-tuning has not kept its weights; "" where it may have."""
    from headwise.recording import Run

    parent, part = folder.absolute().parent, Run.open(folder)
    if part.has("classifier.json") or not part.has("figures.json") or not Run.is_in(parent):
        return ""
    said = f"{folder} has not kept its weights."
    return f"{said} {_of_seeds(parent)}" if Run.open(parent).kind == FINETUNING.name else said


def _of_seeds(folder: Path) -> str:
    kept = [path.parent for path in sorted(folder.glob("*/classifier.json"))]
    if kept:
        return f"{folder} is a run of classifiers, one in a folder each; give {kept[0]}."
    return (
        f"{folder} is a run of classifiers that keeps none of them yet; let it finish, or train "
        "with --set keep=all."
    )


TRANSLATION = Kind(
    "translation",
    subject=_later(f"{RECIPES}.own_subjects", "open_translation"),
    task=_later(f"{RECIPES}.pruning", "translation_task"),
)
DEMO = replace(TRANSLATION, name="demo")
PRETRAINING = Kind(
    "pretraining",
    subject=_later(f"{RECIPES}.encoder_subject", "open_pretraining"),
    task=_later(f"{RECIPES}.pruning", "encoder_task"),
)
CLASSIFIER = Kind(
    "classifier",
    subject=_later(f"{RECIPES}.encoder_subject", "open_classifier"),
    task=_later(f"{RECIPES}.pruning", "classifier_task"),
    refusal=_dropped,
)
FINETUNING = Kind("finetuning", refusal=_of_seeds)
LANGUAGE = Kind(
    "language", refusal=lambda folder: f"{folder} holds a language model of characters, {OPENED}"
)
CAPTIONING = Kind(
    "captioning", refusal=lambda folder: f"{folder} holds a captioning model, {OPENED}"
)
MARIAN = Kind(
    "marian",
    subject=_later(f"{RECIPES}.own_subjects", "open_marian"),
    matches=_later("headwise_papers.data.marian", "marian_folder"),
)


def register_all() -> None:
    """Register the kinds and coreference sets where no entry point names them."""
    for kind in (
        *(TRANSLATION, DEMO, PRETRAINING, CLASSIFIER),
        *(FINETUNING, LANGUAGE, CAPTIONING, MARIAN),
    ):
        register(kind.name, lambda kind=kind: kind)
    register("model", lambda: import_module("headwise_papers.models.rebuilding").MODEL)
    for name in ("gap", "litbank", "winobias", "winogender"):
        register(name, partial(_coreference, name), group="headwise.coreference")


def _coreference(name: str) -> Any:
    return getattr(import_module("headwise_papers.data.coreference"), name.upper())
