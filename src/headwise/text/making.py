"""Makers: the files of the data folder out of what their publishers give."""

import csv
import gzip
import io
import json
import re
import tarfile
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import NamedTuple

__all__ = [
    "Review",
    "ag_news_table",
    "amazon_table",
    "github",
    "glove_commonest",
    "imdb_table",
    "newsgroup_lines",
    "reviews_in",
    "unzipped",
    "yelp_table",
]

AMAZON_DOMAINS = ("books", "dvd", "electronics", "kitchen_&_housewares")


GLOVE_MEMBER = "glove.6B.50d.txt"
GLOVE_WORDS = 40_000


class Review(NamedTuple):
    """A review of the Multi-Domain Sentiment set, each field on one line."""

    stars: str
    title: str
    text: str


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
        rows += ("\t".join([domain, str(label), *review]) for review in reviews_in(contents))
    return _lines(rows)


def reviews_in(contents: bytes) -> Iterator[Review]:
    """The reviews of a `.review` file, whose tags look like XML but which is none."""
    for review in _text(contents).split("<review>")[1:]:
        yield Review(*(_tagged(review, tag) for tag in ("rating", "title", "review_text")))


def glove_commonest(parts: Sequence[bytes]) -> bytes:
    """The first 40,000 words of `glove.6B.zip`, vectors of width 50 to three decimals.

    Numbers are read in single precision before they are rounded: it decides ties.
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
