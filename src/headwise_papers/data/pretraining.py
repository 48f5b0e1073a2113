"""Texts to pre-train on: documents, each some lines in their order.

| name | what is to train on | words |
| --- | --- | --- |
| debian-docs-en | English documentation of 174 Debian packages | 17.7 million |
| wikitext-2 | English Wikipedia, with the text `<unk>` for rare words | 1.75 million |
| filipino | Asian Language Treebank, Genesis to 2 Kings, Tatoeba | 0.85 million |
| oromo | BBC news, more news, LibreOffice's help | 0.83 million |

Parts to validate and to test on are those of the text itself, or of the first text named.
A line is a paragraph or a sentence. Where nothing says what a document is, a file is one; sentences
that never stood together (Tatoeba) are a document each. Of the further Oromo news those lines are
left out that stand in an article of the BBC's, held out or not, or have less than five words.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.config import suggestion
from headwise.text.corpus import all_lines
from headwise.text.source import DataFile, data_folder
from headwise_papers.data.characters import CHARACTER_FILES
from headwise_papers.data.corpora import corpus_file
from headwise_papers.data.plain import plain_text

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


def _debian() -> tuple[DataFile, ...]:
    known = {
        "train-00": "2de8436f3af39d5c2b78ce3c95ce654e582e00e71f85517353b3984b1e943b58",
        "train-01": "f47549d101f3fa484e9ca33086b779dcd8ef9f932abbd990169eb3bd1744ef30",
        "train-02": "7b194c1fb3c4860c0c20c324a85353e37445b3f4d97abe748adf39b371affea0",
        "valid": "1313f9d3d2161f1d7cae52fb5d27da53c4e487a1457e1914deed59bf8026c4c9",
        "test": "831c8e1953641644c9ab4843be658dd058ff6e958fbcb7d770a6caf6bb5c8f97",
    }
    return tuple(DataFile(f"debian-docs-en/{n}.txt", check, DEBIAN) for n, check in known.items())


_TREEBANK = (
    DataFile(
        "alt-en-fil/train.fil",
        "c1142a4ab9fc240c03af73b2e304bcf8b4ba705c249637b99a0842334e9d6feb",
        ALT,
    ),
    DataFile(
        "alt-en-fil/valid.fil",
        "732c13cb7912168026c5c3d0c87e8d5fa0f2797bdea0d4d17ee47735b67be543",
        ALT,
    ),
    DataFile(
        "alt-en-fil/test.fil",
        "581d3aa3de5c9890cb55168617bbe97f486f04a9a81a1cf2d4a532d6437baa45",
        ALT,
    ),
)
_BIBLE = DataFile(
    "filipino-lm/bible-genesis-2kings.tl",
    "c1878a7b423273e070bd1327c1813c6f70f4101ab09373c33e96cf76f1061d9f",
    BIBLE,
)
_TATOEBA = DataFile(
    "filipino-lm/tatoeba.tl",
    "5173f69417b7c799c87fce456f5fe2978be0d9e66b13876a8852bfa9d0a27433",
    TATOEBA,
)
_NEWS = (
    DataFile(
        "oromo-masakhanews/train.tsv",
        "bb6e1d414e8ed01f34ca9729449a3c4adab90873e0cb1116cf91d3d1d7c3ecc7",
        NEWS,
    ),
    DataFile(
        "oromo-masakhanews/dev.tsv",
        "1f388ca42aef92f2fb7481133db70ce03c3de7647fc955465174f3a02a50d178",
        NEWS,
    ),
    DataFile(
        "oromo-masakhanews/test.tsv",
        "f5b1b6f90ba7e851295e0c32af10edc18b9d98d11d3c5bfebbefb51f5ecc27ef",
        NEWS,
    ),
)
_SENTENCES = DataFile(
    "oromo_text/oromo_sentences.txt",
    "f7a5f7a394d3474c979036a02e716acca9c4fce722d115ef1d884da793a156b6",
    SENTENCES,
)
_HORN = DataFile(
    "oromo-hornmt/all.orm",
    "70eea29f71e99b50676429af0562c791eabbe11a2c4850f90ca25fb1f770663e",
    HORN,
)
_HELP = corpus_file("libreoffice-help", "train", "om", pair=("en", "om"))

PRETRAINING_FILES = {
    "debian-docs-en": _debian(),
    "wikitext-2": CHARACTER_FILES["wikitext-2"],
    "filipino": (*_TREEBANK, _BIBLE, _TATOEBA),
    "oromo": (*_NEWS, _SENTENCES, _HORN, _HELP),
}


@dataclass(frozen=True)
class PretrainingTexts:
    """A text in its parts; no document is empty, and no line."""

    name: str
    train: list[Document]
    valid: list[Document]
    test: list[Document]

    def checksum(self) -> str:
        """SHA-256 of the lines to train and to validate on, and of where documents end."""
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
        name: "debian-docs-en", "wikitext-2", "filipino" or "oromo".
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse files that are not the known ones.
    """
    if name not in PRETRAINING_FILES:
        raise ValueError(
            f"There is no text {name!r} to pre-train on. {suggestion(name, PRETRAINING_FILES)}"
        )
    files = PRETRAINING_FILES[name]
    found = data_folder(folder, wanted=name, origin=files[0].origin)
    lines = [file.lines(found, verify=verify) for file in files]
    match name:
        case "debian-docs-en":
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
    """A text of one's own, UTF-8; a blank line ends a document.

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
    """Documents, which end at blank lines.

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
    """The articles of WikiText, which begin with ` = Title = `, written as people write."""
    found: list[Document] = []
    for line in lines:
        if not line.strip():
            continue
        if not found or re.match(r"^ = [^=].* = $", line):
            found.append([])
        found[-1].append(plain_text(re.sub(r" @([-,.])@ ", r"\1", line)))
    return found


def _books(lines: Sequence[str]) -> list[Document]:
    """The books of the Bible, whose names are in capitals."""
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
