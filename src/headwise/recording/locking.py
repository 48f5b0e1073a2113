"""One process at a time writes to a folder, where the system can lock folders."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["is_locked_here", "writing_alone"]

_HELD: set[tuple[int, int]] = set()  # device and number of the folders that this process has locked


@contextmanager
def writing_alone(folder: Path) -> Generator[None]:
    """Refuse a folder that another process is writing to, and keep others out of it for the block.

    The lock ends with the process, however that ends. Within one process blocks may be nested, and
    whoever only reads need not ask.

    Args:
        folder: of a run; made when missing.
    """
    if fcntl is None or (folder.exists() and not folder.is_dir()):  # Run.create refuses a file
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder, os.O_RDONLY)
    try:
        here = _identity(os.fstat(file))
        if here in _HELD:
            yield
            return
        _lock(file, folder)
        _HELD.add(here)
        try:
            yield
        finally:
            _HELD.remove(here)
    finally:
        os.close(file)


def is_locked_here(folder: Path) -> bool:
    """Return whether this process is inside a `writing_alone` block of the folder."""
    return folder.is_dir() and _identity(folder.stat()) in _HELD


def _identity(known: os.stat_result) -> tuple[int, int]:
    return known.st_dev, known.st_ino


def _lock(file: int, folder: Path) -> None:
    """Lock an open folder; where the file system has no locks, nothing is done."""
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"Another process is writing to {folder}; wait for its end, or choose another folder."
        ) from None
    except OSError:
        pass
