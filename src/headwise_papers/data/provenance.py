"""Provenance of data files: known checksums, tables, and downloads, only ever on request.

`SHA256SUMS` beside this module holds the checksums of the unpacked files, as sha256sum writes them.
"""

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
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar
from urllib.parse import urlparse

from headwise.config import suggestion
from headwise_papers.data.source import DataFile, data_folder, write_whole

Value = TypeVar("Value")
Progress = Callable[[str, int, int], None]  # (what, bytes so far, bytes in all or 0)
CHUNK = 1 << 18
TIMEOUT = 60  # seconds without an answer
AMAZON_DOMAINS = ("books", "dvd", "electronics", "kitchen_&_housewares")
GLOVE_MEMBER = "glove.6B.50d.txt"
GLOVE_WORDS = 40_000


@cache
def _checksums() -> dict[str, str]:
    text = resources.files("headwise_papers.data").joinpath("SHA256SUMS").read_text("utf-8")
    return {name: checksum for checksum, name in map(str.split, text.splitlines())}


def known_file(
    name: str,
    origin: str,
    urls: tuple[str, ...] = (),
    make: Callable[[Sequence[bytes]], bytes] | None = None,
    other_sha256: tuple[str, ...] = (),
) -> DataFile:
    """Return a data file with its checksum of `SHA256SUMS`; the arguments are those of `DataFile`.

    >>> known_file("ud/en_ewt-ud-dev.conllu", "its repository").sha256[:8]
    '531a54ff'
    """
    return DataFile(name, _checksums().get(name, ""), origin, urls, make, other_sha256)


def entry(table: Mapping[str, Value], name: str, what: str) -> Value:
    """Return an entry of a table of sets; raise for other names, with a suggestion.

    Args:
        table: entries by name.
        name: the wanted one.
        what: what the entries are, for the message.
    """
    if name not in table:
        raise ValueError(f"There is no {what} {name!r}. {suggestion(name, table)}")
    return table[name]


def read_lines(
    files: Sequence[DataFile], *, name: str, folder: Path | None, verify: bool
) -> list[list[str]]:
    """Read the lines of each file of a set.

    Args:
        files: of the set.
        name: of the set, for messages.
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown.
    """
    found = data_folder(folder, wanted=name, origin=files[0].origin)
    return [file.lines(found, verify=verify) for file in files]


def read_table(
    file: DataFile,
    folder: Path,
    *,
    columns: Sequence[str],
    labels: Sequence[str] = ("0", "1"),
    header: bool = False,
    verify: bool,
) -> Iterator[list[str]]:
    """Yield the fields of each line of a tab-separated file, with the column "label" checked.

    Args:
        file: which file.
        folder: the data folder.
        columns: their names; one of them is "label".
        labels: as they are written.
        header: leave out the first line.
        verify: raise if the checksum is unknown.
    """
    place, allowed = columns.index("label"), set(labels)
    lines = file.lines(folder, verify=verify)
    for number, line in enumerate(lines[header:], start=1 + header):
        fields = line.split("\t")
        if len(fields) != len(columns) or fields[place] not in allowed:
            raise ValueError(
                f"{file.name}, line {number}: {', '.join(columns)} were wanted between tabs, the "
                f"label one of {', '.join(labels)}, got {line[:40]!r}; get the file again."
            )
        yield fields


def tied(examples: Sequence[Sequence[str]]) -> list[str]:
    """Return for each example the first text, in alphabetical order, of all that it is tied to.

    Examples that share a text are tied, and so are those that are tied to the same one.

    >>> tied([("q1", "b"), ("q2", "a"), ("q1", "a"), ("q3", "c")])
    ['a', 'a', 'a', 'c']

    Args:
        examples: the texts of each, one or more.
    """
    leader: dict[str, str] = {}

    def find(text: str) -> str:
        leader.setdefault(text, text)
        while leader[text] != text:
            leader[text] = leader[leader[text]]  # halve the way for the next one
            text = leader[text]
        return text

    for texts in examples:
        first, *others = sorted({find(text) for text in texts})
        leader |= dict.fromkeys(others, first)
    return [find(texts[0]) for texts in examples]


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
