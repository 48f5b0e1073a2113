"""Labelled texts as the output relevance paper has them: words as numbers, three parts.

Preprocessing of appendix A.3: words, lower-cased; words seen fewer than 3 times in the training
part are unknown; for AG News and 20 Newsgroups also integers of more than one digit; 20 Newsgroups
is split at "_"; of Amazon only reviews of fewer than 400 words. The paper does not say what a word
is. Here words and punctuation marks are tokens of their own, see `words_and_marks`; SST and the
Yelp sentences come tokenised and are split at white space.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

from headwise.config import suggestion
from headwise.text.source import data_folder
from headwise_papers.data.news import ag_news, newsgroups
from headwise_papers.data.raw import RawTexts, Row
from headwise_papers.data.reviews import amazon, imdb, sst, yelp, yelp_reviews
from headwise_papers.data.vocabulary import Vocabulary

__all__ = ["Labelled", "LabelledTexts", "Statistics", "read_labelled", "statistics"]

MINIMUM_COUNT = 3
HELD_OUT = 400


Cut = tuple[int, list[str]]  # label and words


class Reader(Protocol):
    """Reads a set from the data folder."""

    def __call__(self, folder: Path, *, verify: bool) -> RawTexts: ...


READERS: dict[str, Reader] = {
    "imdb": imdb,
    "ag_news": ag_news,
    "newsgroups": newsgroups,
    "sst": sst,
    "amazon": amazon,
    "yelp": yelp,
    "yelp_reviews": yelp_reviews,
}


class Labelled(NamedTuple):
    """Texts as word numbers, none empty, with a label each, in a random order."""

    texts: list[list[int]]
    labels: list[int]


@dataclass(frozen=True)
class LabelledTexts:
    """A set in three parts, with one vocabulary: the words of the training part."""

    name: str
    train: Labelled
    validation: Labelled
    test: Labelled
    vocabulary: Vocabulary
    classes: int


class Statistics(NamedTuple):
    """What Table 2 of the paper says of a set."""

    median_length: float  # of the training texts, in tokens
    train: int  # texts to train on
    with_validation: int  # the same and the validation texts pulled out of them


def statistics(texts: LabelledTexts) -> Statistics:
    """Median length and size of the training part."""
    count = len(texts.train.texts)
    length = median(len(text) for text in texts.train.texts)
    return Statistics(float(length), count, count + len(texts.validation.texts))


def read_labelled(
    name: str,
    *,
    folder: Path | None = None,
    seed: int = 0,
    longest: int | None = None,
    punctuation: bool = True,
    held_out: int = HELD_OUT,
    keep_copies: bool = False,
    verify: bool = True,
) -> LabelledTexts:
    """Read a set and cut it into training, validation and test texts.

    Validation texts are pulled out of the training set; test texts are drawn from the published
    test set, or pulled out too where there is none. Texts without letter or digit are left out, and
    so are training texts that equal a validation or test text, word for word: 43 of 400 test
    sentences of Yelp would be among those learnt.

    Args:
        name: "imdb", "ag_news", "newsgroups", "sst", "amazon", "yelp" or "yelp_reviews".
        folder: the data folder; None takes the one HEADWISE_DATA names.
        seed: decides which texts are held out and the order of all.
        longest: tokens after this many are cut off; None keeps texts whole.
        punctuation: keep tokens without letter or digit.
        held_out: validation texts, and as many test texts if there are that many.
        keep_copies: keep training texts that equal a held-out one.
        verify: refuse files that are not the known ones.
    """
    if name not in READERS:
        raise ValueError(f"There is no labelled set {name!r}. {suggestion(name, READERS)}")
    if longest is not None and longest < 1:
        raise ValueError(f"longest must be 1 or more, got {longest}.")
    origin = "the public sets, see headwise_papers.data.labelled"
    raw = READERS[name](data_folder(folder, wanted=name, origin=origin), verify=verify)
    rows = _parts(raw, name=name, seed=seed, held_out=held_out)
    words = _cutter(raw, longest=longest, punctuation=punctuation)
    parts = [[(label, words(text)) for label, text in part] for part in rows]
    if not keep_copies:
        parts[0] = _without_copies(parts[0], [*parts[1], *parts[2]], name=name)
    sentences = (text for _, text in parts[0])
    vocabulary = Vocabulary.from_sentences(sentences, minimum_count=MINIMUM_COUNT)
    train, validation, test = (_numbered(part, vocabulary) for part in parts)
    return LabelledTexts(name, train, validation, test, vocabulary, raw.classes)


def _parts(raw: RawTexts, *, name: str, seed: int, held_out: int) -> list[list[Row]]:
    """Training, validation and test rows."""
    shuffle = random.Random(seed)
    train = _usable(raw, raw.train)
    shuffle.shuffle(train)
    pulled_out = held_out if raw.test is not None else 2 * held_out
    if held_out < 1 or len(train) <= pulled_out:
        raise ValueError(
            f"{name} has {len(train)} texts to train on, of which {pulled_out} would be held out; "
            "choose a held_out from 1 on that leaves some, or get the whole files."
        )
    if raw.test is None:
        test = train[held_out:pulled_out]
    else:
        test = _usable(raw, raw.test)
        shuffle.shuffle(test)
    if not test:
        raise ValueError(f"{name} has no texts to test on; get the whole files.")
    return [train[pulled_out:], train[:held_out], test[:held_out]]


def _without_copies(train: Sequence[Cut], held_out: Sequence[Cut], *, name: str) -> list[Cut]:
    seen = {tuple(words) for _, words in held_out}
    kept = [row for row in train if tuple(row[1]) not in seen]
    if not kept:
        raise ValueError(
            f"Every training text of {name} equals a held-out one; get the whole files, or keep "
            "them with keep_copies=True."
        )
    return kept


def _usable(raw: RawTexts, rows: Sequence[Row]) -> list[Row]:
    limit = raw.shorter_than
    return [
        row
        for row in rows
        if any(map(str.isalnum, row.text)) and (limit is None or len(raw.words(row.text)) < limit)
    ]


def _cutter(raw: RawTexts, *, longest: int | None, punctuation: bool) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        tokens = raw.words(text)
        kept = tokens if punctuation else [word for word in tokens if any(map(str.isalnum, word))]
        return kept[:longest]

    return words


def _numbered(part: Sequence[Cut], vocabulary: Vocabulary) -> Labelled:
    return Labelled([vocabulary.encode(words) for _, words in part], [label for label, _ in part])
