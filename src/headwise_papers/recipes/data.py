"""Public data sets: which are at hand, and fetching one.

headwise data
headwise data NAME --folder DIR
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from headwise.config import suggestion
from headwise.text.coreference import coreference_file, coreference_parts
from headwise.text.source import VARIABLE, DataFile
from headwise_papers.data.captions import FLICKR8K
from headwise_papers.data.characters import CHARACTER_FILES
from headwise_papers.data.corpora import CORPORA, corpus_file
from headwise_papers.data.glove import COMMONEST, published
from headwise_papers.data.news import AG_SUBSET, AG_TEST, AG_TRAIN, NEWSGROUPS
from headwise_papers.data.opensesame import REFLEXIVES
from headwise_papers.data.pair_tasks import task_files
from headwise_papers.data.pretraining import PRETRAINING_FILES
from headwise_papers.data.provenance import fetch
from headwise_papers.data.reviews import AMAZON, IMDB, YELP, YELP_REVIEWS
from headwise_papers.data.sst import SPLITS, sst_file
from headwise_papers.data.tagging_files import TAGGING_SETS, tagging_files
from headwise_papers.data.treebanks import TREEBANKS, treebank_file

__all__ = ["SetState", "data_sets", "fetch_set"]


@dataclass(frozen=True)
class PublicSet:
    """The files of a set, in one or more versions, and what to know before using it."""

    versions: tuple[tuple[DataFile, ...], ...]  # the first is the one to fetch
    note: str  # licence and caveat


class SetState(NamedTuple):
    """A set, and what of it is in a folder."""

    name: str
    where: Path | None  # the folder of its files; None: not all are there
    size: int  # bytes on the disk
    note: str


def _sets() -> dict[str, PublicSet]:
    return _classified() | _tuned() | _parallel() | _plain() | _annotated()


def _classified() -> dict[str, PublicSet]:
    return {
        "imdb": PublicSet((tuple(IMDB.values()),), "no licence stated; cite Maas et al. 2011"),
        "ag_news": PublicSet(
            ((AG_TRAIN, AG_TEST), (AG_SUBSET, AG_TEST)),
            "non-commercial research use; recorded figures are of a sample, the whole set gives "
            "others",
        ),
        "newsgroups": PublicSet((tuple(NEWSGROUPS.values()),), "no licence stated"),
        "sst": PublicSet(
            (tuple(sst_file(name, part) for name in ("sst2", "sst5") for part in SPLITS),),
            "no licence stated; cite Socher et al. 2013",
        ),
        "amazon": PublicSet(
            ((AMAZON,),),
            "research use; 8,000 reviews of four domains; the whole set is read from "
            "amazon_mds/unprocessed where it is there",
        ),
        "yelp": PublicSet(
            (tuple(YELP.values()),), "Yelp's terms; sentences, the parts dev and test only"
        ),
        "yelp_reviews": PublicSet(((YELP_REVIEWS,),), "Yelp's terms; only Yelp gives it"),
    }


def _tuned() -> dict[str, PublicSet]:
    """What `headwise train classifier` names; sst2 is in sst."""
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
    return {name: PublicSet((task_files(name),), note) for name, note in notes.items()} | {
        name: PublicSet((tagging_files(name),), note) for name, note in tagged.items()
    }


def _parallel() -> dict[str, PublicSet]:
    tests = _pair("iwslt15", "en-vi", ("tst2012", "tst2013"))
    return {
        "multi30k": PublicSet(
            (
                tuple(
                    corpus_file("multi30k", part, language, pair=("en", "de"))
                    for part in CORPORA["multi30k"].parts
                    for language in CORPORA["multi30k"].languages
                ),
            ),
            "no licence stated; research use",
        ),
        "iwslt14": PublicSet(
            (
                _pair("iwslt14", "de-en"),
                _pair("iwslt14", "de-en", ("train-subset", "valid", "test")),
            ),
            "CC BY-NC-ND; train is a subset or made by hand",
        ),
        "iwslt15": PublicSet((_pair("iwslt15", "en-vi"),), "CC BY-NC-ND; en-vi"),
        "iwslt15-tests": PublicSet((tests,), "CC BY-NC-ND; tst2012 and tst2013 of en-vi alone"),
        "wmt14": PublicSet(
            (_pair("wmt14", "en-de"),), "research use; 4.5 million pairs, put there by hand"
        ),
        "tatoeba": PublicSet(
            (_pair("tatoeba", "en-de"),), "CC BY 2.0 FR; en-de, read with fr and ru too; our splits"
        ),
        "tatoeba-en-ru": PublicSet(
            (_pair("tatoeba", "en-ru"),), "CC BY 2.0 FR; 46,085 pairs to train on; our splits"
        ),
        "opensubtitles": PublicSet(
            (_pair("opensubtitles", "en-ru"),),
            "no licence stated; en-ru, 12,178 chosen sentences, no random sample; our splits",
        ),
        "libreoffice-help": PublicSet(
            (_pair("libreoffice-help", "en-vi"),),
            "MPL-2.0; en-vi, read with de, fr, om and ru too; our splits",
        ),
    }


def _pair(name: str, pair: str, parts: Sequence[str] = ()) -> tuple[DataFile, ...]:
    """The files of a pair of languages, of the usual parts unless others are given."""
    languages = pair.split("-")
    return tuple(
        corpus_file(name, part, language, pair=languages)
        for part in parts or CORPORA[name].parts
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
        "filipino": "CC BY 4.0, CC BY 2.0 FR and public domain; to pre-train on",
        "oromo": "BBC's, CC BY-NC 4.0, CC BY 4.0, MPL-2.0; to pre-train on",
    }
    return {
        **{name: PublicSet((PRETRAINING_FILES[name],), note) for name, note in read.items()},
        "glove": PublicSet(
            ((COMMONEST,), (published(50),)),
            "PDDL; the 40,000 commonest words, out of a download of 862 MB",
        ),
        **{name: PublicSet((CHARACTER_FILES[name],), note) for name, note in notes.items()},
        "flickr8k": PublicSet(
            (tuple(FLICKR8K.values()),),
            "non-commercial research; images belong to their authors, and are 128 x 128 here",
        ),
    }


def _annotated() -> dict[str, PublicSet]:
    treebanks = {
        name: PublicSet(
            (tuple(treebank_file(name, part) for part in parts),),
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
        name: PublicSet(
            (tuple(coreference_file(name, part) for part in coreference_parts(name)),), note
        )
        for name, note in notes.items()
    }
    reflexives = PublicSet(
        ((REFLEXIVES,),), "Apache-2.0; reflexives, 18,000 sentences of a grammar"
    )
    return treebanks | named | {"opensesame": reflexives}


def data_sets(folder: Path | None) -> list[SetState]:
    """Each set, and whether a folder has it; None: no folder, so nothing is there."""
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
    """Download a set into a data folder, with a progress bar; returns where its files are.

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
