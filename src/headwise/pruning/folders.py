"""Folders that are whole or absent: written beside their place, then renamed."""

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def replacing_folder(folder: Path) -> Generator[Path, None, None]:
    """A new folder that takes the place of `folder`, with all in it, when the block ends.

    If the block raises, `folder` is as it was. A process killed at any moment leaves the old folder
    or the new one; `recover` puts right what it left beside.
    """
    folder = folder.absolute()
    recover(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = _locked_folder(folder)
    try:
        yield temporary
        for path in temporary.rglob("*"):
            _flush_to_disk(path)
        _put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def recover(folder: Path) -> None:
    """Put right what a killed process left of `replacing_folder`.

    A folder that it had moved aside is put back if there is no new one, and half a folder is
    deleted, unless a living process is writing it.
    """
    folder = folder.absolute()
    if not folder.exists() and _aside(folder).exists():
        _aside(folder).rename(folder)
    written = [half for half in _halves(folder) if not _deleted(half)]
    if not written and folder.exists():
        shutil.rmtree(_aside(folder), ignore_errors=True)


def _halves(folder: Path) -> list[Path]:
    """What `replacing_folder` has begun to write beside a folder."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{8}}\.partial")
    try:
        beside = list(folder.parent.iterdir())
    except OSError:  # none, or one that must not be listed
        return []
    return [path for path in beside if name.fullmatch(path.name) and not path.is_symlink()]


def _locked_folder(folder: Path) -> tuple[Path, int | None]:
    """A new folder beside this one, and a lock on it that ends with the process."""
    while True:
        temporary = folder.parent / f".{folder.name}.{uuid4().hex[:8]}.partial"
        temporary.mkdir()
        lock = _lock(temporary, wait=True)
        if temporary.exists():  # else another process took it for one that was left
            return temporary, lock
        if lock is not None:
            os.close(lock)


def _deleted(half: Path) -> bool:
    """Delete half a folder, if nobody holds its lock; False if somebody may."""
    lock = _lock(half, wait=False)
    if lock is None:
        return False
    try:
        shutil.rmtree(half, ignore_errors=True)
    finally:
        os.close(lock)
    return True


def _lock(folder: Path, *, wait: bool) -> int | None:
    """An open lock on a folder; None if another has it, or where folders cannot be locked."""
    if fcntl is None:
        return None
    file = None
    try:
        file = os.open(folder, os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if file is not None:
            os.close(file)
        return None
    return file


def _put_in_place(temporary: Path, folder: Path) -> None:
    aside = _aside(folder)
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    try:
        temporary.rename(folder)
    except OSError:
        recover(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.before"


def _flush_to_disk(path: Path) -> None:
    # a rename may reach the disk before the contents do, so that a power cut would leave holes
    if path.is_file():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
