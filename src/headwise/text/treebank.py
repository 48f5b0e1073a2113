"""Treebanks in CoNLL-U (universaldependencies.org/format): sentences and who depends on whom.

Words are those of the running text, so that a model can read what was written. A multiword token
whose words make it up letter by letter ("don't" = "do" + "n't") is cut into them; any other ("im"
= "in dem", German) stays one word, which depends on what the first of its words with a head outside
it depends on. Empty nodes, of ellipsis, are left out.

Named sets lie in `ud` below the data folder: en_ewt (train, dev, test), de_gsd and ru_gsd (dev,
test), tl_trg and tl_ugnayan (test).
"""

import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headwise.config import suggestion
from headwise.text.making import github
from headwise.text.source import DataFile, data_folder
from headwise.text.words import word_spans

__all__ = [
    "TREEBANKS",
    "Tree",
    "read_named_treebank",
    "read_treebank",
    "treebank_file",
    "trees_in",
]

COLUMNS = 10
_COMMITS = {  # of the repositories github.com/UniversalDependencies/…
    "en_ewt": ("UD_English-EWT", "15d613d8"),
    "de_gsd": ("UD_German-GSD", "297fcf35"),
    "ru_gsd": ("UD_Russian-GSD", "5400f2fd"),
    "tl_trg": ("UD_Tagalog-TRG", "7151bec1"),
    "tl_ugnayan": ("UD_Tagalog-Ugnayan", "5186042b"),
}
TREEBANKS = {  # parts, and the checksums of the unpacked files
    "en_ewt": {
        "train": "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
        "dev": "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
        "test": "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
    },
    "de_gsd": {
        "dev": "00431f2624cbbf66796c097a9303bbc8f8e8ca88ef35c4c5664aa396b2d674c9",
        "test": "bceb8e867ba3ee7f1449d44fb31538d63a514f07e6763e7d9a5ffe794407bed4",
    },
    "ru_gsd": {
        "dev": "e3e3d4e8d1d7544e531b2b81ae64257efacc97f93276ce6d2ce52fd1de052fa2",
        "test": "f26e022329162a1c6306f76644d06f770f1572501755421165387137fe63138d",
    },
    "tl_trg": {"test": "d21eb1072f6da530de2e0e3a9065a76ae36559efd43afc7c6d48264024afa8c1"},
    "tl_ugnayan": {"test": "f48eb82e9baab1bf928330924e45fad2dded3b14b688178be864aa97ea68c9ef"},
}


@dataclass(frozen=True)
class Tree:
    """A sentence and its dependencies."""

    words: tuple[str, ...]
    heads: tuple[int, ...]  # of each word, counted from 0; -1: a root
    relations: tuple[str, ...]  # of each word to its head, e.g. "nsubj" or "nsubj:pass"
    tags: tuple[str, ...]  # universal parts of speech, e.g. "NOUN"
    text: str  # as written

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where each word begins and ends in the text."""
        return word_spans(self.words, self.text)


class _Row(NamedTuple):
    """A word, or several written as one: numbers as in the file, from 1 on."""

    line: int
    first: int
    last: int
    form: str
    tag: str
    head: int
    relation: str
    spaced: bool  # white space follows


def read_treebank(path: Path) -> Iterator[Tree]:
    """The sentences of a CoNLL-U file, read one at a time.

    A missing file is reported at once; a malformed line, with its number, when the reading gets
    there.

    Args:
        path: a `.conllu` file, or one packed as `.xz` or `.gz`.
    """
    if not path.is_file():
        raise ValueError(f"There is no treebank {path}; check the path.")
    return _trees(_lines(path), place=str(path))


def read_named_treebank(
    name: str, part: str, *, folder: Path | None = None, verify: bool = True
) -> Iterator[Tree]:
    """The sentences of a part of a treebank at hand.

    Args:
        name: "en_ewt", "de_gsd", "ru_gsd", "tl_trg" or "tl_ugnayan".
        part: "train", "dev" or "test"; only en_ewt has a part "train".
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse files that are not the known ones.
    """
    file = treebank_file(name, part)
    found = data_folder(folder, wanted=name, origin=file.origin)
    return trees_in(file.lines(found, verify=verify), place=file.name)


def trees_in(lines: Iterable[str], *, place: str) -> Iterator[Tree]:
    """The sentences in some lines of CoNLL-U; `place` names them in messages."""
    return _trees(enumerate(lines, start=1), place=place)


def treebank_file(name: str, part: str) -> DataFile:
    """The file of a part of a named treebank.

    >>> treebank_file("en_ewt", "dev").name
    'ud/en_ewt-ud-dev.conllu'
    """
    if name not in TREEBANKS:
        raise ValueError(f"There is no treebank {name!r}. {suggestion(name, TREEBANKS)}")
    if part not in TREEBANKS[name]:
        raise ValueError(f"{name} has no part {part!r}. {suggestion(part, TREEBANKS[name])}")
    repository, commit = _COMMITS[name]
    file_name = f"{name}-ud-{part}.conllu"
    return DataFile(
        f"ud/{file_name}",
        TREEBANKS[name][part],
        f"{file_name} of github.com/UniversalDependencies/{repository} at {commit}",
        (github(f"UniversalDependencies/{repository}", commit, file_name),),
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    number = 0
    try:
        with opened(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as problem:
        raise ValueError(
            f"{path}, line {number}: UTF-8 text was wanted ({problem.reason} at byte "
            f"{problem.start + 1}); convert the file."
        ) from None
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as problem:
        raise ValueError(
            f"{path} is not a whole {path.suffix} file ({problem}); get it again."
        ) from None


def _trees(lines: Iterable[tuple[int, str]], *, place: str) -> Iterator[Tree]:
    rows: list[_Row] = []
    empty = True
    for number, line in lines:
        if not line.strip():
            if rows:
                yield _tree(rows, place=place)
                rows, empty = [], False
        elif not line.startswith("#"):
            row = _row(line, number=number, place=place)
            rows += [row] if row else []
    if rows:
        yield _tree(rows, place=place)
    elif empty:
        raise ValueError(f"{place} holds no sentence; give a CoNLL-U file.")


def _row(line: str, *, number: int, place: str) -> _Row | None:
    """A line's word or multiword token; None for an empty node."""
    fields = line.split("\t")
    if len(fields) != COLUMNS:
        raise ValueError(
            f"{place}, line {number}: {COLUMNS} columns between tabs were wanted, got "
            f"{len(fields)}; a treebank has one word a line, as CoNLL-U."
        )
    ident, form, _, tag, _, _, head, relation, _, remarks = fields
    if "." in ident:
        return None
    first, _, last = ident.partition("-")
    several = bool(last)
    if not first.isdecimal() or not (last or first).isdecimal():
        raise ValueError(
            f"{place}, line {number}: a word's number such as 3, 3-4 or 3.1 was wanted, got "
            f"{ident!r}; mend the file."
        )
    if not several and not head.isdecimal():
        raise ValueError(
            f"{place}, line {number}: the number of the head of {form!r} was wanted, got {head!r}; "
            "the sentence must be parsed."
        )
    spaced = "SpaceAfter=No" not in remarks.split("|")
    ends = int(first), int(last or first)
    return _Row(number, *ends, form, tag, 0 if several else int(head), relation, spaced)


def _tree(rows: Sequence[_Row], *, place: str) -> Tree:
    words = [row for row in rows if row.first == row.last]
    _check(words, rows, place=place)
    tokens = _tokens(words, [row for row in rows if row.first < row.last])
    token_of = {
        number: place
        for place, token in enumerate(tokens)
        for number in range(token.first, token.last + 1)
    }
    token_of[0] = -1
    text = "".join(token.form + " " * token.spaced for token in tokens).rstrip(" ")
    return Tree(
        tuple(token.form for token in tokens),
        tuple(token_of[token.head] for token in tokens),
        tuple(token.relation for token in tokens),
        tuple(token.tag for token in tokens),
        text,
    )


def _check(words: Sequence[_Row], rows: Sequence[_Row], *, place: str) -> None:
    for wanted, word in enumerate(words, start=1):
        if word.first != wanted:
            raise ValueError(
                f"{place}, line {word.line}: word {wanted} of its sentence was wanted, got word "
                f"{word.first}; sentences are parted by an empty line."
            )
        if word.head > len(words) or word.head == word.first:
            raise ValueError(
                f"{place}, line {word.line}: the head of word {word.first} is to be another of "
                f"{len(words)} words or 0, got {word.head}; mend the file."
            )
    end = 0
    for row in rows:
        if row.first == row.last:
            continue
        if not end < row.first < row.last <= len(words):
            raise ValueError(
                f"{place}, line {row.line}: the multiword token {row.first}-{row.last} does not "
                f"lie within {len(words)} words, after those before it; mend the file."
            )
        end = row.last


def _tokens(words: Sequence[_Row], several: Sequence[_Row]) -> list[_Row]:
    """Words of the running text: see the module's head."""
    tokens = {word.first: word for word in words}
    for token in several:
        inside = words[token.first - 1 : token.last]
        if "".join(word.form for word in inside) == token.form:
            for word in inside:
                last = word.first == token.last
                tokens[word.first] = word._replace(spaced=last and token.spaced)
            continue
        outward = (w for w in inside if not token.first <= w.head <= token.last)
        chief = next(outward, inside[0])
        tokens[token.first] = token._replace(
            tag=chief.tag, head=chief.head, relation=chief.relation
        )
        for word in inside[1:]:
            del tokens[word.first]
    return [tokens[number] for number in sorted(tokens)]
