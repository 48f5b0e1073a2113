"""The Stanford Sentiment Treebank (Socher et al., 2013): sentences with two or five classes.

Files `sst/sst2.{train,dev,test}.tsv` and `sst/sst5...` below the data folder, plain or `.xz`, a
line `label TAB text`: the roots of the treebank, for SST2 without the neutral ones. `from_trees`
makes these files of the public trees. Texts are lower-cased, split on white space, and tokens
without a letter or digit dropped; "best" is then in 128 training sentences of SST2, 103 positive.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from headwise.text.source import DataFile, data_folder, github, write_whole
from headwise_papers.data.bags import Bags
from headwise_papers.data.vocabulary import Vocabulary

__all__ = ["Sst", "from_trees", "read_sst", "sst_file", "words_of"]

Name = Literal["sst2", "sst5"]
SPLITS = ("train", "dev", "test")
CLASSES = {"sst2": 2, "sst5": 5}
ORIGIN = (
    "data/sst/raw_data of github.com/prrao87/fine-grained-sentiment at a4401669 "
    "with headwise_papers.data.sst.from_trees"
)
CHECKSUMS = {  # of the unpacked files
    "sst2.train": "735bed954e49f30415b00c7a0182df2d02d1cd0f98ded10a4761a9c2a02cb1f5",
    "sst2.dev": "f83ae81070f1c0cc35550ea73435e2e4c25bd766b500d82c9aace5825c3ff816",
    "sst2.test": "2e1ee5e8f0682b45a4c01ef8e6ac05f417d659ab156354f327c56ad344ae797f",
    "sst5.train": "ebad919a6f0b2ef3a2d63bdb50452e8858e4beb96ea3642a3f69c96102f2d407",
    "sst5.dev": "850e036e41368beee56cd71aeb69b49444932d5f242bcd7cce7e31a98abb5a63",
    "sst5.test": "c16b3f5d48763882d3033e88426190099ce767d1e3cb366a09e4fbcb5b01bc6c",
}
_LEAF = re.compile(r"\(\d ([^()]+)\)")
_WRITTEN = {"-LRB-": "(", "-RRB-": ")", "\\/": "/"}


@dataclass(frozen=True)
class Sst:
    """The three parts with one vocabulary of all their words, as the paper's code has it."""

    train: Bags
    dev: Bags
    test: Bags
    vocabulary: Vocabulary
    classes: int


def words_of(text: str) -> list[str]:
    """The words of a sentence, lower-cased, without tokens that are punctuation only.

    >>> words_of("The Rock is n't `` new '' , he 's 21st !")
    ['the', 'rock', 'is', "n't", 'new', 'he', "'s", '21st']
    """
    return [token for token in text.lower().split() if any(map(str.isalnum, token))]


def read_sst(name: Name, *, folder: Path | None = None, verify: bool = True) -> Sst:
    """Read SST2 or SST5 whole.

    Args:
        name: "sst2" (negative, positive) or "sst5" (very negative to very positive).
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse files that are not the known ones.
    """
    found = data_folder(folder, wanted=name.upper(), origin=ORIGIN)
    parts = {part: list(_read(found, name, part, verify=verify)) for part in SPLITS}
    sentences = [words for part in parts.values() for _, words in part]
    vocabulary = Vocabulary.from_sentences(sentences)
    bags = {
        part: Bags.of([vocabulary.encode(words) for _, words in rows], [label for label, _ in rows])
        for part, rows in parts.items()
    }
    return Sst(bags["train"], bags["dev"], bags["test"], vocabulary, CLASSES[name])


def sst_file(name: Name, part: str) -> DataFile:
    """The file of a part: "train", "dev" or "test"."""
    repository, commit = "prrao87/fine-grained-sentiment", "a4401669"
    return DataFile(
        f"sst/{name}.{part}.tsv",
        CHECKSUMS[f"{name}.{part}"],
        ORIGIN,
        (github(repository, commit, f"data/sst/raw_data/{part}.txt"),),
        partial(_table, name=name),
    )


def _read(folder: Path, name: Name, part: str, *, verify: bool) -> Iterator[tuple[int, list[str]]]:
    file = sst_file(name, part)
    text = file.read(folder, verify=verify).decode("utf-8")
    # split on "\n" only: some texts hold other characters that count as line breaks
    for number, line in enumerate(text.rstrip("\n").split("\n"), start=1):
        label, tab, sentence = line.partition("\t")
        if not tab or label not in map(str, range(CLASSES[name])):
            raise ValueError(
                f"{file.name}, line {number}: a label from 0 to {CLASSES[name] - 1}, a tab and a "
                f"text were wanted, got {line[:40]!r}; get the file again."
            )
        words = words_of(sentence)
        if words:
            yield int(label), words


def from_trees(trees: Path, folder: Path) -> None:
    """Make the six files from the public trees.

    Args:
        trees: the folder with train.txt, dev.txt and test.txt, a tree a line.
        folder: the data folder; the files go to `sst` below it.
    """
    for part in SPLITS:
        contents = (trees / f"{part}.txt").read_bytes()
        for name in CLASSES:
            write_whole(folder / "sst" / f"{name}.{part}.tsv", _table([contents], name=name))


def _table(parts: Sequence[bytes], *, name: str) -> bytes:
    """Label and words of each tree's root, between tabs; SST2 without the neutral ones."""
    rows: list[str] = []
    for line in parts[0].decode("utf-8").rstrip("\n").split("\n"):
        label = int(line[1])
        if name == "sst5":
            rows.append(f"{label}\t{_leaves(line)}\n")
        elif label != 2:
            rows.append(f"{int(label > 2)}\t{_leaves(line)}\n")
    return "".join(rows).encode()


def _leaves(tree: str) -> str:
    text = " ".join(_LEAF.findall(tree))
    for written, meant in _WRITTEN.items():
        text = text.replace(written, meant)
    return text
