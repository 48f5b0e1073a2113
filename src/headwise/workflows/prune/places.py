"""What may stand where a smaller model goes: nothing, or what a pruning put there before."""

from pathlib import Path

from headwise.pruning.recipe import RECIPE, files_named, unnamed
from headwise.pruning.saving import EXPORTED
from headwise_papers.data.subword import JOINT, OF_SOURCE, OF_TARGET
from headwise_papers.recipes.codec import WORD_FILES
from headwise_papers.recipes.translator import RECORD

__all__ = ["check_elsewhere", "check_replaceable"]

# all that a translator's run may hold when it is saved; of the words and pieces it has some
OF_RUN = frozenset(
    {
        *("config.json", "environment.json", "model.json", "model.safetensors", RECORD, RECIPE),
        *(*WORD_FILES, JOINT, OF_SOURCE, OF_TARGET, *EXPORTED),
    }
)


def check_elsewhere(model: Path, out: Path) -> None:
    """Refuse to put the smaller model where the one that it is made of is."""
    if model.resolve().is_relative_to(out.resolve()):
        raise ValueError(
            f"The smaller model would replace {model}, of which it is made; choose another "
            f"folder than {out}."
        )


def check_replaceable(out: Path, *, as_run: bool) -> None:
    """Refuse a folder with any file that saving the model there would delete and not write again.

    Args:
        out: where the smaller model goes.
        as_run: whether it is saved as a run of ours, else by `headwise.pruning.save`.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"A model is saved in a folder, but {out} is a file; choose another path.")
    if out.exists() and (foreign := unnamed(out, _written(out, as_run=as_run))):
        raise ValueError(
            f"{out} holds files that are no pruned model of this kind, {foreign[0]} among them; "
            "choose a new or empty folder."
        )


def _written(out: Path, *, as_run: bool) -> frozenset[str]:
    """The names of the files of a pruned model that is in a folder; none where none is."""
    if (out / RECORD).is_file() != as_run:
        return frozenset()
    if as_run:
        return OF_RUN
    if not (out / RECIPE).is_file():
        return frozenset()
    return frozenset({RECIPE, *EXPORTED, *files_named(out)})
