"""Parallel texts: the corpora of `headwise_papers.data.corpora`, as lines and as pieces of words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from headwise.text.source import DataFile, data_folder
from headwise_papers.data.corpora import LENGTHS, Corpus, corpus_file, corpus_named
from headwise_papers.data.plain import plain_text
from headwise_papers.data.splitting import split_pairs
from headwise_papers.data.subword import Kind, PiecePair, Pieces, train_pieces

__all__ = [
    "Lines",
    "ParallelTexts",
    "TranslationData",
    "median_lengths",
    "read_parallel_texts",
    "read_part",
    "read_translation",
]

Pair = tuple[list[int], list[int]]  # source and target ids, without marks
EXPORTS = {"de": "deu.txt", "fr": "fra.txt", "ru": "rus.txt"}  # of Tatoeba, English first


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
    """A parallel corpus as numbers of pieces."""

    name: str
    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    pieces: Pieces  # of the target, and of the source unless it has its own
    other_source: Pieces | None = None

    @property
    def both(self) -> PiecePair:
        """The pieces of each side; keep them with `data.both.save(run.folder)`."""
        return PiecePair(self.other_source or self.pieces, self.pieces)

    def encode(self, lines: Lines) -> list[Pair]:
        """Other sentences in the same pieces, for example those of `read_part`."""
        return _encoded(lines, self.both)


def read_parallel_texts(
    name: str,
    source: str = "de",
    target: str = "en",
    *,
    folder: Path | None = None,
    train_pairs: int | None = None,
    verify: bool = True,
    plain: bool = False,
) -> ParallelTexts:
    """Read a parallel corpus; pairs with an empty side are left out.

    IWSLT'14 is trained on `train.de` and `train.en`, 160,239 pairs, where they are there, and else
    on `train-subset`, 17,652 of them; BLEU on the subset compares with no published figure.

    Tatoeba's parts share no sentence, case and marks aside: pairs are grouped by what they share,
    and groups are never cut. Where its files are not there but the export they are made from
    (`deu.txt`, `fra.txt`, `rus.txt`), that is split by `headwise_papers.data.splitting.split_pairs`, into
    other parts; figures of the two compare only roughly.

    Args:
        name: "multi30k" (en, de, fr, cs; test is test_2016_flickr), "iwslt14" (de, en),
            "iwslt15" (en, vi), "wmt14" (en, de), "tatoeba" (en with de, fr or ru),
            "opensubtitles" (en, ru) or "libreoffice-help" (en with de, fr, om, ru or vi).
        source: language to translate from.
        target: language to translate into.
        folder: the data folder; None takes the one HEADWISE_DATA names.
        train_pairs: only so many pairs to train on, the first ones, for corpora of equal size;
            None takes all, and more than there are is refused.
        verify: refuse files that are not the known ones.
        plain: undo tokenisation and escapes, for models that know raw text only.
    """
    corpus = corpus_named(name)
    pair = corpus.pair(source, target)
    found = data_folder(folder, wanted=name, origin=corpus.origin)
    export = _export(corpus, pair, found)
    if export:
        texts = _split_export(export, found, swapped=source != pair[0])
    else:
        train, valid, test = (
            read_part(name, part, source, target, folder=found, verify=verify, plain=plain)
            for part in _parts(corpus, pair, found)
        )
        texts = ParallelTexts(name, train, valid, test)
    return texts if train_pairs is None else _with_first(texts, train_pairs)


def read_part(
    name: str,
    part: str,
    source: str,
    target: str,
    *,
    folder: Path | None = None,
    verify: bool = True,
    plain: bool = False,
) -> Lines:
    """Read one part of a corpus, for example a test set that is no part of the usual three.

    The tests of IWSLT'15, out of the domain of a model trained on help texts:
    `read_part("iwslt15", "tst2013", "en", "vi", plain=True)`.

    Args:
        name: see `read_parallel_texts`, as for source, target, folder and verify.
        part: the name of its files without language, such as "test_2017_mscoco" of multi30k.
        source: language to translate from.
        target: language to translate into.
        folder: the data folder.
        verify: refuse files that are not the known ones.
        plain: undo tokenisation and escapes, for models that know raw text only.
    """
    pair = corpus_named(name).pair(source, target)
    files = [corpus_file(name, part, language, pair=pair) for language in (source, target)]
    found = data_folder(folder, wanted=name, origin=files[0].origin)
    first, second = (_side(file, found, verify=verify) for file in files)
    if len(first) != len(second):
        raise ValueError(
            f"{files[0].name} has {len(first)} lines, but {files[1].name} has {len(second)}; "
            "get both again."
        )
    lines = _full(list(zip(first, second, strict=True)))
    return Lines(*([plain_text(line) for line in side] for side in lines)) if plain else lines


def read_translation(
    name: str,
    source: str = "de",
    target: str = "en",
    *,
    folder: Path | None = None,
    vocabulary: int = 8000,
    kind: Kind = "unigram",
    joint: bool = True,
    pieces: Pieces | PiecePair | None = None,
    train_pairs: int | None = None,
    verify: bool = True,
    plain: bool = False,
) -> TranslationData:
    """Read a parallel corpus and number its pieces.

    Args:
        name: see `read_parallel_texts`, as for source, target, folder, train_pairs, verify, plain.
        source: language to translate from.
        target: language to translate into.
        folder: the data folder.
        vocabulary: how many pieces, marks included, are learnt from the training part, of each
            side where they are not joint; small corpora get fewer.
        kind: how they are learnt, "unigram" or "bpe".
        joint: one set of pieces for both languages.
        pieces: taken instead of learning them, for example those of an earlier run.
        train_pairs: only so many pairs to train on, the first ones.
        verify: refuse files that are not the known ones.
        plain: undo tokenisation and escapes.
    """
    texts = read_parallel_texts(
        name,
        source,
        target,
        folder=folder,
        train_pairs=train_pairs,
        verify=verify,
        plain=plain,
    )
    if isinstance(pieces, Pieces):
        both = PiecePair(pieces, pieces)
    else:
        both = pieces or _learnt(texts.train, size=vocabulary, kind=kind, joint=joint)
    train, valid, test = (_encoded(part, both) for part in (texts.train, texts.valid, texts.test))
    return TranslationData(
        name, train, valid, test, both.target, None if both.joint else both.source
    )


def median_lengths(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Median number of pieces of sources and of targets, as in Table 2 of the paper."""
    sources = median(len(source) for source, _ in pairs)
    return float(sources), float(median(len(target) for _, target in pairs))


def _with_first(texts: ParallelTexts, pairs: int) -> ParallelTexts:
    held = len(texts.train.source)
    if not 0 < pairs <= held:
        raise ValueError(
            f"train_pairs is to be from 1 to the {held} training pairs of {texts.name}, got "
            f"{pairs}; None takes all."
        )
    train = Lines(texts.train.source[:pairs], texts.train.target[:pairs])
    return replace(texts, train=train)


def _learnt(lines: Lines, *, size: int, kind: Kind, joint: bool) -> PiecePair:
    if joint:
        pieces = train_pieces([*lines.source, *lines.target], size=size, kind=kind)
        return PiecePair(pieces, pieces)
    return PiecePair(*(train_pieces(side, size=size, kind=kind) for side in lines))


def _parts(corpus: Corpus, pair: tuple[str, str], folder: Path) -> tuple[str, str, str]:
    """The names of the parts' files; IWSLT'14 makes do with a subset."""
    if corpus.name != "iwslt14" or corpus_file("iwslt14", "train", "de", pair=pair).path(folder):
        return corpus.parts
    return "train-subset", *corpus.parts[1:]


def _export(corpus: Corpus, pair: tuple[str, str], folder: Path) -> DataFile | None:
    """The whole of Tatoeba in one file, where its parts are not there."""
    if corpus.name != "tatoeba":
        return None
    part = corpus_file(corpus.name, "train", pair[1], pair=pair)
    export = DataFile(f"tatoeba-{'-'.join(pair)}/{EXPORTS[pair[1]]}", "", corpus.origin)
    return export if export.path(folder) and not part.path(folder) else None


def _split_export(export: DataFile, folder: Path, *, swapped: bool) -> ParallelTexts:
    rows = [line.split("\t") for line in export.lines(folder, verify=False)]
    short = next((number for number, row in enumerate(rows, start=1) if len(row) < 2), None)
    if short:
        raise ValueError(
            f"{folder / export.name}, line {short}: English, a tab and its translation were "
            f"wanted; take it from {export.origin}."
        )
    parts = split_pairs([(row[0], row[1]) for row in rows])
    lines = [_full(parts[part]) for part in ("train", "valid", "test")]
    train, valid, test = (Lines(part.target, part.source) if swapped else part for part in lines)
    return ParallelTexts("tatoeba", train, valid, test)


def _full(pairs: Sequence[tuple[str, str]]) -> Lines:
    """Pairs without an empty side."""
    kept = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
    return Lines([source for source, _ in kept], [target for _, target in kept])


def _side(file: DataFile, folder: Path, *, verify: bool) -> list[str]:
    """The lines of a file; some published ones are known by their length only."""
    lines = file.lines(folder, verify=verify and bool(file.sha256))
    wanted = None if file.sha256 else LENGTHS.get(file.name.rpartition(".")[0])
    if verify and wanted and len(lines) != wanted:
        raise ValueError(
            f"{folder / file.name} has {len(lines)} lines, but {wanted} were wanted; "
            f"make it from {file.origin}."
        )
    return lines


def _encoded(lines: Lines, both: PiecePair) -> list[Pair]:
    sources, targets = both.source.encode_all(lines.source), both.target.encode_all(lines.target)
    return list(zip(sources, targets, strict=True))
