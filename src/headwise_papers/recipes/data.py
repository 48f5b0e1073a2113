"""Public data sets: list those in a data folder, and fetch one.

headwise data
headwise data NAME --folder DIR
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from headwise.config import suggestion
from headwise_papers.data.annotations import ALIGNMENTS, REFLEXIVES, TREEBANKS, treebank_file
from headwise_papers.data.bags import SPLITS, sst_file
from headwise_papers.data.captions import FLICKR8K
from headwise_papers.data.characters import CHARACTER_FILES
from headwise_papers.data.classification import (
    AG_SUBSET,
    AG_TEST,
    AG_TRAIN,
    AMAZON,
    IMDB,
    NEWSGROUPS,
    YELP,
    YELP_REVIEWS,
)
from headwise_papers.data.coreference import coreference_file, coreference_parts
from headwise_papers.data.glove import COMMONEST, published
from headwise_papers.data.pretraining import PRETRAINING_FILES
from headwise_papers.data.provenance import fetch
from headwise_papers.data.source import VARIABLE, DataFile
from headwise_papers.data.tasks import TAGGING_SETS, tagging_files, task_files
from headwise_papers.data.translation import CORPORA, corpus_file

__all__ = ["SetState", "data_sets", "fetch_set"]


@dataclass(frozen=True)
class PublicSet:
    """Files of a set, in one or more versions, with licence and caveat."""

    versions: tuple[tuple[DataFile, ...], ...]  # the first is the one to fetch
    note: str  # licence and caveat


class SetState(NamedTuple):
    """State of a set in a data folder."""

    name: str
    where: Path | None  # the folder of its files; None: not all are there
    size: int  # bytes on the disk
    note: str


def _sets() -> dict[str, PublicSet]:
    return _classified() | _tuned() | _parallel() | _plain() | _annotated()


def _one(files: Iterable[DataFile], note: str) -> PublicSet:
    return PublicSet((tuple(files),), note)


def _classified() -> dict[str, PublicSet]:
    return {
        "imdb": _one(IMDB.values(), "no licence stated; cite Maas et al. 2011"),
        "ag_news": PublicSet(
            ((AG_TRAIN, AG_TEST), (AG_SUBSET, AG_TEST)),
            "non-commercial research use; recorded figures are of a sample, the whole set gives "
            "others",
        ),
        "newsgroups": _one(NEWSGROUPS.values(), "no licence stated"),
        "sst": _one(
            (sst_file(name, part) for name in ("sst2", "sst5") for part in SPLITS),
            "no licence stated; cite Socher et al. 2013",
        ),
        "amazon": _one(
            [AMAZON],
            "research use; 8,000 reviews of four domains; the whole set is read from "
            "amazon_mds/unprocessed where it is there",
        ),
        "yelp": _one(YELP.values(), "Yelp's terms; sentences, the parts dev and test only"),
        "yelp_reviews": _one([YELP_REVIEWS], "Yelp's terms; only Yelp gives it"),
    }


def _tuned() -> dict[str, PublicSet]:
    """Return the sets of `headwise train classifier`; sst2 is in sst."""
    notes = {
        "cola": "research use; GLUE's, sentences that are grammatical or not",
        "rte": "research use; GLUE's, pairs",
        "wnli": "research use; GLUE's, pairs",
        "mrpc": "Microsoft Research licence; paraphrases, in the original parts",
        "qnli": "research use; GLUE's, the dev part only; our splits",
        "masakhanews-orm": "BBC's texts; topics of news in Afaan Oromoo",
    }
    tagged = {
        name: "text of Reuters, research use only; names in English"
        if name == "conll2003"
        else f"CC BY-NC 4.0; names, language {name.removeprefix('masakhaner-')}"
        for name in TAGGING_SETS
    }
    return {name: _one(task_files(name), note) for name, note in notes.items()} | {
        name: _one(tagging_files(name), note) for name, note in tagged.items()
    }


def _parallel() -> dict[str, PublicSet]:
    iwslt14 = _corpus("iwslt14"), _corpus("iwslt14", parts=("train-subset", "valid", "test"))
    freesoft = [_corpus("freesoft", pair) for pair in ("en-de", "en-fr", "en-ru")]
    return {
        "multi30k": _one(_corpus("multi30k"), "no licence stated; research use"),
        "iwslt14": PublicSet(iwslt14, "CC BY-NC-ND; train is a subset or made by hand"),
        "iwslt15": _one(_corpus("iwslt15"), "CC BY-NC-ND; en-vi"),
        "iwslt15-tests": _one(
            _corpus("iwslt15", parts=("tst2012", "tst2013")),
            "CC BY-NC-ND; tst2012 and tst2013 of en-vi alone",
        ),
        "wmt14": _one(_corpus("wmt14"), "research use; 4.5 million pairs, put there by hand"),
        "tatoeba": _one(
            _corpus("tatoeba", "en-de"), "CC BY 2.0 FR; en-de, read with fr and ru too; our splits"
        ),
        "tatoeba-en-ru": _one(
            _corpus("tatoeba", "en-ru"), "CC BY 2.0 FR; 46,085 pairs to train on; our splits"
        ),
        "opensubtitles": _one(
            _corpus("opensubtitles"),
            "no licence stated; en-ru, 12,178 chosen sentences, no random sample; our splits",
        ),
        "libreoffice-help": _one(
            _corpus("libreoffice-help", "en-vi"),
            "MPL-2.0; en-vi, read with de, fr, om and ru too; our splits",
        ),
        "europarl": _one(
            _corpus("europarl"),
            "source to be named; 400,000 lines in en, de and fr; made from the XML of "
            "UDS-SFB-B6-Datasets/Multilingual-Parallel-Direct-Europarl, aligned by length",
        ),
        "msdocs": _one(
            _corpus("msdocs"),
            "CC BY 4.0; en-ru, 333,700 pairs; made from the pages with both languages in 13 "
            "repositories of Microsoft's documentation",
        ),
        "freesoft": PublicSet(
            (tuple(file for pair in freesoft for file in pair), *freesoft),
            "free licences; en with de, fr and ru; made from Debian's web pages and package "
            "descriptions and Battle for Wesnoth, aligned by length",
        ),
    }


def _corpus(name: str, pair: str = "", parts: Sequence[str] = ()) -> tuple[DataFile, ...]:
    """Return the files of a corpus: of all languages or of a pair, of the usual parts or others."""
    corpus = CORPORA[name]
    languages = pair.split("-") if pair else corpus.languages
    return tuple(
        corpus_file(name, part, language, pair=languages)
        for part in parts or corpus.parts
        for language in languages
    )


def _plain() -> dict[str, PublicSet]:
    notes = {
        "enwik8": "CC BY-SA and GFDL; 100 MB out of a download of 36 MB",
        "enwiki-xml-6mb": "CC BY-SA and GFDL; like enwik8, of a later dump",
        "ptb": "of the LDC; research use",
        "wikitext-2": "CC BY-SA 3.0; training articles in another order than published",
    }
    read = {
        "debian-docs-en": "free licences, a package's own each; English documentation",
        "classic-books-en": "public domain; 261 English books to pre-train on, split by author; "
        "made from mlschmitt/classic-books-markdown",
        "filipino": "CC BY 4.0, CC BY 2.0 FR and public domain; to pre-train on",
        "oromo": "BBC's, CC BY-NC 4.0, CC BY 4.0, MPL-2.0; to pre-train on",
    }
    return {
        **{name: _one(PRETRAINING_FILES[name], note) for name, note in read.items()},
        "glove": PublicSet(
            ((COMMONEST,), (published(50),)),
            "PDDL; the 40,000 commonest words, out of a download of 862 MB",
        ),
        **{name: _one(CHARACTER_FILES[name], note) for name, note in notes.items()},
        "flickr8k": _one(
            FLICKR8K.values(),
            "non-commercial research; images belong to their authors, and are 128 x 128 here",
        ),
    }


def _annotated() -> dict[str, PublicSet]:
    treebanks = {
        name: _one(
            (treebank_file(name, part) for part in parts),
            f"{'CC BY-NC-SA' if name == 'tl_ugnayan' else 'CC BY-SA'} 4.0; a treebank of Universal "
            f"Dependencies: {', '.join(parts)}",
        )
        for name, parts in TREEBANKS.items()
    }
    notes = {
        "gap": "Apache-2.0; pronouns and two names each",
        "winobias": "MIT; sentences for and against the stereotype",
        "winogender": "MIT; 720 sentences",
        "litbank": "CC BY 4.0; coreference in 100 novels",
    }
    named = {
        name: _one((coreference_file(name, part) for part in coreference_parts(name)), note)
        for name, note in notes.items()
    }
    return (
        treebanks
        | named
        | {
            "opensesame": _one(
                [REFLEXIVES], "Apache-2.0; reflexives, 18,000 sentences of a grammar"
            ),
            "word-align-en-fr": _one(
                ALIGNMENTS.values(),
                "no restriction stated; gold alignments of 447 and 100 sentence pairs; made from "
                "neulab/awesome-align and loganbrenningmeyer/multi-binaryalign",
            ),
        }
    )


def data_sets(folder: Path | None) -> list[SetState]:
    """Return the state of each set in a folder; None: no folder, so nothing is there."""
    return [
        SetState(name, *_found(public, folder), public.note) for name, public in _sets().items()
    ]


def _found(public: PublicSet, folder: Path | None) -> tuple[Path | None, int]:
    for files in public.versions if folder else ():
        paths = [file.path(folder) for file in files if folder]
        there = [path for path in paths if path]
        if len(there) == len(files):
            return there[0].parent, sum(path.stat().st_size for path in there)
    return None, 0


def fetch_set(name: str, folder: Path | None) -> list[Path]:
    """Download a set into a data folder, with a progress bar, and return the paths of its files.

    Args:
        name: one of `data_sets`.
        folder: the data folder, made if it is not there.
    """
    sets = _sets()
    if name not in sets:
        raise ValueError(f"There is no data set {name!r}. {suggestion(name, sets)}")
    if folder is None:
        raise ValueError(f"Say where to put {name}: give --folder, or set {VARIABLE}.")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), transient=True) as bar:
        tasks = {}

        def show(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label)
            bar.update(tasks[label], completed=done, total=total or None)

        return fetch(sets[name].versions[0], folder, progress=show)
