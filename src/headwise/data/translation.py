"""Parallel texts: Multi30k and IWSLT'14, as lines and as pieces of words.

Files `multi30k/{train,val,test_2016_flickr}.{en,de,fr,cs}` and
`iwslt14-de-en/{train,valid,test}.{de,en}` below the data folder, plain or `.xz`, a sentence a line.
Multi30k is raw text; IWSLT'14 is lower-cased and tokenised by Moses, with its escapes, as the
files `tmp/*` of fairseq's prepare-iwslt14.sh have it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from headwise.config import suggestion
from headwise.data.making import github, unzipped
from headwise.data.source import DataFile, data_folder
from headwise.data.subword import Pieces, train_pieces

__all__ = [
    "Lines",
    "ParallelTexts",
    "TranslationData",
    "median_lengths",
    "read_parallel_texts",
    "read_translation",
    "translation_file",
]

Pair = tuple[list[int], list[int]]  # source and target ids, without marks
FOLDERS = {"multi30k": "multi30k", "iwslt14": "iwslt14-de-en"}
CHECKSUMS = {  # of the unpacked files
    "multi30k": {
        "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
        "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
        "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
        "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
        "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
        "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
        "test_2016_flickr.cs": "45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8",
        "train.cs": "2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da",
        "val.cs": "d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33",
    },
    "iwslt14": {
        "test.de": "e718c783e33160b7d72af8f733756a466e0d0c016eff8ab624c1b0d1d01cbbdf",
        "test.en": "4b127beb9050511a3e6209cd837ff36f623a3a423666b32aba6e208b7330cf4c",
        "train-subset.de": "4c61b160a6719aec346774c193287c17706a8cb632720958c8633115057de1ec",
        "train-subset.en": "75acc4789ac3e34c0bd27e7d02a1b1814f143eb4d9b97e0a61d3d4d652a748f8",
        "valid.de": "3f051579c9d8c7281a6ea8c72ad4ae09dbaa9bb24dfd41166f2c3a3df7cd940a",
        "valid.en": "e6d7317a9772cd1ed970910c611e9e7dada1f34439269b44a9d801334bff948d",
    },
}
ORIGINS = {
    "multi30k": "data/task1/raw of github.com/multi30k/dataset",
    "iwslt14": "the folder tmp that fairseq's prepare-iwslt14.sh makes",
}
IWSLT_PAIRS = 160_239  # of the whole training set


class Lines(NamedTuple):
    """Sentences and their translations, line by line."""

    source: list[str]
    target: list[str]


@dataclass(frozen=True)
class ParallelTexts:
    """A parallel corpus in its published parts, as text."""

    name: str
    train: Lines
    valid: Lines
    test: Lines


@dataclass(frozen=True)
class TranslationData:
    """A parallel corpus as numbers of pieces that both languages share."""

    name: str
    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    pieces: Pieces


def read_parallel_texts(
    name: str,
    source: str = "de",
    target: str = "en",
    *,
    folder: Path | None = None,
    verify: bool = True,
) -> ParallelTexts:
    """Read a parallel corpus; pairs with an empty side are left out.

    IWSLT'14 is trained on `train.de` and `train.en`, 160,239 pairs, where they are there, and else
    on `train-subset`, 17,652 of them; BLEU on the subset compares with no published figure.

    Args:
        name: "multi30k" (en, de, fr, cs; test is test_2016_flickr) or "iwslt14" (de, en).
        source: language to translate from.
        target: language to translate into.
        folder: the data folder; None takes the one HEADWISE_DATA names.
        verify: refuse files that are not the known ones.
    """
    languages = {"multi30k": ("en", "de", "fr", "cs"), "iwslt14": ("de", "en")}
    if name not in languages:
        raise ValueError(f"There is no parallel corpus {name!r}. {suggestion(name, languages)}")
    if source == target or not {source, target} <= set(languages[name]):
        raise ValueError(
            f"{name} has the languages {', '.join(languages[name])}, and source and target are two "
            f"of them; got {source!r} and {target!r}."
        )
    found = data_folder(folder, wanted=name, origin=ORIGINS[name])
    parts = [
        _lines(name, stem, (source, target), found, verify=verify) for stem in _stems(name, found)
    ]
    return ParallelTexts(name, *parts)


def read_translation(
    name: str,
    source: str = "de",
    target: str = "en",
    *,
    folder: Path | None = None,
    vocabulary: int = 8000,
    pieces: Pieces | None = None,
    verify: bool = True,
) -> TranslationData:
    """Read a parallel corpus and number its pieces.

    Args:
        name: see `read_parallel_texts`, as for source, target, folder and verify.
        source: language to translate from.
        target: language to translate into.
        folder: the data folder.
        vocabulary: how many pieces, marks included, are learnt from both sides of the training
            part; small corpora get fewer.
        pieces: taken instead of learning them, for example those of an earlier run.
        verify: refuse files that are not the known ones.
    """
    texts = read_parallel_texts(name, source, target, folder=folder, verify=verify)
    known = pieces or train_pieces([*texts.train.source, *texts.train.target], size=vocabulary)
    train, valid, test = (_encoded(part, known) for part in (texts.train, texts.valid, texts.test))
    return TranslationData(name, train, valid, test, known)


def median_lengths(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Median number of pieces of sources and of targets, as in Table 2 of the paper."""
    sources = median(len(source) for source, _ in pairs)
    return float(sources), float(median(len(target) for _, target in pairs))


def translation_file(name: str, file_name: str) -> DataFile:
    """A file of a corpus, for example "train.de"."""
    return DataFile(
        f"{FOLDERS[name]}/{file_name}",
        CHECKSUMS[name].get(file_name, ""),
        ORIGINS[name],
        _urls(name, file_name),
        unzipped if name == "multi30k" else None,
    )


def _urls(name: str, file_name: str) -> tuple[str, ...]:
    """Where a file is public; of IWSLT'14 only valid and test are."""
    if name == "multi30k":
        return (github("multi30k/dataset", "a3d2e0d26b56", f"data/task1/raw/{file_name}.gz"),)
    if file_name.startswith("train"):
        return ()
    path = f"iwslt14.tokenized.de-en/tmp/{file_name}"
    return (github("johntzwei/nmt_iwslt", "7750e75a0379", path),)


def _stems(name: str, folder: Path) -> tuple[str, str, str]:
    """The names of the parts' files, without language."""
    if name == "multi30k":
        return "train", "val", "test_2016_flickr"
    below = folder / FOLDERS[name]
    whole = any((below / f"train.de{ending}").is_file() for ending in ("", ".xz"))
    return "train" if whole else "train-subset", "valid", "test"


def _lines(
    name: str, stem: str, languages: tuple[str, str], folder: Path, *, verify: bool
) -> Lines:
    sides = [_side(name, f"{stem}.{language}", folder, verify=verify) for language in languages]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{stem}.{languages[0]} has {len(sides[0])} lines, but {stem}.{languages[1]} has "
            f"{len(sides[1])}; get both again."
        )
    pairs = [pair for pair in zip(*sides, strict=True) if pair[0].strip() and pair[1].strip()]
    return Lines([source for source, _ in pairs], [target for _, target in pairs])


def _side(name: str, file_name: str, folder: Path, *, verify: bool) -> list[str]:
    """One language of one part; the whole IWSLT training set is known by its length only."""
    file = translation_file(name, file_name)
    known = bool(file.sha256)
    lines = file.lines(folder, verify=verify and known)
    if verify and not known and len(lines) != IWSLT_PAIRS:
        raise ValueError(
            f"{folder / file.name} has {len(lines)} lines, but {IWSLT_PAIRS} were wanted; "
            f"make it from {ORIGINS[name]}."
        )
    return lines


def _encoded(lines: Lines, pieces: Pieces) -> list[Pair]:
    sources, targets = pieces.encode_all(lines.source), pieces.encode_all(lines.target)
    return list(zip(sources, targets, strict=True))
