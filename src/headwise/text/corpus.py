"""Text files as streams of lines: constant memory, and errors that say where the trouble is."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["read_lines"]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, stripped, without blank ones, read one at a time.

    A missing file or a folder is reported at once; a line that is not UTF-8, or a file without
    any text, when the reading gets there.

    Args:
        path: a text file, one sentence or document a line. A byte order mark is ignored.
    """
    if path.is_dir():
        raise ValueError(f"A text file was wanted, but {path} is a folder; name a file inside it.")
    if not path.exists():
        raise ValueError(f"There is no text file {path}; check the path.")
    return _stream(path)


def _stream(path: Path) -> Iterator[str]:
    empty = True
    # Bytes, not text mode: a decoder reading ahead could not say which line is broken.
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = _decode(raw, number=number, path=path).strip()
            if line:
                empty = False
                yield line
    if empty:
        raise ValueError(
            f"{path} holds no text, only blank lines or nothing; give a file with text."
        )


def _decode(raw: bytes, *, number: int, path: Path) -> str:
    try:
        # The byte order mark may stand at the start of the file only.
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: UTF-8 text was wanted, but byte {error.start + 1} of the line "
            f"is 0x{raw[error.start]:02x}; convert the file to UTF-8."
        ) from error
