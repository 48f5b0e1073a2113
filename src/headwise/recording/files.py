"""Files and folders that are whole or absent, and folders that one process at a time writes to.

A file or folder is written under a temporary name next to its place, then renamed.
"""

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from filelock import BaseFileLock, FileLock, Timeout

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"  # in a folder that is, or was, written to
_TEMPORARY_FILE = re.compile(r"\..+\.[0-9a-f]{8}\.partial")  # as `replacing` names them
_TEMPORARY_FOLDER = re.compile(r"\.hugging-face\.[0-9]+\.partial")  # of a classifier in a run


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary path beside `path`, which replaces `path` when the block ends.

    If the block raises, `path` stays as it was and the temporary file is removed. Missing folders
    are made. The temporary name starts with a dot, so that patterns and listings skip what a killed
    process leaves behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid4().hex[:8]}.partial"
    try:
        yield temporary
        _flush_to_disk(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file in UTF-8, or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders that a killed process left in a folder of a run.

    Only names that headwise gives are deleted: a user's other hidden files may lie there too.

    Args:
        folder: with the folders in it; nobody else may be writing there.
    """
    for parent, folders, names in os.walk(folder):
        for name in filter(_TEMPORARY_FILE.fullmatch, names):
            (Path(parent) / name).unlink()
        left = [name for name in folders if _TEMPORARY_FOLDER.fullmatch(name)]
        for name in left:
            path = Path(parent) / name
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
        folders[:] = [name for name in folders if name not in left]


@contextmanager
def replacing_folder(folder: Path) -> Generator[Path, None, None]:
    """Yield a new folder that replaces `folder` and its contents when the block ends.

    If the block raises, `folder` is left as it was. A process killed at any moment leaves the old
    folder or the new one; `recover` cleans up what else it left.
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
    """Clean up what a killed process left of `replacing_folder`.

    A folder that it had moved aside is put back if there is no new one. Temporary folders are
    deleted, unless a living process is writing them.
    """
    folder = folder.absolute()
    if not folder.exists() and _aside(folder).exists():
        _aside(folder).rename(folder)
    written = [half for half in _temporary_folders(folder) if not _deleted(half)]
    if not written and folder.exists():
        shutil.rmtree(_aside(folder), ignore_errors=True)


def _temporary_folders(folder: Path) -> list[Path]:
    """Return the temporary folders of `replacing_folder` for a folder."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{8}}\.partial")
    try:
        beside = list(folder.parent.iterdir())
    except OSError:  # it does not exist, or must not be listed
        return []
    return [path for path in beside if name.fullmatch(path.name) and not path.is_symlink()]


def _locked_folder(folder: Path) -> tuple[Path, int | None]:
    """Make a temporary folder and lock it until the process ends."""
    while True:
        temporary = folder.parent / f".{folder.name}.{uuid4().hex[:8]}.partial"
        temporary.mkdir()
        lock = _flock(temporary, wait=True)
        if temporary.exists():  # else another process took it for a leftover
            return temporary, lock
        if lock is not None:
            os.close(lock)


def _deleted(half: Path) -> bool:
    """Delete a temporary folder unless somebody may hold its lock; return whether it is gone."""
    lock = _flock(half, wait=False)
    if lock is None:
        return False
    try:
        shutil.rmtree(half, ignore_errors=True)
    finally:
        os.close(lock)
    return True


def _flock(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder; return None if another process has it, or folders cannot be locked."""
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


@contextmanager
def writing_alone(folder: Path) -> Generator[None]:
    """Raise if another process is writing to a folder, and keep others out during the block.

    The lock ends with the process, however that ends. Within one process blocks may be nested, and
    reading needs no lock.

    Args:
        folder: of a run; made when missing.
    """
    if folder.exists() and not folder.is_dir():  # Run.create refuses a file
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"Another process is writing to {folder}; wait for its end, or choose another folder."
        ) from None
    except OSError:  # a file system without locks
        yield
        return
    try:
        yield
    finally:
        lock.release()


def is_locked_here(folder: Path) -> bool:
    """Return whether this process is inside a `writing_alone` block of the folder."""
    return folder.is_dir() and _lock(folder).is_locked


def _lock(folder: Path) -> BaseFileLock:
    return FileLock(folder.resolve() / LOCK, is_singleton=True, thread_local=False)


def _flush_to_disk(path: Path) -> None:
    # a rename may reach the disk before the contents do, so that a power cut would leave holes
    if path.is_file():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
