"""Labelled texts as they are published: rows of text files, and how a text becomes words."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headwise.text.source import DataFile

__all__ = ["RawTexts", "Row", "read_table", "words_and_marks"]

# a word without its n't, n't, other clitics, words, and every other character on its own
_TOKEN = re.compile(r"\w+?(?=n't\b)|n't\b|'(?:s|m|re|ve|ll|d)\b|\w+|[^\w\s]")


class Row(NamedTuple):
    """One labelled text."""

    label: int
    text: str


@dataclass(frozen=True)
class RawTexts:
    """A set as published: texts with labels 0, 1 …, and how they are cut into words."""

    train: list[Row]
    test: list[Row] | None  # None: there is no published split
    words: Callable[[str], list[str]]
    classes: int = 2
    shorter_than: int | None = None  # texts of this many words or more are left out


def words_and_marks(text: str) -> list[str]:
    """Lower-cased words and punctuation marks, by one regular expression.

    A run of letters, digits and underscores is a word, any other character a token of its own;
    clitics are cut off as in the Penn Treebank and in GloVe's vocabulary.

    >>> words_and_marks("Don't miss Costner's 2nd-best (8/10)!")[:8]
    ['do', "n't", 'miss', 'costner', "'s", '2nd', '-', 'best']
    """
    return _TOKEN.findall(text.lower())


def read_table(
    file: DataFile, folder: Path, *, columns: Sequence[str], classes: int, verify: bool
) -> Iterator[list[str]]:
    """The fields of each line of a tab-separated file, with the column "label" checked.

    Args:
        file: which file.
        folder: the data folder.
        columns: their names; one of them is "label".
        classes: labels run from 0 to one less.
        verify: refuse contents whose checksum is not the known one.
    """
    place, labels = columns.index("label"), {str(label) for label in range(classes)}
    for number, line in enumerate(file.lines(folder, verify=verify), start=1):
        fields = line.split("\t")
        if len(fields) != len(columns) or fields[place] not in labels:
            raise ValueError(
                f"{file.name}, line {number}: {', '.join(columns)} were wanted between tabs, the "
                f"label from 0 to {classes - 1}, got {line[:40]!r}; get the file again."
            )
        yield fields
