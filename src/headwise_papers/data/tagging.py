"""Sentences whose words carry tags: named entities, as B-PER, I-PER … and O for none.

`conll2003` (PER, ORG, LOC, MISC), written as IOB1 and read as BIO, and `masakhaner-LANGUAGE` (PER,
ORG, LOC, DATE): 20 African languages of MasakhaNER 2.0, and Amharic (`amh`) of 1.0. There is no
tagged Oromo, which the attention guidance paper uses: its set is licensed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from headwise.text.corpus import all_lines
from headwise.text.source import data_folder
from headwise_papers.data.tagging_files import tagging_files

__all__ = ["TaggedSentence", "TaggedTask", "bio", "read_tagged_files", "read_tagged_task"]

OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"


class TaggedSentence(NamedTuple):
    """Words and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class TaggedTask:
    """A set in three parts."""

    name: str
    train: list[TaggedSentence]
    dev: list[TaggedSentence]
    test: list[TaggedSentence]
    classes: tuple[str, ...]  # the tags; O first
    metric: Literal["span_f1"] = "span_f1"

    def groups(self, sentences: Sequence[TaggedSentence]) -> list[str]:
        """What sentences share that must not be in two folds: all their words."""
        return [" ".join(sentence.words) for sentence in sentences]


def read_tagged_task(name: str, *, folder: Path | None = None, verify: bool = True) -> TaggedTask:
    """Read a set whole, in its published parts.

    Args:
        name: "conll2003", or "masakhaner-" and a language, e.g. "masakhaner-yor".
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse files that are not the known ones.
    """
    files = tagging_files(name)
    found = data_folder(folder, wanted=name, origin=files[0].origin)
    parts = [
        _sentences(file.lines(found, verify=verify), where=file.name, iob1=name == "conll2003")
        for file in files
    ]
    return _task(name, parts)


def read_tagged_files(train: Path, dev: Path, test: Path) -> TaggedTask:
    """A set of one's own in CoNLL's form: a word a line, its tag last, blank lines between.

    Args:
        train: tags are BIO or IOB1: a span that starts with I is read as if it started with B.
        dev: to stop by.
        test: to judge by.
    """
    parts: list[list[TaggedSentence]] = []
    for path in (train, dev, test):
        lines = (line.replace("\t", " ") for line in all_lines(path))
        parts.append(_sentences(lines, where=str(path), iob1=True))
    return _task(train.name, parts)


def bio(tags: Sequence[str]) -> tuple[str, ...]:
    """IOB1 as BIO: every span starts with B, not only one that follows another of its type.

    >>> bio(["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-ORG"])
    ('B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC', 'B-ORG')
    """
    before = [OUTSIDE, *tags[:-1]]
    return tuple(
        f"B-{tag[2:]}" if tag.startswith("I-") and last[2:] != tag[2:] else tag
        for last, tag in zip(before, tags, strict=True)
    )


def _task(name: str, parts: list[list[TaggedSentence]]) -> TaggedTask:
    kinds = sorted({tag[2:] for part in parts for row in part for tag in row.tags if tag[2:]})
    if not kinds:
        raise ValueError(f"{name} has no tag but {OUTSIDE}; B-PER, I-PER and such were wanted.")
    tags = (OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
    return TaggedTask(name, parts[0], parts[1], parts[2], tags)


def _sentences(lines: Iterable[str], *, where: str, iob1: bool) -> list[TaggedSentence]:
    found = [
        TaggedSentence(tuple(words), bio(tags) if iob1 else tuple(tags))
        for words, tags in _blocks(lines, where=where)
    ]
    if not found:
        raise ValueError(f"{where} holds no tagged sentence; get it again.")
    return found


def _blocks(lines: Iterable[str], *, where: str) -> Iterator[tuple[list[str], list[str]]]:
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        word, tag = line.split(" ", 1)[0] if line else "", line.rpartition(" ")[2]
        if not line.strip():
            if words:
                yield words, tags
            words, tags = [], []
        elif tag != OUTSIDE and not (tag[:2] in ("B-", "I-") and tag[2:]):
            raise ValueError(
                f"{where}, line {number}: a word and, last, a tag such as O or B-PER were wanted "
                f"between spaces, got {line[:40]!r}; get the file again."
            )
        # MasakhaNER has two tags without a word
        elif word and word != DOCUMENT:
            words.append(word)
            tags.append(tag)
