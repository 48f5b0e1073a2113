"""Text files that users bring: all their lines, and errors that say where the trouble is."""

import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

__all__ = ["own_lines"]

UNPACKED: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.decompress, ".gz": gzip.decompress}


def own_lines(path: Path, *, trailing: bool = True) -> list[str]:
    r"""All lines of a UTF-8 text file, blank ones too, which end with "\n" or "\r\n" only.

    Other characters that count as line breaks stand inside some texts and are kept.

    Args:
        path: may be packed, `.xz` or `.gz`. A byte order mark is ignored.
        trailing: keep blank lines at the end, where each line stands for something.
    """
    if path.is_dir():
        raise ValueError(f"A text file was wanted, but {path} is a folder; name a file inside it.")
    if not path.is_file():
        raise ValueError(f"There is no text file {path}; check the path.")
    lines = _contents(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    decoded = [_decoded(line, number, path) for number, line in enumerate(lines, start=1)]
    full = [place for place, line in enumerate(decoded, start=1) if line.strip()]
    if not full:
        raise ValueError(f"{path} holds no text, only blank lines or nothing; give one with text.")
    whole = decoded if decoded[-1] else decoded[:-1]
    return whole if trailing else whole[: full[-1]]


def _contents(path: Path) -> bytes:
    unpacked = UNPACKED.get(path.suffix)
    if unpacked is None:
        return path.read_bytes()
    try:
        return unpacked(path.read_bytes())
    except (lzma.LZMAError, gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise ValueError(f"{path} is not a whole {path.suffix} file ({problem}).") from None


def _decoded(line: bytes, number: int, path: Path) -> str:
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as problem:
        raise ValueError(
            f"{path}, line {number}: UTF-8 text was wanted, but byte {problem.start + 1} of the "
            f"line is 0x{line[problem.start]:02x}; convert the file to UTF-8."
        ) from None
