"""What may stand where a smaller model goes: nothing, or what a pruning put there before."""

from pathlib import Path

from headwise.pruning.recipe import RECIPE, files_named, unnamed
from headwise.pruning.saving import EXPORTED, UNSEALED

__all__ = ["check_elsewhere", "check_replaceable"]


def check_elsewhere(model: Path, out: Path) -> None:
    """Refuse to put the smaller model where the one that it is made of is."""
    if model.resolve().is_relative_to(out.resolve()):
        raise ValueError(
            f"The smaller model would replace {model}, of which it is made; choose another "
            f"folder than {out}."
        )


def check_replaceable(out: Path, *, as_run: bool | None = None) -> None:
    """Raise if a folder holds anything but a pruned model, which saving there would delete.

    Args:
        out: where the smaller model goes.
        as_run: whether it is saved as a run, else by `headwise.pruning.save`; None: either.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"A model is saved in a folder, but {out} is a file; choose another path.")
    if out.exists() and (foreign := unnamed(out, _written(out, as_run))):
        raise ValueError(
            f"{out} holds files that are no pruned model of this kind, {foreign[0]} among them; "
            "choose a new or empty folder."
        )


def _written(out: Path, as_run: bool | None) -> set[str]:
    """Return the names of the files of a pruned model in a folder; none if it holds none."""
    is_run = all((out / name).is_file() for name in UNSEALED)
    if not (out / RECIPE).is_file() or as_run not in (None, is_run):
        return set()
    return {RECIPE, *EXPORTED, *UNSEALED, *files_named(out)}
