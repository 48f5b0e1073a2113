"""Marian's binary models, as Bergamot and Firefox ship them: weights, settings, vocabulary.

A file holds, in little-endian order: version, number of items; for each item the length of its
name, its type, the number of its axes and the length of its data (64 bits each); all names, all
shapes (32 bits an axis); the number of padding bytes; the data.

Two types of weights are quantised: `intgemm8` and `intgemm16`, integers followed by one float32
multiplier, value = integer / multiplier. A matrix of these types is stored transposed; an embedding
table is not. Types whose layout depends on the processor are refused.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headwise_papers.data.subword import SubwordModel
from headwise_papers.data.vocabulary import SPECIALS

__all__ = ["MarianCodec", "MarianFile", "MarianFolder", "marian_folder", "read_marian"]

VERSION = 1
HEADER, ITEM = 16, 32  # bytes
SETTINGS = "special:model.yml"
PLAIN = {0x404: torch.float32, 0x402: torch.float16, 0x101: torch.int8}  # by type code
QUANTISED = {0x4101: torch.int8, 0x4102: torch.int16}
MULTIPLIER = 4  # bytes, after the integers
EMBEDDINGS = "Wemb"  # end of the names of tables that are stored row by row
END, UNKNOWN = 0, 1  # Marian's ids


class MarianFile(NamedTuple):
    """Contents of a model file."""

    settings: dict[str, str]  # lists as text, parted by commas
    tensors: dict[str, Tensor]  # float32, matrices as (inputs, outputs)


class MarianFolder(NamedTuple):
    """The files of a translator."""

    model: Path
    source: Path  # vocabularies, which may be one file
    target: Path


class _Item(NamedTuple):
    name: str
    kind: int
    shape: tuple[int, ...]
    start: int
    length: int


class MarianCodec(SubwordModel):
    """A SentencePiece vocabulary of Marian, whose ids are counted as in `SubwordModel`.

    Marian's `</s>` and `<unk>` are EOS and UNK; PAD and BOS, which Marian does not have, come
    before them, so that all ids are two larger.
    """

    shift = len(SPECIALS) - 2

    def __post_init__(self) -> None:
        found = self._processor.eos_id(), self._processor.unk_id()
        if found != (END, UNKNOWN):
            raise ValueError(
                f"A vocabulary of Marian has </s> at {END} and <unk> at {UNKNOWN}, but this one at "
                f"{found[0]} and {found[1]}; give the .spm file that came with the model."
            )

    def __len__(self) -> int:
        return super().__len__() + self.shift

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return [number + self.shift for number in super().encode(text)]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts."""
        return [[number + self.shift for number in ids] for ids in super().encode_all(texts)]

    def piece(self, number: int) -> str:
        """Return how a token is written; "▁" stands for a space before it."""
        self._check(number)
        if number < len(SPECIALS):
            return SPECIALS[number]
        return str(self._processor.id_to_piece(number - self.shift))


def marian_folder(folder: Path) -> MarianFolder | None:
    """Return the files of the translator in a folder; None if it holds no model of Marian.

    Args:
        folder: with one model, `*.bin` beside `*.spm`, and one vocabulary, or two whose names begin
            with `src` and `trg`. Shortlists, `lex*.bin`, are not used. A folder with `config.json`
            is one of Hugging Face, whose translators come with `*.bin` and `*.spm` too.
    """
    if (folder / "config.json").is_file():
        return None
    vocabularies = sorted(folder.glob("*.spm"))
    models = [path for path in sorted(folder.glob("*.bin")) if not path.name.startswith("lex")]
    if not vocabularies or not models:
        return None
    if len(models) > 1:
        names = ", ".join(path.name for path in models)
        raise ValueError(f"{folder} must hold one model of Marian, got {names}; keep one of them.")
    if len(vocabularies) == 1:
        return MarianFolder(models[0], vocabularies[0], vocabularies[0])
    ends = [[path for path in vocabularies if path.name.startswith(end)] for end in ("src", "trg")]
    if any(len(found) != 1 for found in ends):
        names = ", ".join(path.name for path in vocabularies)
        raise ValueError(
            f"{folder} must hold one vocabulary, or src*.spm and trg*.spm, got {names}; keep those "
            "of the model."
        )
    return MarianFolder(models[0], ends[0][0], ends[1][0])


def read_marian(path: Path) -> MarianFile:
    """Read a model file; quantised weights become float32.

    Args:
        path: of the file, such as `model.enpt.intgemm.alphas.bin`.
    """
    if not path.is_file():
        raise ValueError(f"There is no model file {path}; check the path.")
    reader = _Reader(path.name, path.read_bytes())
    items = reader.items()
    named = {item.name: item for item in items}
    if SETTINGS not in named:
        raise ValueError(f"{path.name} holds no {SETTINGS}, so its shape is unknown; export it "
                         "with Marian's marian-conv.")  # fmt: skip
    held = named.pop(SETTINGS)
    text = reader.part(held.start, held.length).rstrip(b"\0")
    weights = [item for item in named.values() if "QuantMultA" not in item.name]
    return MarianFile(_settings(text, path.name), {x.name: reader.tensor(x) for x in weights})


class _Reader:
    """A file in memory, of which nothing beyond the end is read."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = name, content

    def part(self, start: int, length: int) -> bytes:
        """Return a part, if it is there."""
        if length < 0 or start + length > len(self.content):
            raise ValueError(
                f"{self.name} ends after {len(self.content)} bytes, but {start + length} were "
                "wanted; it is damaged, or no model of Marian. Get it again."
            )
        return self.content[start : start + length]

    def numbers(self, start: int, count: int, size: int = 8) -> list[int]:
        """Return integers: unsigned of 8 bytes, or signed of 4."""
        part = self.part(start, count * size)
        return [
            int.from_bytes(part[at : at + size], "little", signed=size == 4)
            for at in range(0, len(part), size)
        ]

    def items(self) -> list[_Item]:
        """Return the table of contents."""
        version, count = self.numbers(0, 2)
        if version != VERSION:
            raise ValueError(
                f"{self.name} must be a binary model of Marian of version {VERSION}, got version "
                f"{version}; convert it with Marian's marian-conv."
            )
        fields = self.numbers(HEADER, 4 * count)
        heads = [fields[at : at + 4] for at in range(0, len(fields), 4)]
        at = HEADER + ITEM * count
        names: list[str] = []
        for length, *_ in heads:
            names.append(self._text(at, length))
            at += length
        shapes: list[tuple[int, ...]] = []
        for _, _, axes, _ in heads:
            shapes.append(tuple(self.numbers(at, axes, size=4)))
            at += 4 * axes
        at += 8 + self.numbers(at, 1)[0]  # padding
        found: list[_Item] = []
        for name, shape, (_, kind, _, length) in zip(names, shapes, heads, strict=True):
            found.append(_Item(name, kind, shape, at, length))
            at += length
        return found

    def tensor(self, item: _Item) -> Tensor:
        """Return the weights of an item as float32."""
        dtype = PLAIN.get(item.kind) or QUANTISED.get(item.kind)
        if dtype is None:
            raise ValueError(
                f"{item.name} of {self.name} has type {item.kind:#x}, whose layout is unknown or "
                "depends on the processor; convert the model with marian-conv -g intgemm8 or "
                "float32."
            )
        if len(item.shape) != 2 or min(item.shape) < 1:
            raise ValueError(
                f"{item.name} of {self.name} has the shape {item.shape}; get it again."
            )
        part = self.part(item.start, item.length)
        size, end = math.prod(item.shape), math.prod(item.shape) * dtype.itemsize
        if end + MULTIPLIER * (item.kind in QUANTISED) > len(part):
            raise ValueError(
                f"{item.name} of {self.name} needs {end} bytes for the shape {item.shape}, got "
                f"{len(part)}; get it again."
            )
        flat = torch.frombuffer(bytearray(part[:end]), dtype=dtype, count=size).float()
        if item.kind not in QUANTISED:
            return flat.view(item.shape)
        return self._dequantised(item, flat, part[end : end + MULTIPLIER])

    def _dequantised(self, item: _Item, flat: Tensor, multiplier: bytes) -> Tensor:
        factor = torch.frombuffer(bytearray(multiplier), dtype=torch.float32).item()
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(
                f"{item.name} of {self.name} has the multiplier {factor}, which must be a positive "
                "number; get it again."
            )
        if item.name.endswith(EMBEDDINGS):
            return flat.view(item.shape) / factor
        return (flat.view(item.shape[::-1]) / factor).T

    def _text(self, start: int, length: int) -> str:
        try:
            return self.part(start, length).rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(
                f"{self.name} has a name that is not UTF-8; it is damaged, or no model of Marian. "
                "Get it again."
            ) from None


def _settings(text: bytes, name: str) -> dict[str, str]:
    """Return settings from the few forms of YAML that Marian writes: `key: value` and lists."""
    try:
        lines = text.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"The settings in {name} are not UTF-8; get it again.") from None
    found: dict[str, str] = {}
    last = ""
    for line in lines:
        if line.lstrip().startswith("- ") and last:
            found[last] = ",".join(filter(None, (found[last], line.strip()[2:])))
        elif ":" in line:
            last, _, value = line.partition(":")
            found[last] = value.strip().strip("\"'")
    return found
