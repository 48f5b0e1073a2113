"""Texts to pre-train on: documents, each a list of lines.

| name | training part | words |
| --- | --- | --- |
| debian-docs-en | English documentation of 174 Debian packages | 17.7 million |
| classic-books-en | 251 English books, mostly fiction of the 19th century | 18.9 million |
| wikitext-2 | English Wikipedia, with the text `<unk>` for rare words | 1.75 million |
| filipino | Asian Language Treebank, Genesis to 2 Kings, Tatoeba | 0.85 million |
| oromo | BBC news, more news, LibreOffice's help | 0.83 million |

The parts for validation and test are those of the text itself, or of the first text named.
Books are split by author; those that share three or more runs of nine words with LitBank are left
out.
A line is a paragraph or a sentence. Where nothing says what a document is, a file is one; sentences
that never stood together (Tatoeba) are a document each. Of the further Oromo news those lines are
left out that stand in an article of the BBC's, held out or not, or have less than five words.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.text import all_lines
from headwise_papers.data.characters import CHARACTER_FILES
from headwise_papers.data.provenance import entry, known_file, read_lines
from headwise_papers.data.translation import PARTS, corpus_file, plain_text

__all__ = [
    "PRETRAINING_FILES",
    "Document",
    "PretrainingTexts",
    "documents_between_blanks",
    "read_pretraining",
    "read_text_file",
]

Document = list[str]  # its lines

DEBIAN = "the documentation in the packages of Debian 12, paragraphs of prose only"
ALT = "English.txt and Tagalog.txt of github.com/sheyn018/English-Tagalog-SMT at abc32fb602b2"
BIBLE = (
    "src/text data/Bible_Tagalog.txt of "
    "github.com/JakeCob/Ilokano-to-Tagalog-Machince-Translation at 778d8a243017"
)
TATOEBA = "eng-tgl of github.com/Helsinki-NLP/Tatoeba-Challenge at d34a89ac102f, dev and test"
NEWS = "data/orm of github.com/masakhane-io/masakhane-news at 819be052e79e, without its addresses"
SENTENCES = (
    "MasakhaNER2.0/ranking_languages/ranking_data/datasets/ner-train.orig.orm of "
    "github.com/masakhane-io/masakhane-ner at ba5843cd"
)
HORN = "data/orm.txt of github.com/asmelashteka/HornMT at e67b5bc341e5"
HELD_OUT = 10  # one line in so many of a text of one's own
SHINGLE = 5  # words in a row by which a line is found in an article


BOOKS = (
    "github.com/mlschmitt/classic-books-markdown at 944882722e9a: 261 of its 756 files in order of "
    "their hashes, no author who died after 1955 and no book of LitBank, paragraphs of 8 words "
    "or more, without verse and headings, split by author"
)
SHARDS = ("train-00", "train-01", "train-02", "valid", "test")
PRETRAINING_FILES = {
    "debian-docs-en": tuple(known_file(f"debian-docs-en/{n}.txt", DEBIAN) for n in SHARDS),
    "classic-books-en": tuple(known_file(f"classic-books-en/{n}.txt", BOOKS) for n in PARTS),
    "wikitext-2": CHARACTER_FILES["wikitext-2"],
    "filipino": (
        *(known_file(f"alt-en-fil/{part}.fil", ALT) for part in PARTS),
        known_file("filipino-lm/bible-genesis-2kings.tl", BIBLE),
        known_file("filipino-lm/tatoeba.tl", TATOEBA),
    ),
    "oromo": (
        *(known_file(f"oromo-masakhanews/{part}.tsv", NEWS) for part in ("train", "dev", "test")),
        known_file("oromo_text/oromo_sentences.txt", SENTENCES),
        known_file("oromo-hornmt/all.orm", HORN),
        corpus_file("libreoffice-help", "train", "om", pair=("en", "om")),
    ),
}


@dataclass(frozen=True)
class PretrainingTexts:
    """Parts of a text; no document and no line is empty."""

    name: str
    train: list[Document]
    valid: list[Document]
    test: list[Document]

    def checksum(self) -> str:
        """Return the SHA-256 of training and validation lines and of the ends of documents."""
        found = hashlib.sha256()
        for part in (self.train, self.valid):
            for document in part:
                found.update("".join(f"{line}\n" for line in (*document, "")).encode())
            found.update(b"\n")
        return found.hexdigest()


def read_pretraining(
    name: str, *, folder: Path | None = None, verify: bool = True
) -> PretrainingTexts:
    """Read a text to pre-train on.

    Args:
        name: "debian-docs-en", "classic-books-en", "wikitext-2", "filipino" or "oromo".
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown.
    """
    files = entry(PRETRAINING_FILES, name, "pre-training text")
    lines = read_lines(files, name=name, folder=folder, verify=verify)
    match name:
        case "debian-docs-en" | "classic-books-en":
            *shards, valid, test = (documents_between_blanks(part) for part in lines)
            return PretrainingTexts(name, [one for part in shards for one in part], valid, test)
        case "wikitext-2":
            return PretrainingTexts(name, *(_articles(part) for part in lines))
        case "filipino":
            train, valid, test, bible, tatoeba = (_full(part) for part in lines)
            return PretrainingTexts(
                name, [train, *_books(bible), *([one] for one in tatoeba)], [valid], [test]
            )
        case _:
            return _oromo(name, lines)


def read_text_file(path: Path) -> PretrainingTexts:
    """Read a text of one's own, UTF-8; a blank line ends a document.

    The last tenth of its lines is for validation; there is no test part.
    """
    lines = all_lines(path, trailing=False)
    cut = len(lines) - max(1, len(lines) // HELD_OUT)
    train, valid = documents_between_blanks(lines[:cut]), documents_between_blanks(lines[cut:])
    if not train or not valid:
        raise ValueError(
            f"{path} has too few lines to hold some out; put a paragraph or sentence on each."
        )
    return PretrainingTexts(path.name, train, valid, [])


def documents_between_blanks(lines: Iterable[str]) -> list[Document]:
    """Split lines into documents, which end at blank lines.

    >>> documents_between_blanks(["one", "two", "", "", "three"])
    [['one', 'two'], ['three']]
    """
    found: list[Document] = [[]]
    for line in lines:
        if stripped := line.strip():
            found[-1].append(stripped)
        elif found[-1]:
            found.append([])
    return found if found[-1] else found[:-1]


def _full(lines: Iterable[str]) -> Document:
    return [stripped for line in lines if (stripped := line.strip())]


def _articles(lines: Iterable[str]) -> list[Document]:
    """Return the articles of WikiText, which begin with ` = Title = `, written as people write."""
    found: list[Document] = []
    for line in lines:
        if not line.strip():
            continue
        if not found or re.match(r"^ = [^=].* = $", line):
            found.append([])
        found[-1].append(plain_text(re.sub(r" @([-,.])@ ", r"\1", line)))
    return found


def _books(lines: Sequence[str]) -> list[Document]:
    """Return the books of the Bible, whose names are in capitals."""
    found: list[Document] = []
    for line in lines:
        if not found or line.isupper():
            found.append([])
        found[-1].append(line)
    return found


def _oromo(name: str, lines: Sequence[Sequence[str]]) -> PretrainingTexts:
    train, valid, test = (
        [_full(row.split("\t")[1:]) for row in part]  # the first field is the topic
        for part in lines[:3]
    )
    held = {words for part in (train, valid, test) for article in part for words in _runs(article)}
    further = [
        line for line in _full(lines[3]) if (runs := _shingles(line)) and not held & set(runs[:1])
    ]
    return PretrainingTexts(name, [*train, further, _full(lines[4]), _full(lines[5])], valid, test)


def _runs(article: Document) -> list[tuple[str, ...]]:
    return [run for line in article for run in _shingles(line)]


def _shingles(line: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", line.lower())
    return [tuple(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)]
