"""News texts of two topics: AG News (world, business) and 20 Newsgroups (baseball, hockey)."""

import csv
import html
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from headwise.text.source import DataFile, github
from headwise_papers.data.provenance import ag_news_table, newsgroup_lines
from headwise_papers.data.raw import RawTexts, Row, read_table, words_and_marks

__all__ = ["ag_news", "newsgroups", "without_numbers", "without_wrapping"]

AG_REPOSITORY = "mhjabreel/CharCnn_Keras"
AG_COMMIT = "555590db4219b1243abb1918effd6a7425a2d75f"
AG_TEST = DataFile(
    "ag_news/ag_news.test.tsv",
    "24b535a2988b72cb46f4bdcadbfb63044d863d8cd9e60f9926bdb8d803aab065",
    "data/ag_news_csv/test.csv of github.com/mhjabreel/CharCnn_Keras: label from 0, title and "
    "description between tabs, each stripped",
    (github(AG_REPOSITORY, AG_COMMIT, "data/ag_news_csv/test.csv"),),
    ag_news_table,
)
AG_SUBSET = DataFile(
    "ag_news/ag_news.train_subset.tsv",
    "02b1d56ad02469f6d99d05a7eda99e3877b3fa5973f2f139a3f0ef35440df1e8",
    "three public samples (hhf-hd/NoisyAG-News, lst11111/bert-text-classification, "
    "fxcawley/MetaRepICL), or put the published ag_news_csv/train.csv there as ag_news/train.csv",
)
AG_TRAIN = DataFile(
    "ag_news/train.csv",
    "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
    "data/ag_news_csv/train.csv of github.com/mhjabreel/CharCnn_Keras",
    (github(AG_REPOSITORY, AG_COMMIT, "data/ag_news_csv/train.csv"),),
)
WORLD, BUSINESS = 0, 2
_BARE_ESCAPE = re.compile(r"[ &](#\d{2,4}|quot|amp|lt|gt|nbsp|apos);")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")

NEWSGROUPS = {
    part: DataFile(
        f"newsgroups20/20news-bydate.{part}.jsonl",
        checksum,
        "20news-bydate.tar.gz of qwone.com/~jason/20Newsgroups: a JSON line of group, id and text "
        "a post",
        ("http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",),
        partial(newsgroup_lines, part=part),
    )
    for part, checksum in {
        "train": "a2f6c79bda33333d5dc910b5942a7d04e78b041dcd7e1e652a88a4d963fb8473",
        "test": "a088c0d22912b2963ceb242cf8bb8efcec8b2735145bc65cd4b73a7dc972c2b2",
    }.items()
}
GROUPS = {"rec.sport.baseball": 0, "rec.sport.hockey": 1}
_QUOTED = re.compile(r"^\s*[>|}:]|(?:writes|wrote|says|said)\s*:?\s*$|^In (?:article|message) ")
_RULE = re.compile(r"^\s*(?:--+|[-_=~*^#+|/\\ ]*[-_=~*^#]{4}[-_=~*^#+|/\\ ]*)\s*$")
SIGNATURE_LINES = 10  # a ruled line stands for a signature only this near to the end


def without_numbers(text: str) -> list[str]:
    """Words and marks; an integer of more than one digit becomes unknown (appendix A.3).

    >>> without_numbers("Up 7 of 1,900")
    ['up', '7', 'of', '1', ',', '<unk>']
    """
    return [
        "<unk>" if len(token) > 1 and token.isdecimal() else token
        for token in words_and_marks(text)
    ]


def ag_news(folder: Path, *, verify: bool) -> RawTexts:
    """AG News (Zhang et al., 2015), world (0) against business (1): title and description.

    The published `ag_news/train.csv` is read where it is there, and else the subset of 18,857 of
    its 120,000 rows, of which 9,432 are of these two classes.
    """
    full = (folder / AG_TRAIN.name).is_file() or (folder / f"{AG_TRAIN.name}.xz").is_file()
    train = _published(folder, verify=verify) if full else _subset(folder, verify=verify)
    columns = ("label", "title", "description")
    test = read_table(AG_TEST, folder, columns=columns, classes=4, verify=verify)
    rows = ((int(label), f"{title} {text}") for label, title, text in test)
    return RawTexts(_two_topics(train), _two_topics(rows), without_numbers)


def _two_topics(rows: Iterator[tuple[int, str]]) -> list[Row]:
    number = {WORLD: 0, BUSINESS: 1}
    return [Row(number[label], _unescaped(text)) for label, text in rows if label in number]


def _unescaped(text: str) -> str:
    """Undo the corpus's escapes: ` #39;` (its ampersand is lost), tags, backslash line breaks."""
    whole = _BARE_ESCAPE.sub(lambda found: html.unescape(f"&{found[1]};"), text)
    return _TAG.sub(" ", whole).replace("\\", " ")


def _subset(folder: Path, *, verify: bool) -> Iterator[tuple[int, str]]:
    columns = ("label", "text", "source")
    rows = read_table(AG_SUBSET, folder, columns=columns, classes=4, verify=verify)
    for label, text, source in rows:
        # one of the three samples put " . " between title and description
        yield int(label), text.replace(" . ", " ", 1) if source == "noisyag_val" else text


def _published(folder: Path, *, verify: bool) -> Iterator[tuple[int, str]]:
    lines = AG_TRAIN.lines(folder, verify=verify)
    for number, fields in enumerate(csv.reader(lines), start=1):
        if len(fields) != 3 or fields[0] not in ("1", "2", "3", "4"):
            raise ValueError(
                f"{AG_TRAIN.name}, row {number}: class 1 to 4, title and description were wanted, "
                f"got {','.join(fields)[:40]!r}; get the file again."
            )
        yield int(fields[0]) - 1, f"{fields[1]} {fields[2]}"


def newsgroups(folder: Path, *, verify: bool) -> RawTexts:
    """20 Newsgroups by date, baseball (0) against hockey (1), without what names the group.

    Headers, quoted lines and signatures are taken off, and words split at "_" (appendix A.3).
    """
    train, test = (list(_posts(NEWSGROUPS[part], folder, verify=verify)) for part in NEWSGROUPS)
    return RawTexts(train, test, without_numbers)


def _posts(file: DataFile, folder: Path, *, verify: bool) -> Iterator[Row]:
    for number, line in enumerate(file.lines(folder, verify=verify), start=1):
        try:
            post = json.loads(line)
            group, text = post["group"], post["text"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{file.name}, line {number}: a JSON object with group and text was wanted, got "
                f"{line[:40]!r}; get the file again."
            ) from None
        if group in GROUPS:
            yield Row(GROUPS[group], without_wrapping(text).replace("_", " "))


def without_wrapping(post: str) -> str:
    r"""The body of a post: no header, no quoted lines and who wrote them, no signature.

    A signature is what follows a line of dashes or the like that stands near the end.

    >>> without_wrapping("From: a@b\nLines: 3\n\nIn article <1> b writes:\n> Go\nNo.\n--\nA. B.\n")
    'No.'
    """
    lines = post.partition("\n\n")[2].split("\n")
    body = "\n".join(line for line in lines if not _QUOTED.search(line)).strip().split("\n")
    tail = max(1, len(body) - SIGNATURE_LINES)  # a first line is no signature
    ruled = [place for place in range(tail, len(body)) if _RULE.match(body[place])]
    return "\n".join(body[: ruled[0]] if ruled else body).strip()
