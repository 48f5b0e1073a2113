"""Trained models, found by their settings or trained: `runs/models/<hash of the settings>`.

Experiments that need the same model share it, whichever of them is run first.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from headwise.config import Dataclass, to_json
from headwise.recording import Run

__all__ = ["find_or_train", "is_trained", "trained_in_parallel", "using_cache"]

Train = Callable[[Any, Path], Run]

FINISHED = "figures.json"  # the last file that a training writes
PARALLEL = ".trained-in-parallel"  # hidden, as a run starts in a folder without visible files
RESUMING = ("checkpoint*.safetensors", "checkpoints/*.safetensors", "best.safetensors")


class _Cache(NamedTuple):
    folder: Path
    jobs: int


_DEFAULT = _Cache(Path("runs/models"), 1)
_CACHE: ContextVar[_Cache] = ContextVar("cache", default=_DEFAULT)


@contextmanager
def using_cache(folder: Path | None = None, *, jobs: int = 1) -> Generator[None]:
    """Find and train models in a folder, for the length of the block.

    Args:
        folder: of the cache; unless given, the one in use.
        jobs: how many trainings share the machine.
    """
    before = _CACHE.set(_Cache(folder or _CACHE.get().folder, jobs))
    try:
        yield
    finally:
        _CACHE.reset(before)


def find_or_train(train: Train, config: Dataclass) -> Run:
    """Return the finished run of a model, trained now if it is not in the cache.

    An unfinished training is resumed. A process that wants a model which another one is training
    waits for it. Checkpoints are deleted at the end, as only resuming needs them; a training that
    keeps weights from its middle saves them outside `checkpoints/`.

    Args:
        train: a function of a module, `train(config, folder)`, that resumes what is in the folder
            and returns the finished run.
        config: its settings, a frozen dataclass.
    """
    folder = model_folder(train, config)
    if not is_trained(train, config):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not is_trained(train, config):
                _train(train, config, folder)
    return _checked(Run.open(folder), config)


def is_trained(train: Train, config: Dataclass) -> bool:
    """Return whether the cache has the finished model."""
    return (model_folder(train, config) / FINISHED).is_file()


def model_folder(train: Train, config: Dataclass) -> Path:
    """Return where a model lies, or would: a hash of the recipe's name and the settings."""
    recipe = f"{train.__module__}.{train.__qualname__}"
    key = json.dumps({"recipe": recipe, "settings": to_json(config)}, sort_keys=True)
    return _CACHE.get().folder / hashlib.sha256(key.encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Return the folder of the cache in use."""
    return _CACHE.get().folder


def trained_in_parallel(runs: Iterable[Run]) -> bool:
    """Return whether any of these models shared the machine, so that its speed says nothing."""
    return any(run.has(PARALLEL) for run in runs)


def _train(train: Train, config: Dataclass, folder: Path) -> None:
    if _CACHE.get().jobs > 1:
        # before training: a run that is resumed alone has still spent time in company
        folder.mkdir(exist_ok=True)
        (folder / PARALLEL).touch()
    done = train(config, folder)
    if not done.has(FINISHED):
        raise ValueError(f"{train.__qualname__} returned before {FINISHED} was in {folder}.")
    for pattern in RESUMING:
        for name in done.names(pattern):
            done.path(name).unlink()


def _checked(found: Run, config: Dataclass) -> Run:
    """Raise if a run's settings are not those asked for, as after somebody changed its files."""
    there, wanted = found.config(), to_json(config)
    for name, value in wanted.items():
        if there.get(name) != value:
            raise ValueError(
                f"{found.folder} was trained with {name}={there.get(name)!r}, but {name}={value!r} "
                "is asked for; delete that folder."
            )
    return found
