"""GloVe word vectors (Pennington et al., 2014) for the words of a vocabulary.

File `glove/glove.6B.50d.top40k.txt` below the data folder, plain or `.xz`: the 40,000 commonest
words, a word and its numbers, to three decimals, a line. The published
`glove/glove.6B.{50,100,200,300}d.txt` of 400,000 words is read instead where it is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headwise_papers.data.provenance import glove_commonest, known_file
from headwise_papers.data.source import DataFile, data_folder
from headwise_papers.data.vocabulary import SPECIALS, Vocabulary

__all__ = ["GloveVectors", "published", "read_glove"]

WIDTHS = (50, 100, 200, 300)
ORIGIN = "glove.6B.zip of nlp.stanford.edu/projects/glove, unpacked into glove"
COMMONEST = known_file(
    "glove/glove.6B.50d.top40k.txt",
    ORIGIN,
    ("https://nlp.stanford.edu/data/glove.6B.zip",),
    glove_commonest,
)


@dataclass(frozen=True, eq=False)
class GloveVectors:
    """A vector for each word of a vocabulary."""

    matrix: Float[Tensor, "V D"]
    found: Bool[Tensor, " V"]  # whose vectors are GloVe's; the others are random


def read_glove(
    vocabulary: Vocabulary,
    *,
    width: int = 50,
    folder: Path | None = None,
    seed: int = 0,
    verify: bool = True,
) -> GloveVectors:
    """Return the vectors of a vocabulary's words.

    Special tokens and words without a vector are drawn from a normal distribution with mean zero
    and the standard deviation of the vectors found.

    Args:
        vocabulary: its words, looked up as they are; GloVe's are lower-case.
        width: numbers in a vector, 50, 100, 200 or 300.
        folder: the data folder; None: the one that HEADWISE_DATA names.
        seed: of the random vectors.
        verify: raise if the checksum of the file of 40,000 words is unknown.
    """
    if width not in WIDTHS:
        raise ValueError(f"GloVe has vectors of width {WIDTHS}, got {width}.")
    where = data_folder(folder, wanted="GloVe", origin=ORIGIN)
    number = {word: place for place, word in enumerate(vocabulary.words) if word not in SPECIALS}
    matrix_VD = torch.zeros(len(vocabulary), width)
    found_V = torch.zeros(len(vocabulary), dtype=torch.bool)
    for word, vector in _vectors(_lines(where, width, verify=verify), width):
        if word in number:
            matrix_VD[number[word]] = torch.tensor(vector)
            found_V[number[word]] = True
    if not found_V.any():
        raise ValueError(f"No word of the vocabulary has a vector of width {width}; lower-case it.")
    drawn_VD = torch.randn(matrix_VD.shape, generator=torch.Generator().manual_seed(seed))
    spread = matrix_VD[found_V].std(correction=0)
    return GloveVectors(torch.where(found_V[:, None], matrix_VD, drawn_VD * spread), found_V)


def published(width: int) -> DataFile:
    """Return the file of all words, plain only, whose checksum is not known."""
    return DataFile(f"glove/glove.6B.{width}d.txt", "", ORIGIN)


def _lines(folder: Path, width: int, *, verify: bool) -> Iterator[str]:
    """Yield lines of the published file, unloaded, or else of the commonest words."""
    whole = folder / published(width).name
    if whole.is_file():
        with whole.open(encoding="utf-8", newline="\n") as file:
            yield from file
    elif width == 50:
        yield from COMMONEST.lines(folder, verify=verify)
    else:
        raise ValueError(f"There is no {whole}; make it from {ORIGIN}.")


def _vectors(lines: Iterator[str], width: int) -> Iterator[tuple[str, list[float]]]:
    for number, line in enumerate(lines, start=1):
        word, *values = line.rstrip("\n").split(" ")
        try:
            vector = [float(value) for value in values]
        except ValueError:
            vector = []
        if len(vector) != width:
            raise ValueError(
                f"GloVe, line {number}: a word and {width} numbers were wanted, got "
                f"{line[:40]!r}; get the file again."
            )
        yield word, vector
