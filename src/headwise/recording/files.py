"""Files that are whole or absent, and folders that one process at a time writes to.

A file is written under a temporary name in its folder, then renamed.
"""

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from filelock import BaseFileLock, FileLock, Timeout

__all__ = ["is_locked_here", "remove_leftovers", "replacing", "write_text", "writing_alone"]

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
    # a rename may reach the disk before the contents do, so that a power cut would leave a hole
    with path.open("rb+") as file:
        os.fsync(file.fileno())
