r"""Text files of UTF-8, plain or packed as `.xz` or `.gz`, with errors that name the line.

Lines end with "\n" or "\r\n" only: some texts contain other line breaks, which are kept. A byte
order mark is ignored.
"""

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, stripped, without blank ones, in constant memory.

    A missing file raises at once; a line that is not UTF-8, or a file without text, when it is
    read.
    """
    _check_file(path)
    return _text_lines(path)


def all_lines(path: Path, *, trailing: bool = True) -> list[str]:
    """Return all lines of a text file, blank ones too.

    Args:
        path: of the file.
        trailing: keep blank lines at the end, for files where each line has a meaning.
    """
    _check_file(path)
    lines = [line for _, line in numbered_lines(path)]
    full = [number for number, line in enumerate(lines, start=1) if line.strip()]
    if not full:
        raise _no_text(path)
    return lines if trailing else lines[: full[-1]]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1 on, line) of a text file."""
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    try:
        # bytes, not text mode: a decoder that reads ahead could not name the broken line
        with opened(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, _decoded(raw, number, path)
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as problem:
        raise ValueError(
            f"{path} is not a whole {path.suffix} file ({problem}); get it again."
        ) from None


def _decoded(raw: bytes, number: int, path: Path) -> str:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(
            f"{path}, line {number}: UTF-8 text was wanted, but byte {problem.start + 1} of the "
            f"line is 0x{raw[problem.start]:02x}; convert the file to UTF-8."
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def _text_lines(path: Path) -> Iterator[str]:
    empty = True
    for _, line in numbered_lines(path):
        if stripped := line.strip():
            empty = False
            yield stripped
    if empty:
        raise _no_text(path)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"A text file was wanted, but {path} is a folder; name a file inside it.")
    if not path.exists():
        raise ValueError(f"There is no text file {path}; check the path.")


def _no_text(path: Path) -> ValueError:
    return ValueError(f"{path} holds no text, only blank lines or nothing; give one with text.")
