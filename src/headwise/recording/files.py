"""Files that are whole or absent: written under a temporary name in their folder, then renamed."""

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

_TEMPORARY_FILE = re.compile(r"\..+\.[0-9a-f]{8}\.partial")  # as `replacing` names them
_TEMPORARY_FOLDER = re.compile(r"\.hugging-face\.[0-9]+\.partial")  # of a classifier in a run


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """A temporary path beside `path`, which takes the place of `path` when the block ends.

    If the block raises, `path` is left as it was and the temporary file is removed. Missing folders
    are made. The temporary name starts with a dot, so that patterns and listings pass over it when
    a killed process leaves one behind.
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


def _flush_to_disk(path: Path) -> None:
    # a rename may reach the disk before the contents do, so that a power cut would leave a hole
    with path.open("rb+") as file:
        os.fsync(file.fileno())
