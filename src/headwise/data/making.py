"""Makers: the files of the data folder out of what their publishers give."""

import csv
import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

__all__ = [
    "ag_news_table",
    "amazon_table",
    "github",
    "imdb_table",
    "newsgroup_lines",
    "unzipped",
    "yelp_table",
]

AMAZON_DOMAINS = ("books", "dvd", "electronics", "kitchen_&_housewares")


def github(repository: str, commit: str, path: str) -> str:
    """The address of a file of a GitHub repository; the commit may be shortened."""
    return f"https://github.com/{repository}/raw/{commit}/{path}"


def unzipped(parts: Sequence[bytes]) -> bytes:
    """What a gzip file holds."""
    return gzip.decompress(parts[0])


def imdb_table(parts: Sequence[bytes], *, part: str) -> bytes:
    """`aclImdb/PART/{neg,pos}/ID_STARS.txt` of the archive, negative first, by id."""
    rows: list[tuple[int, int, str]] = []
    for path, contents in _archived(parts[0]):
        if path.parts[1:2] == (part,) and path.parts[2] in ("neg", "pos"):
            number, _, stars = path.stem.partition("_")
            label, text = int(path.parts[2] == "pos"), _one_line(_text(contents))
            fields = (label, stars, f"{path.parts[2]}/{path.stem}", text)
            rows.append((label, int(number), "\t".join(map(str, fields))))
    return _lines(row for _, _, row in sorted(rows))


def newsgroup_lines(parts: Sequence[bytes], *, part: str) -> bytes:
    """`20news-bydate-PART/GROUP/ID` of the archive, by group and id, as JSON lines."""
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
    """Class from 0, title and description of the published CSV, between tabs."""
    rows = csv.reader(io.StringIO(_text(parts[0]), newline=""))
    return _lines(
        "\t".join([str(int(label) - 1), _one_line(title), _one_line(text)])
        for label, title, text in rows
    )


def amazon_table(parts: Sequence[bytes]) -> bytes:
    """Rating, title and text of each review; files come by domain, positive ones first."""
    rows: list[str] = []
    for place, contents in enumerate(parts):
        domain, label = AMAZON_DOMAINS[place // 2], 1 - place % 2
        for review in _text(contents).split("<review>")[1:]:
            stars, title, text = (
                _tagged(review, tag) for tag in ("rating", "title", "review_text")
            )
            rows.append("\t".join([domain, str(label), stars, title, text]))
    return _lines(rows)


def yelp_table(parts: Sequence[bytes]) -> bytes:
    """The lines of the negative file, then those of the positive one, with label."""
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
    """The files of a .tar.gz, read in memory: nothing is unpacked to the disk."""
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
