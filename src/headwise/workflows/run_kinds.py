"""Which model a run holds, told by its settings and files; what cannot be opened is named."""

from pathlib import Path
from typing import Literal

from headwise.recording import Run
from headwise_papers.recipes.pretraining import is_pretraining

__all__ = ["RunKind", "kind_of_run"]

RunKind = Literal["translator", "encoder", "classifier"]

# settings that only one kind of model has, and what it is called
OTHER_MODELS = {"memory": "a language model of characters", "image_size": "a captioning model"}
OPENED = (
    "which is not opened: runs of `headwise demo` and of `headwise train translation`, `mlm`, "
    "`electra` and `classifier` are, and Hugging Face models."
)


def kind_of_run(folder: Path) -> RunKind | None:
    """What the model of a run in a folder is, if `inspect` and `prune` know it; None without a run.

    What else a run may hold is refused with one sentence.
    """
    if not (folder / "environment.json").exists():
        return None
    run = Run.open(folder)
    if is_pretraining(run):
        return "encoder"
    if run.has("classifier.json"):
        return "classifier"
    if said := _other(run):
        raise ValueError(said)
    return "translator"


def _other(run: Run) -> str | None:
    """What a run is that holds none of these models, a sentence; None where it may hold one."""
    held = run.read_json("model.json", dict) if run.has("model.json") else {}
    for name, kind in OTHER_MODELS.items():
        if name in held or (name in run.config() and not held):
            return (
                f"{run.folder} holds {kind}, {OPENED} From Python, observe(model, Profile()) works "
                "for it."
            )
    if held or run.has("model.safetensors"):
        return None
    if _is_finetuning(run.folder):
        return _of_seeds(run.folder)
    if _is_finetuning(run.folder.absolute().parent) and run.has("figures.json"):
        return f"{run.folder} has not kept its weights. {_of_seeds(run.folder.absolute().parent)}"
    if {"choose", "penalty", "keep"} <= run.config().keys():
        return (
            f"{run.folder} is the run of a pruning; give the smaller model that stands beside it."
        )
    if run.has("figures.json"):
        return f"{run.folder} is a finished run without a model of its own, {OPENED}"
    return None


def _is_finetuning(folder: Path) -> bool:
    """Whether a folder is the run of `headwise train classifier` around its seeds."""
    whole = (folder / "config.json").is_file() and (folder / "environment.json").is_file()
    return whole and {"task", "seeds", "folds"} <= Run.open(folder).config().keys()


def _of_seeds(folder: Path) -> str:
    kept = [path.parent for path in sorted(folder.glob("*/classifier.json"))]
    if kept:
        return f"{folder} is a run of classifiers, one in a folder each; give {kept[0]}."
    return (
        f"{folder} is a run of classifiers that keeps none of them yet; let it finish, or train "
        "with --set keep=all."
    )
