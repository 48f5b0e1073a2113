"""Downloads, only ever on request: fetched beside the place, checked, then put there whole."""

import http.client
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlparse

from headwise.text.source import DataFile, write_whole

__all__ = ["fetch"]

Progress = Callable[[str, int, int], None]  # (what, bytes so far, bytes in all or 0)
CHUNK = 1 << 18
PATIENCE = 60  # seconds without an answer


def fetch(
    files: Sequence[DataFile], folder: Path, *, progress: Progress | None = None
) -> list[Path]:
    """Download what files are made of, make them, check them, and put them into the data folder.

    Files that are there with the known contents stay as they are. If anything goes wrong nothing
    half-finished is left behind.

    Args:
        files: wanted; one that no public address gives is refused before anything is downloaded.
        folder: the data folder, made if it is not there.
        progress: called while downloading.

    Returns:
        Where each file is.
    """
    missing = [file for file in files if not file.is_right(folder)]
    for file in missing:
        if not file.urls:
            raise ValueError(f"{file.name} cannot be downloaded as it is; take {file.origin}.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as scratch:
        downloaded: dict[str, Path] = {}
        for file in missing:
            for url in file.urls:
                if url not in downloaded:
                    path = Path(scratch) / str(len(downloaded))
                    _download(url, path, origin=file.origin, progress=progress)
                    downloaded[url] = path
            write_whole(folder / file.name, _made(file, downloaded))
    return [file.path(folder) or folder / file.name for file in files]


def _download(url: str, path: Path, *, origin: str, progress: Progress | None) -> None:
    label = Path(urlparse(url).path).name
    done = 0
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer, path.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress:
                    progress(label, done, total)
    except (OSError, http.client.HTTPException) as problem:
        raise ValueError(
            f"{url} could not be downloaded ({problem}); try again, or take {origin}."
        ) from None
    if total and done != total:
        raise ValueError(f"{url} broke off after {done} of {total} bytes; try again.")


def _made(file: DataFile, downloaded: Mapping[str, Path]) -> bytes:
    parts = [downloaded[url].read_bytes() for url in file.urls]
    try:
        contents = file.make(parts) if file.make else b"".join(parts)
    except (ValueError, KeyError, OSError, EOFError) as problem:
        raise ValueError(
            f"{file.name} cannot be made of what {file.urls[0]} gave ({problem}); "
            f"take it from {file.origin}."
        ) from None
    if not file.is_known(contents):
        raise ValueError(
            f"{file.name}, made of {file.urls[0]}, has not the known checksum, so it was not kept: "
            f"the source has changed; take it from {file.origin} and read it with verify=False."
        )
    return contents
