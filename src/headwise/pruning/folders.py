"""Folders that are whole or absent: written beside their place, then renamed."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def replacing_folder(folder: Path) -> Generator[Path, None, None]:
    """A new folder that takes the place of `folder`, with all in it, when the block ends.

    If the block raises, `folder` is as it was. A process killed at any moment leaves the old folder
    or the new one; where it was killed between the two renames, `recover` puts the old one back.
    """
    folder = folder.absolute()
    recover(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f".{folder.name}.{uuid4().hex[:8]}.partial"
    try:
        temporary.mkdir()
        yield temporary
        for path in temporary.iterdir():
            _flush_to_disk(path)
        _put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def recover(folder: Path) -> None:
    """Put a folder back that a killed process had moved aside to make place for a new one."""
    folder = folder.absolute()
    if not folder.exists() and _aside(folder).exists():
        _aside(folder).rename(folder)


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
