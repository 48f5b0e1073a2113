"""Trained models that experiments lend each other: where to look, and whether they are the same."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from headwise.config import flat, from_json, to_json
from headwise.recording.run import Run

__all__ = ["check_folders", "checked", "forget_checkpoints", "places"]


def check_folders(trained: Sequence[str], *, kin: str, below: Collection[str] = ("*",)) -> None:
    """Refuse what lends nothing; a config does so before there is a run that keeps the slip.

    What lends is a run, which may have others in it, or a folder of runs.

    Args:
        trained: folders of other runs, the setting of that name.
        kin: which runs are meant, for the message.
        below: names of folders of runs that such a folder may have; any, unless given.
    """
    runs = ("config.json", "*/config.json", *(f"{name}/*/config.json" for name in below))
    for name in trained:
        folder = Path(name)
        if not folder.is_dir():
            raise ValueError(f"trained={name} names no folder; give runs of {kin}.")
        if not any(any(folder.glob(place)) for place in runs):
            deeper = sorted({str(found.parents[1]) for found in folder.glob("*/*/config.json")})
            hint = f"perhaps {deeper[0]} is meant" if len(deeper) == 1 else f"give runs of {kin}"
            raise ValueError(f"trained={name} holds no run, so that all would be trained; {hint}.")


def places(run: Run, trained: Sequence[str], *, kin: str) -> Iterator[Path]:
    """Where to look for what is done already: in this run first, then in those named.

    Args:
        run: of the experiment.
        trained: folders of other runs, the setting of that name.
        kin: which runs are meant, for the message if one is not there.
    """
    yield run.folder
    for name in trained:
        check_folders([name], kin=kin)
        yield Path(name)


def checked(found: Run, settings: Any, *, aside: Collection[str] = ()) -> Run:
    """Refuse a model that was trained otherwise than is asked for.

    Args:
        found: the run of its training.
        settings: that are asked for, a dataclass.
        aside: names of settings that may differ, those of inner dataclasses dotted.
    """
    # what it does not say, because it was trained before there was such a setting, is the default
    there, wanted = (
        flat(to_json(one)) for one in (from_json(type(settings), found.config()), settings)
    )
    if wanted.get("guide.plan") == "":  # the others mean nothing where no head is guided
        aside = [
            *aside,
            *(name for name in wanted if name.startswith("guide.") and name[6:] != "plan"),
        ]
    for name in wanted:
        if name not in aside and there.get(name) != wanted[name]:
            raise ValueError(
                f"{found.folder} was trained with {name}={there.get(name)!r}, but "
                f"{name}={wanted[name]!r} is asked for; leave it out of trained=."
            )
    return found


def forget_checkpoints(done: Run) -> None:
    """Delete what only resuming needs."""
    for pattern in ("checkpoint*.safetensors", "checkpoints/*.safetensors", "best.safetensors"):
        for name in done.names(pattern):
            done.path(name).unlink()
