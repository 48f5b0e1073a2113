"""Flickr8k: 8,000 photographs with five captions each.

Files `flickr8k/captions-{train,dev,test}.tsv` (image, number and caption between tabs) and
`flickr8k/images128-{train,dev,test}.tar`, JPEGs of 128 x 128 pixels whatever their shape was, both
below the data folder, plain or `.xz`. The parts are the published 6,000, 1,000 and 1,000 images.
"""

import io
import random
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from headwise_papers.data.batches import pad
from headwise_papers.data.provenance import known_file
from headwise_papers.data.source import DataFile, data_folder
from headwise_papers.data.vocabulary import BOS, EOS, Vocabulary

__all__ = [
    "FLICKR8K",
    "CaptionBatch",
    "CaptionData",
    "CaptionPart",
    "CaptionStream",
    "caption_words",
    "read_captions",
]

PARTS = ("train", "dev", "test")
SIDE = 128  # pixels of the images at hand
EACH = 5  # captions of an image
ORIGIN = "Flicker8k_Dataset and Flicker8k_text of Flickr8k, its images resized to 128 x 128 as JPEG"
FLICKR8K = {
    name: known_file(f"flickr8k/{name}", ORIGIN)
    for kind in ("captions-{}.tsv", "images128-{}.tar")
    for name in map(kind.format, PARTS)
}
# letters and digits, with apostrophes and hyphens inside
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


@dataclass(frozen=True, eq=False)
class CaptionPart:
    """Images and what people wrote about them."""

    names: list[str]  # of the image files
    captions: list[list[str]]  # five an image, as published
    images: Tensor | None  # (N, 3, S, S) bytes, or what was handed in as features, (N, R, F)

    def words(self) -> list[list[list[str]]]:
        """Return the captions as `caption_words`, for training and for scores."""
        return [[caption_words(caption) for caption in five] for five in self.captions]


@dataclass(frozen=True, eq=False)
class CaptionData:
    """Flickr8k in its published parts, and the words of its training captions."""

    train: CaptionPart
    valid: CaptionPart
    test: CaptionPart
    vocabulary: Vocabulary


def caption_words(caption: str) -> list[str]:
    """Return lower-cased words without punctuation, as scores of captions compare them.

    >>> caption_words("A dog 's ball , in mid-air .")
    ['a', 'dog', 's', 'ball', 'in', 'mid-air']
    """
    return _WORD.findall(caption.lower())


def read_captions(
    *,
    folder: Path | None = None,
    size: int | None = SIDE,
    features: Mapping[str, Tensor] | None = None,
    minimum_count: int = 5,
    verify: bool = True,
) -> CaptionData:
    """Read Flickr8k.

    Args:
        folder: the data folder; None: the one that HEADWISE_DATA names.
        size: pixels of the sides of the images, 128 or fewer; None leaves images out.
        features: for each image's file name a tensor, all of one shape, taken instead of images.
        minimum_count: words seen less often in training captions are unknown.
        verify: raise if a checksum is unknown.
    """
    if size is not None and not 1 <= size <= SIDE:
        raise ValueError(
            f"The images have {SIDE} pixels a side, so size is 1 to {SIDE}, got {size}."
        )
    found = data_folder(folder, wanted="flickr8k", origin=ORIGIN)
    parts: list[CaptionPart] = []
    for part in PARTS:
        captions = _captions(FLICKR8K[f"captions-{part}.tsv"], found, verify=verify)
        seen = None
        if features is not None:
            seen = _stacked(features, list(captions))
        elif size is not None:
            archive = FLICKR8K[f"images128-{part}.tar"]
            seen = _images(archive, found, list(captions), size=size, verify=verify)
        parts.append(CaptionPart(list(captions), list(captions.values()), seen))
    train, valid, test = parts
    sentences = [words for five in train.words() for words in five]
    known = Vocabulary.from_sentences(sentences, minimum_count=minimum_count)
    return CaptionData(train, valid, test, known)


class CaptionBatch(NamedTuple):
    """Images, each with one caption, padded."""

    images: Tensor  # (B, 3, S, S) bytes, or features (B, R, F)
    target_in: Int[Tensor, "B T"]  # begins with BOS
    target_out: Int[Tensor, "B T"]  # shifted by one word, ends with EOS
    target_lengths: Int[Tensor, " B"]  # of target_in and target_out alike


@dataclass(frozen=True, eq=False)
class CaptionStream:
    """Images to learn captions of, as an endless numbered series of batches.

    Batch n is the same in every process and after every restart. Each epoch shows every image
    once, with one of its captions; captions of an image come in turn, from one of its own.
    """

    images: Tensor  # of `CaptionPart`
    captions: Sequence[Sequence[Sequence[int]]]  # for each image the ids of each caption
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.images) != len(self.captions) or not len(self.images):
            raise ValueError(
                f"Each of one image or more needs its captions, got {len(self.images)} images and "
                f"{len(self.captions)} lists of captions."
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {self.batch_size}.")

    @property
    def per_epoch(self) -> int:
        """Batches until every image was shown; the last may be smaller."""
        return -(-len(self.images) // self.batch_size)

    def __call__(self, number: int) -> CaptionBatch:
        """Return batch `number`, from 0 on."""
        epoch, place = divmod(number, self.per_epoch)
        order = _order(len(self.images), self.seed * 1_000_003 + epoch)
        chosen = order[place * self.batch_size : (place + 1) * self.batch_size]
        captions = [self._caption(index, epoch) for index in chosen]
        target_in = pad([[BOS, *ids] for ids in captions])
        target_out = pad([[*ids, EOS] for ids in captions])
        images = self.images[torch.tensor(chosen)]
        return CaptionBatch(images, target_in.ids, target_out.ids, target_in.lengths)

    def _caption(self, index: int, epoch: int) -> Sequence[int]:
        own = self.captions[index]
        return own[(epoch + index) % len(own)]


@lru_cache(maxsize=2)
def _order(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def _captions(file: DataFile, folder: Path, *, verify: bool) -> dict[str, list[str]]:
    """Return the captions of each image, in the order of the file."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(file.lines(folder, verify=verify), start=1):
        fields = line.split("\t")
        if len(fields) != 3 or fields[1] != str(len(found.setdefault(fields[0], []))):
            raise ValueError(
                f"{file.name}, line {number}: an image, the number of its caption from 0 on and "
                f"the caption were wanted between tabs, got {line[:40]!r}; get the file again."
            )
        found[fields[0]].append(fields[2])
    uneven = next((name for name, captions in found.items() if len(captions) != EACH), None)
    if uneven:
        raise ValueError(
            f"{file.name} has {len(found[uneven])} captions of {uneven}, but {EACH} were wanted; "
            "get the file again."
        )
    return found


def _images(
    file: DataFile, folder: Path, names: Sequence[str], *, size: int, verify: bool
) -> Tensor:
    """Return the images of these names as (N, 3, size, size) bytes."""
    contents = file.read(folder, verify=verify)
    images = torch.empty(len(names), 3, size, size, dtype=torch.uint8)
    place = {name: number for number, name in enumerate(names)}
    missing = set(names)
    try:
        with tarfile.open(fileobj=io.BytesIO(contents)) as archive:
            for member in archive:
                held = archive.extractfile(member)
                if held and member.name in missing:
                    images[place[member.name]] = _pixels(held.read(), size=size)
                    missing.discard(member.name)
    except (tarfile.TarError, OSError) as problem:
        raise ValueError(
            f"{folder / file.name} cannot be read ({problem}); get it again."
        ) from None
    if missing:
        raise ValueError(
            f"{file.name} has no image {min(missing)}, nor {len(missing) - 1} others of the "
            "captions; get both files again."
        )
    return images


def _pixels(jpeg: bytes, *, size: int) -> Tensor:
    # lazy: only images need Pillow, which comes with matplotlib
    from PIL import Image

    with Image.open(io.BytesIO(jpeg)) as image:
        small = image.convert("RGB")
        if small.size != (size, size):
            small = small.resize((size, size), Image.Resampling.BOX)
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1)


def _stacked(features: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    absent = next((name for name in names if name not in features), None)
    if absent:
        raise ValueError(f"There are no features of {absent}; give one tensor for every image.")
    shapes = {tuple(features[name].shape) for name in names}
    if len(shapes) > 1:
        raise ValueError(
            f"Features of one shape were wanted, got {sorted(shapes)[:3]}; pad them to one length."
        )
    return torch.stack([features[name] for name in names])
