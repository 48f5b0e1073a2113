"""Parallel corpora: where their files lie and come from, as lines and as subword tokens.

| name | languages | files below the data folder | text |
| --- | --- | --- | --- |
| multi30k | any two of en, de, fr, cs | `multi30k/{train,val,test_2016_flickr}.{language}` | raw |
| europarl | any two of en, de, fr | `europarl-en-de-fr/{train,valid,test}.{language}` | raw |
| msdocs | en, ru | `msdocs-en-ru/{train,valid,test}.{language}` | raw |
| freesoft | en with de, fr or ru | `freesoft-en-de/{train,valid,test}.{language}` … | raw |
| iwslt14 | de, en | `iwslt14-de-en/{train,valid,test}.{language}` | lower-cased, Moses |
| iwslt15 | en, vi | `iwslt15-en-vi/train.{language}`, `iwslt15-en-vi-devtest/tst201*` | tokenised |
| wmt14 | en, de | `wmt14-en-de/{train,newstest2013,newstest2014}.{language}` | tokenised |
| tatoeba | en with de, fr or ru | `tatoeba-en-de/{train,valid,test}.{language}` … | raw |
| opensubtitles | en, ru | `opensubtitles-en-ru-voita/{train,valid,test}.{language}` | tokenised |
| libreoffice-help | en with de, fr, om, ru or vi | `libreoffice-help/en-vi/train.en.txt` … | raw |

Files are plain or `.xz`, a sentence a line. IWSLT'14 is the folder tmp of fairseq's
prepare-iwslt14.sh, IWSLT'15 and WMT'14 are the files of nlp.stanford.edu/projects/nmt: all three
have Moses' escapes (`&apos;`).

- Europarl: 400,000 lines of debates of 1999 to 2012, three-way; the test part is October to
  December 2000. One domain, formal speech; most of the English is itself translated.
- msdocs: 333,700 sentences of software documentation, aligned by the publisher. Phrases recur, so
  BLEU is higher than on news.
- freesoft: 52,482 (ru) to 113,660 (fr) lines of Debian's pages and package descriptions and of the
  game Battle for Wesnoth. The English of one language's test part may be in another's train part.
- Tatoeba en-ru has 46,085 training pairs. The training files of en-de and en-fr are shuffled, so
  that their first 46,085 pairs (`train_pairs`) are an equal sample.
- OpenSubtitles: 10,678 sentences of the consistency tests of Voita et al. (2019, "When a Good
  Translation is Wrong in Context"), taken out of their context: chosen for deixis, ellipsis and
  names, so no random sample of subtitles; the authors rewrote some Russian sides.
"""

import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from headwise.config import suggestion
from headwise_papers.data.provenance import entry, known_file, tied, unzipped
from headwise_papers.data.source import DataFile, data_folder, github
from headwise_papers.data.subword import CodecPair, Kind, SubwordModel, train_subwords

__all__ = [
    "CORPORA",
    "Corpus",
    "Lines",
    "ParallelTexts",
    "TranslationData",
    "bare",
    "corpus_file",
    "median_lengths",
    "plain_text",
    "read_parallel_texts",
    "read_part",
    "read_translation",
    "split_pairs",
]

PARTS = ("train", "valid", "test")
MSDOCS = (  # repositories and commits
    "MicrosoftDocs/Dynamics-365-Operations.ru-ru at dea1931aa152, zzfima/docs.ru-ru at "
    "87f0681a4340, MicrosoftDocs/dynamics365smb-docs-pr.ru-ru at 787a022912fc, "
    "terrajobst/AspNetCore.Docs.ru-ru at b903090f2a43, masan-msft/sp-dev-docs.ru-ru at "
    "6e87975e74ac, OfficeDev/office-js-docs-pr.ru-ru at 0706992f0ab6, "
    "MicrosoftDocs/microsoft-365-docs-pr.ru-RU at ccca29042d4c, "
    "MicrosoftDocs/dynamics-365-project-operations-pr.ru-RU at 9ba87c4b7232, "
    "MicrosoftDocs/office-developer-client-docs.ru-RU at 650b3aa645b3, "
    "MicrosoftDocs/OfficeDocs-SkypeForBusiness-pr.ru-RU at 9699cd71d796, "
    "NuGet/docs.microsoft.com-nuget.ru-ru at 5235a9dc3ac4, "
    "MicrosoftDocs/customer-insights-pr.ru-ru at 32ea0d7b9d55 and "
    "MicrosoftDocs/nav-content.ru-ru at 034a25c59697"
)
STANFORD = "https://nlp.stanford.edu/projects/nmt/data"


@dataclass(frozen=True)
class Corpus:
    """A parallel corpus: its languages, its parts, and the names of its files."""

    name: str
    languages: tuple[str, ...]
    parts: tuple[str, str, str]  # to train on, to choose by, to test on
    path: str  # with {pair}, {part} and {language}
    origin: str
    further: tuple[str, ...] = ()  # parts that are read on request only
    centre: str = ""  # where there are only pairs with this language
    train_path: str = ""  # where training files lie elsewhere

    def pair(self, source: str, target: str) -> tuple[str, str]:
        """Return two languages in the order of file names; raise for a pair that is missing."""
        known = source != target and {source, target} <= set(self.languages)
        if not known or self.centre not in ("", source, target):
            only = f", one of them {self.centre}" if self.centre else ""
            raise ValueError(
                f"{self.name} has the languages {', '.join(self.languages)}, and source and target "
                f"are two of them{only}; got {source!r} and {target!r}."
            )
        first, second = sorted((source, target), key=self.languages.index)
        return first, second


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "multi30k",
            ("en", "de", "fr", "cs"),
            ("train", "val", "test_2016_flickr"),
            "multi30k/{part}.{language}",
            "data/task1/raw of github.com/multi30k/dataset",
            further=("test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"),
        ),
        Corpus(
            "iwslt14",
            ("de", "en"),
            PARTS,
            "iwslt14-de-en/{part}.{language}",
            "the folder tmp that fairseq's prepare-iwslt14.sh makes",
            further=("train-subset",),
        ),
        Corpus(
            "iwslt15",
            ("en", "vi"),
            ("train", "tst2012", "tst2013"),
            "iwslt15-en-vi-devtest/{part}.{language}",
            "nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi",
            train_path="iwslt15-en-vi/{part}.{language}",
        ),
        Corpus(
            "wmt14",
            ("en", "de"),
            ("train", "newstest2013", "newstest2014"),
            "wmt14-en-de/{part}.{language}",
            "nlp.stanford.edu/projects/nmt/data/wmt14.en-de",
            further=("newstest2012", "newstest2015"),
        ),
        Corpus(
            "tatoeba",
            ("en", "de", "fr", "ru"),
            PARTS,
            "tatoeba-{pair}/{part}.{language}",
            "an export of www.manythings.org/anki: its deu.txt, fra.txt or rus.txt in the same "
            "folder will do, and is split by the hash of its sentences; the known en-ru is of "
            "eng-rus in data/test, data/devtest and data/release/test of "
            "github.com/Helsinki-NLP/Tatoeba-Challenge at d34a89ac102f",
            centre="en",
        ),
        Corpus(
            "opensubtitles",
            ("en", "ru"),
            PARTS,
            "opensubtitles-en-ru-voita/{part}.{language}",
            "the right variants in consistency_testsets/*.json of "
            "github.com/lena-voita/good-translation-wrong-in-context at bb59382f6bc6, cut at _eos, "
            "each English sentence once",
        ),
        Corpus(
            "libreoffice-help",
            ("en", "de", "fr", "om", "ru", "vi"),
            PARTS,
            "libreoffice-help/{pair}/{part}.{language}.txt",
            "the help pages of LibreOffice 7.4 (Debian's libreoffice-help-en-us and its "
            "translations, 4:7.4.7-1+deb12u14), paragraphs aligned by page and id",
            centre="en",
        ),
        Corpus(
            "europarl",
            ("en", "de", "fr"),
            PARTS,
            "europarl-en-de-fr/{part}.{language}",
            "proceedings/xml/{en,de,fr}/*.xml of github.com/UDS-SFB-B6-Datasets/"
            "Multilingual-Parallel-Direct-Europarl at 4e284f102c5d: paragraphs paired by sitting, "
            "section, speech and number, sentences inside by length (Gale and Church) and equal "
            "numbers, clean triples of 6 to 50 English words, 400,000 of them drawn for training",
        ),
        Corpus(
            "msdocs",
            ("en", "ru"),
            PARTS,
            "msdocs-en-ru/{part}.{language}",
            f"branch live-sxs of {MSDOCS} on GitHub: pages marked ms.translationtype HT, sentences "
            "by their ids, Markdown removed, old ASP.NET pages left out, split by page, shuffled",
        ),
        Corpus(
            "freesoft",
            ("en", "de", "fr", "ru"),
            PARTS,
            "freesoft-{pair}/{part}.{language}",
            "webwml of github.com/l/debian-webwml at 80cd9461d384, Translation-* of Debian 12.15 "
            "and locale/*/LC_MESSAGES/*.mo of Debian's wesnoth-1.16 packages (1:1.16.9-1): blocks "
            "paired by tags or message id, sentences inside by length, split by page, package "
            "family and game text, shuffled",
            centre="en",
        ),
    )
}
LENGTHS = {  # lines of published files whose checksum is not known
    "iwslt14-de-en/train": 160_239,
    "wmt14-en-de/train": 4_468_840,
    "wmt14-en-de/newstest2013": 3_000,
}


def corpus_file(name: str, part: str, language: str, *, pair: Sequence[str]) -> DataFile:
    """Return the file of one language of one part.

    >>> corpus_file("tatoeba", "test", "de", pair=("en", "de")).name
    'tatoeba-en-de/test.de'

    Args:
        name: of the corpus.
        part: for example "train".
        language: of the file.
        pair: both languages, in any order.
    """
    corpus = entry(CORPORA, name, "parallel corpus")
    parts = (*corpus.parts, *corpus.further)
    if part not in parts:
        raise ValueError(f"{name} has no part {part!r}. {suggestion(part, parts)}")
    template = corpus.train_path if part == "train" and corpus.train_path else corpus.path
    both = "-".join(corpus.pair(pair[0], pair[1]))
    path = template.format(pair=both, part=part, language=language)
    make = unzipped if name == "multi30k" else None
    return known_file(path, corpus.origin, _urls(name, f"{part}.{language}"), make)


def _urls(name: str, file_name: str) -> tuple[str, ...]:
    """Return the public address of a file, if there is one."""
    match name:
        case "multi30k":
            return (github("multi30k/dataset", "a3d2e0d26b56", f"data/task1/raw/{file_name}.gz"),)
        case "iwslt14" if not file_name.startswith("train"):
            path = f"iwslt14.tokenized.de-en/tmp/{file_name}"
            return (github("johntzwei/nmt_iwslt", "7750e75a0379", path),)
        case "iwslt15":
            return (f"{STANFORD}/iwslt15.en-vi/{file_name}",)
        case _:
            return ()


_RULES = (
    (re.compile(r" @-@ "), "-"),
    (re.compile(r" ##AT##-##AT## "), "-"),
    (re.compile(r" (?=(?:[,.!?;:%)\]}…]|\.\.\.)(?: |$))"), ""),
    (re.compile(r"(?<![^ ])([(\[{]) "), r"\1"),
    (re.compile(r" (?='(?:s|t|re|ve|ll|d|m|S|T|RE|VE|LL|D|M)(?: |$))"), ""),
    (re.compile(r' " (.*?) "(?= |$|[,.!?;:)])'), r' "\1"'),
)


def plain_text(line: str) -> str:
    """Undo Moses' tokenisation and escapes, so far as punctuation shows it.

    Punctuation goes back to the word before it, brackets and quotation marks around what they
    enclose, English clitics to their words. Apostrophes of other languages stay apart.

    >>> plain_text("I don &apos;t know , she said : &quot; Why ? &quot;")
    'I don\\'t know, she said: "Why?"'
    """
    text = f" {html.unescape(line)}"
    for pattern, written in _RULES:
        text = pattern.sub(written, text)
    return text.strip()


_NOT_WORDS = re.compile(r"[\W_]+")
BUCKETS = 10_000


def bare(sentence: str) -> str:
    """Return a sentence without case and punctuation, by which two count as the same.

    >>> bare("What's up, Tom?")
    'what s up tom'
    """
    return _NOT_WORDS.sub(" ", sentence.lower()).strip()


def split_pairs(
    pairs: Sequence[tuple[str, str]], *, valid: float = 0.012, test: float = 0.018
) -> dict[str, list[tuple[str, str]]]:
    """Split pairs so that no sentence of either side is in two parts, by hashes alone.

    Pairs that share a sentence, case and punctuation aside, belong together, and so do those that
    share one with these. The SHA-256 of the first sentence of such a group, in alphabetical order,
    decides its part. So the parts depend neither on order nor on chance, and a later export of the
    same corpus moves few sentences.

    Args:
        pairs: sentences and their translations; the order is kept within each part.
        valid: share of groups in "valid".
        test: share of groups in "test".

    Returns:
        "train", "valid" and "test".
    """
    if valid < 0 or test < 0 or valid + test >= 1:
        raise ValueError(f"valid and test are shares below 1 together, got {valid} and {test}.")
    parts: dict[str, list[tuple[str, str]]] = {part: [] for part in PARTS}
    # the side belongs to the key: "Tom" in one language says nothing about "Tom" in the other
    groups = tied([(f"0 {bare(first)}", f"1 {bare(second)}") for first, second in pairs])
    for pair, group in zip(pairs, groups, strict=True):
        share = int(hashlib.sha256(group.encode()).hexdigest(), 16) % BUCKETS / BUCKETS
        name = "test" if share < test else "valid" if share < test + valid else "train"
        parts[name].append(pair)
    return parts


Pair = tuple[list[int], list[int]]  # source and target ids, without special tokens
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
    """A parallel corpus as token ids."""

    name: str
    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    pieces: SubwordModel  # codec of the target, and of the source unless it has its own
    other_source: SubwordModel | None = None

    @property
    def both(self) -> CodecPair:
        """Codec of each side; keep them with `data.both.save(run.folder)`."""
        return CodecPair(self.other_source or self.pieces, self.pieces)

    def encode(self, lines: Lines) -> list[Pair]:
        """Encode other sentences, for example those of `read_part`."""
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
    on `train-subset`, 17,652 of them; BLEU on the subset compares with no published result.

    Tatoeba's parts share no sentence, case and punctuation aside: pairs are grouped by what they
    share, and groups are never cut. Where its files are not there but the export they are made from
    (`deu.txt`, `fra.txt`, `rus.txt`), that is split by `split_pairs` into other parts; results of
    the two compare only roughly.

    Args:
        name: "multi30k" (en, de, fr, cs; test is test_2016_flickr), "iwslt14" (de, en),
            "iwslt15" (en, vi), "wmt14" (en, de), "europarl" (en, de, fr), "msdocs" (en, ru),
            "freesoft" and "tatoeba" (en with de, fr or ru), "opensubtitles" (en, ru) or
            "libreoffice-help" (en with de, fr, om, ru or vi).
        source: language to translate from.
        target: language to translate into.
        folder: the data folder; None: the one that HEADWISE_DATA names.
        train_pairs: only so many pairs to train on, the first ones, for corpora of equal size;
            None: all; raise if there are fewer.
        verify: raise if a checksum is unknown.
        plain: undo tokenisation and escapes, for models that know raw text only.
    """
    corpus = entry(CORPORA, name, "parallel corpus")
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
        verify: raise if a checksum is unknown.
        plain: undo tokenisation and escapes, for models that know raw text only.
    """
    pair = entry(CORPORA, name, "parallel corpus").pair(source, target)
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
    pieces: SubwordModel | CodecPair | None = None,
    train_pairs: int | None = None,
    verify: bool = True,
    plain: bool = False,
) -> TranslationData:
    """Read a parallel corpus and encode it as subword tokens.

    Args:
        name: see `read_parallel_texts`, as for source, target, folder, train_pairs, verify, plain.
        source: language to translate from.
        target: language to translate into.
        folder: the data folder.
        vocabulary: number of tokens, special tokens included, learnt from the training part, of
            each side where they are not joint; small corpora get fewer.
        kind: of SentencePiece model, "unigram" or "bpe".
        joint: one vocabulary for both languages.
        pieces: codecs to use instead of training them, for example those of an earlier run.
        train_pairs: only so many pairs to train on, the first ones.
        verify: raise if a checksum is unknown.
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
    if isinstance(pieces, SubwordModel):
        both = CodecPair(pieces, pieces)
    else:
        both = pieces or _learnt(texts.train, size=vocabulary, kind=kind, joint=joint)
    train, valid, test = (_encoded(part, both) for part in (texts.train, texts.valid, texts.test))
    return TranslationData(
        name, train, valid, test, both.target, None if both.joint else both.source
    )


def median_lengths(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return the median number of tokens of sources and of targets, as in Table 2 of the paper."""
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


def _learnt(lines: Lines, *, size: int, kind: Kind, joint: bool) -> CodecPair:
    if joint:
        pieces = train_subwords([*lines.source, *lines.target], size=size, kind=kind)
        return CodecPair(pieces, pieces)
    return CodecPair(*(train_subwords(side, size=size, kind=kind) for side in lines))


def _parts(corpus: Corpus, pair: tuple[str, str], folder: Path) -> tuple[str, str, str]:
    """Return the names of the parts' files; IWSLT'14 may have a subset only."""
    if corpus.name != "iwslt14" or corpus_file("iwslt14", "train", "de", pair=pair).path(folder):
        return corpus.parts
    return "train-subset", *corpus.parts[1:]


def _export(corpus: Corpus, pair: tuple[str, str], folder: Path) -> DataFile | None:
    """Return the file with all of Tatoeba, where its parts do not exist."""
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
    """Return the pairs without an empty side."""
    kept = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
    return Lines([source for source, _ in kept], [target for _, target in kept])


def _side(file: DataFile, folder: Path, *, verify: bool) -> list[str]:
    """Read the lines of a file; some published ones are known by their length only."""
    lines = file.lines(folder, verify=verify and bool(file.sha256))
    wanted = None if file.sha256 else LENGTHS.get(file.name.rpartition(".")[0])
    if verify and wanted and len(lines) != wanted:
        raise ValueError(
            f"{folder / file.name} has {len(lines)} lines, but {wanted} were wanted; "
            f"make it from {file.origin}."
        )
    return lines


def _encoded(lines: Lines, both: CodecPair) -> list[Pair]:
    sources, targets = both.source.encode_all(lines.source), both.target.encode_all(lines.target)
    return list(zip(sources, targets, strict=True))
