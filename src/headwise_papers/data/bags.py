"""Labelled sentences as tensors, for one seed or for many that are trained in parallel.

SST, the Stanford Sentiment Treebank (Socher et al., 2013), has sentences with two or five classes:
files `sst/sst2.{train,dev,test}.tsv` and `sst/sst5...` below the data folder, plain or `.xz`, a
line `label TAB text`: the roots of the treebank, for SST2 without the neutral ones. `from_trees`
makes these files of the public trees. Texts are lower-cased, split on white space, and tokens
without a letter or digit dropped; "best" is then in 128 training sentences of SST2, 103 positive.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from headwise_papers.data.provenance import known_file, read_table
from headwise_papers.data.source import DataFile, data_folder, github, write_whole
from headwise_papers.data.vocabulary import Vocabulary

__all__ = ["Bags", "Sst", "from_trees", "read_sst", "sst_file", "words_of"]


@dataclass(frozen=True)
class Bags:
    """Sentences of word numbers with a label each, S seeds on the leading axis.

    >>> bags = Bags.of([[5, 6, 7], [5]], [0, 1])
    >>> bags.tokens
    tensor([[[5, 6, 7],
             [5, 0, 0]]])
    >>> bags.lengths
    tensor([[3, 1]])
    """

    tokens: Int[Tensor, "S N T"]  # padded with anything; `lengths` says what is real
    lengths: Int[Tensor, "S N"]
    labels: Int[Tensor, "S N"]

    def __post_init__(self) -> None:
        seeds, sentences, width = self.tokens.shape
        for name, given in (("lengths", self.lengths), ("labels", self.labels)):
            if given.shape != (seeds, sentences):
                raise ValueError(
                    f"{name} must have shape {(seeds, sentences)}, one value a sentence, "
                    f"got {tuple(given.shape)}."
                )
        if bool((self.lengths < 1).any() or (self.lengths > width).any()):
            raise ValueError(
                f"A sentence has 1 to {width} words here, got lengths from "
                f"{self.lengths.min().item()} to {self.lengths.max().item()}; "
                "drop empty sentences."
            )

    @staticmethod
    def of(sentences: Sequence[Sequence[int]], labels: Sequence[int]) -> "Bags":
        """Return one seed's sentences, given as lists of word numbers; padded with 0."""
        if not sentences:
            raise ValueError("At least one sentence is wanted, got none.")
        rows = [torch.tensor(words, dtype=torch.long) for words in sentences]
        return Bags(
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)[None],
            torch.tensor([[len(words) for words in sentences]]),
            torch.tensor([labels]),
        )

    @staticmethod
    def stack(bags: Sequence["Bags"]) -> "Bags":
        """Concatenate several sets of the same number of sentences of the same width."""
        return Bags(
            torch.cat([part.tokens for part in bags]),
            torch.cat([part.lengths for part in bags]),
            torch.cat([part.labels for part in bags]),
        )

    @property
    def seeds(self) -> int:
        """Number of seeds that there are sentences for."""
        return len(self.tokens)

    def seed(self, index: int) -> "Bags":
        """Return the sentences of one seed, still with a leading axis."""
        own = slice(index, index + 1)
        return Bags(self.tokens[own], self.lengths[own], self.labels[own])

    def repeated(self, seeds: int) -> "Bags":
        """Return these sentences for each of several seeds, without copying them."""
        if self.seeds != 1:
            raise ValueError(f"Sentences of one seed can be repeated, got those of {self.seeds}.")
        return Bags(*(x.expand(seeds, *x.shape[1:]) for x in vars(self).values()))

    def to(self, device: torch.device | str) -> "Bags":
        """Return the sentences on another device."""
        return Bags(*(x.to(device) for x in vars(self).values()))


Name = Literal["sst2", "sst5"]
SPLITS = ("train", "dev", "test")
CLASSES = {"sst2": 2, "sst5": 5}
ORIGIN = (
    "data/sst/raw_data of github.com/prrao87/fine-grained-sentiment at a4401669 "
    "with headwise_papers.data.bags.from_trees"
)
_LEAF = re.compile(r"\(\d ([^()]+)\)")
_WRITTEN = {"-LRB-": "(", "-RRB-": ")", "\\/": "/"}


@dataclass(frozen=True)
class Sst:
    """Three parts with one vocabulary of all their words, as the paper's code has it."""

    train: Bags
    dev: Bags
    test: Bags
    vocabulary: Vocabulary
    classes: int


def words_of(text: str) -> list[str]:
    """Return the words of a sentence, lower-cased, without tokens that are punctuation only.

    >>> words_of("The Rock is n't `` new '' , he 's 21st !")
    ['the', 'rock', 'is', "n't", 'new', 'he', "'s", '21st']
    """
    return [token for token in text.lower().split() if any(map(str.isalnum, token))]


def read_sst(name: Name, *, folder: Path | None = None, verify: bool = True) -> Sst:
    """Read SST2 or SST5 whole.

    Args:
        name: "sst2" (negative, positive) or "sst5" (very negative to very positive).
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown.
    """
    found = data_folder(folder, wanted=name.upper(), origin=ORIGIN)
    labels = [str(label) for label in range(CLASSES[name])]
    parts: list[tuple[list[int], list[list[str]]]] = []
    for part in SPLITS:
        file, columns = sst_file(name, part), ("label", "text")
        rows = read_table(file, found, columns=columns, labels=labels, verify=verify)
        kept = [(int(label), words) for label, text in rows if (words := words_of(text))]
        parts.append(([label for label, _ in kept], [words for _, words in kept]))
    vocabulary = Vocabulary.from_sentences(words for _, texts in parts for words in texts)
    train, dev, test = (
        Bags.of([vocabulary.encode(words) for words in texts], labels) for labels, texts in parts
    )
    return Sst(train, dev, test, vocabulary, CLASSES[name])


def sst_file(name: Name, part: str) -> DataFile:
    """Return the file of a part: "train", "dev" or "test"."""
    url = github("prrao87/fine-grained-sentiment", "a4401669", f"data/sst/raw_data/{part}.txt")
    return known_file(f"sst/{name}.{part}.tsv", ORIGIN, (url,), partial(_table, name=name))


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
    """Return label and words of each tree's root, between tabs; SST2 without the neutral ones."""
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
