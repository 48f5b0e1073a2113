"""Provenance of data files: downloads, only ever on request, and how files are made of them."""

import csv
import gzip
import http.client
import io
import json
import re
import tarfile
import tempfile
import urllib.request
import zipfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlparse

from headwise.text.source import DataFile, write_whole

Progress = Callable[[str, int, int], None]  # (what, bytes so far, bytes in all or 0)
CHUNK = 1 << 18
TIMEOUT = 60  # seconds without an answer
AMAZON_DOMAINS = ("books", "dvd", "electronics", "kitchen_&_housewares")
GLOVE_MEMBER = "glove.6B.50d.txt"
GLOVE_WORDS = 40_000


def fetch(
    files: Sequence[DataFile], folder: Path, *, progress: Progress | None = None
) -> list[Path]:
    """Download files, make them, check them, and put them into the data folder.

    Files with the known contents stay as they are. After an error nothing half-finished is left.

    Args:
        files: wanted; one without a public address is refused before anything is downloaded.
        folder: the data folder, made if it does not exist.
        progress: called while downloading.

    Returns:
        The path of each file.
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
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, path.open("wb") as file:
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


class Review(NamedTuple):
    """Review of the Multi-Domain Sentiment set, each field on one line."""

    stars: str
    title: str
    text: str


def unzipped(parts: Sequence[bytes]) -> bytes:
    """Unpack a gzip file."""
    return gzip.decompress(parts[0])


def imdb_table(parts: Sequence[bytes], *, part: str) -> bytes:
    """Make a table of `aclImdb/PART/{neg,pos}/ID_STARS.txt`, negative first, by id."""
    rows: list[tuple[int, int, str]] = []
    for path, contents in _archived(parts[0]):
        if path.parts[1:2] == (part,) and path.parts[2] in ("neg", "pos"):
            number, _, stars = path.stem.partition("_")
            label, text = int(path.parts[2] == "pos"), _one_line(_text(contents))
            fields = (label, stars, f"{path.parts[2]}/{path.stem}", text)
            rows.append((label, int(number), "\t".join(map(str, fields))))
    return _lines(row for _, _, row in sorted(rows))


def newsgroup_lines(parts: Sequence[bytes], *, part: str) -> bytes:
    """Make JSON lines of `20news-bydate-PART/GROUP/ID`, by group and id."""
    posts = sorted(
        (path.parts[1], path.parts[2], _text(contents))
        for path, contents in _archived(parts[0])
        if path.parts[0] == f"20news-bydate-{part}"
    )
    return _lines(
        json.dumps({"group": group, "id": number, "text": text}, ensure_ascii=False)
        for group, number, text in posts
    )


def ag_news_table(parts: Sequence[bytes]) -> bytes:
    """Make a table of the published CSV: class from 0, title and description."""
    rows = csv.reader(io.StringIO(_text(parts[0]), newline=""))
    return _lines(
        "\t".join([str(int(label) - 1), _one_line(title), _one_line(text)])
        for label, title, text in rows
    )


def amazon_table(parts: Sequence[bytes]) -> bytes:
    """Make a table of rating, title and text; files come by domain, positive ones first."""
    rows: list[str] = []
    for place, contents in enumerate(parts):
        domain, label = AMAZON_DOMAINS[place // 2], 1 - place % 2
        rows += ("\t".join([domain, str(label), *review]) for review in reviews_in(contents))
    return _lines(rows)


def reviews_in(contents: bytes) -> Iterator[Review]:
    """Yield the reviews of a `.review` file, which has tags but is not XML."""
    for review in _text(contents).split("<review>")[1:]:
        yield Review(*(_tagged(review, tag) for tag in ("rating", "title", "review_text")))


def glove_commonest(parts: Sequence[bytes]) -> bytes:
    """Return the first 40,000 words of `glove.6B.zip`, width 50, rounded to three decimals.

    Numbers are read in single precision before they are rounded, which decides ties.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(parts[0])) as archive, archive.open(GLOVE_MEMBER) as file:
            lines = [line.decode("utf-8").rstrip("\n") for line in islice(file, GLOVE_WORDS)]
    except zipfile.BadZipFile as problem:
        raise ValueError(f"no zip archive: {problem}") from None
    return _lines(map(_rounded, lines))


def _rounded(line: str) -> str:
    word, *values = line.split(" ")
    return " ".join([word, *(f"{value:.3f}" for value in array("f", map(float, values)))])


def yelp_table(parts: Sequence[bytes]) -> bytes:
    """Return the lines of the negative file, then of the positive one, with labels."""
    return _lines(
        f"{label}\t{line.strip()}"
        for label, contents in enumerate(parts)
        for line in _text(contents).rstrip("\n").split("\n")
    )


def _tagged(review: str, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", review, re.DOTALL)
    if found is None:
        raise ValueError(f"a review has no {tag}")
    return _one_line(found[1])


def _archived(contents: bytes) -> list[tuple[PurePosixPath, bytes]]:
    """Read the files of a .tar.gz in memory."""
    try:
        with tarfile.open(fileobj=io.BytesIO(contents), mode="r:gz") as archive:
            return [
                (PurePosixPath(member.name), held.read())
                for member in archive
                if member.isfile() and (held := archive.extractfile(member))
            ]
    except tarfile.TarError as problem:
        raise ValueError(f"no tar archive: {problem}") from None


def _text(contents: bytes) -> str:
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError:
        return contents.decode("latin-1")


def _one_line(text: str) -> str:
    return re.sub(r"[\t\r\n]+", " ", text).strip()


def _lines(rows: Iterable[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()
