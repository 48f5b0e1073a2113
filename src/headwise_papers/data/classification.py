"""Labelled texts of the output relevance paper: words as numbers, three parts.

Preprocessing of appendix A.3: words, lower-cased; words seen fewer than 3 times in the training
part are unknown; for AG News and 20 Newsgroups also integers of more than one digit; 20 Newsgroups
is split at "_"; of Amazon only reviews of fewer than 400 words. The paper does not say what a word
is. Here words and punctuation are tokens of their own, see `words_and_punctuation`; SST and the
Yelp sentences come tokenised and are split at white space.
"""

import csv
import html
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

from headwise_papers.data.bags import sst_file
from headwise_papers.data.provenance import (
    ag_news_table,
    amazon_table,
    entry,
    imdb_table,
    known_file,
    newsgroup_lines,
    read_table,
    reviews_in,
    yelp_table,
)
from headwise_papers.data.source import DataFile, data_folder, github
from headwise_papers.data.vocabulary import Vocabulary

__all__ = [
    "READERS",
    "Labelled",
    "LabelledTexts",
    "Statistics",
    "read_labelled",
    "statistics",
    "without_wrapping",
    "words_and_punctuation",
]

MINIMUM_COUNT = 3
HELD_OUT = 400
# the training file with the four reviews that its known copy has wrongly, see `_imdb`
IMDB_PUT_RIGHT = ("0d94051027b4e26133fdbc25e6aca24297d1ad13ad27063d5e1621846562e09b",)
IMDB = {
    part: known_file(
        f"imdb/imdb.{part}.tsv",
        "aclImdb_v1.tar.gz of ai.stanford.edu/~amaas/data/sentiment: label, stars, "
        "pos-or-neg/id_stars and text between tabs",
        ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
        partial(imdb_table, part=part),
        IMDB_PUT_RIGHT if part == "train" else (),
    )
    for part in ("train", "test")
}
AMAZON_REPOSITORY = "lorenzoritter/domainadaption"
AMAZON = known_file(
    "amazon_mds/amazon_mds.tsv",
    f"sorted_data_acl of github.com/{AMAZON_REPOSITORY}: domain, label, stars, title and "
    "text between tabs",
    tuple(
        github(AMAZON_REPOSITORY, "f35a7541", f"sorted_data_acl/{domain}/{kind}.review")
        for domain in ("books", "dvd", "electronics", "kitchen_%26_housewares")
        for kind in ("positive", "negative")
    ),
    amazon_table,
)
AMAZON_WHOLE = "amazon_mds/unprocessed"  # folder; the whole set has no known checksum
YELP_REPOSITORY = "shentianxiao/language-style-transfer"
YELP = {
    part: known_file(
        f"yelp_sentences/yelp.{part}.tsv",
        f"data/yelp/sentiment.{part}.0 and .1 of github.com/{YELP_REPOSITORY}: "
        "label and text between tabs",
        tuple(
            github(YELP_REPOSITORY, "f078a9d3", f"data/yelp/sentiment.{part}.{label}")
            for label in (0, 1)
        ),
        yelp_table,
    )
    for part in ("dev", "test")
}
YELP_REVIEWS = known_file(  # without a checksum: Yelp changes it from time to time
    "yelp_reviews/yelp_academic_dataset_review.json",
    "Yelp's own file, asked for at https://www.yelp.com/dataset",
)
TAKEN_REVIEWS = 20_000  # appendix A.1
AG_REPOSITORY = "mhjabreel/CharCnn_Keras"
AG_COMMIT = "555590db4219b1243abb1918effd6a7425a2d75f"
AG_TEST = known_file(
    "ag_news/ag_news.test.tsv",
    f"data/ag_news_csv/test.csv of github.com/{AG_REPOSITORY}: label from 0, title and "
    "description between tabs, each stripped",
    (github(AG_REPOSITORY, AG_COMMIT, "data/ag_news_csv/test.csv"),),
    ag_news_table,
)
AG_SUBSET = known_file(
    "ag_news/ag_news.train_subset.tsv",
    "three public samples (hhf-hd/NoisyAG-News, lst11111/bert-text-classification, "
    "fxcawley/MetaRepICL), or put the published ag_news_csv/train.csv there as ag_news/train.csv",
)
AG_TRAIN = known_file(
    "ag_news/train.csv",
    f"data/ag_news_csv/train.csv of github.com/{AG_REPOSITORY}",
    (github(AG_REPOSITORY, AG_COMMIT, "data/ag_news_csv/train.csv"),),
)
AG_CLASSES = {0: 0, 2: 1}  # world and business, of four
NEWSGROUPS = {
    part: known_file(
        f"newsgroups20/20news-bydate.{part}.jsonl",
        "20news-bydate.tar.gz of qwone.com/~jason/20Newsgroups: a JSON line of group, id and text "
        "a post",
        ("http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",),
        partial(newsgroup_lines, part=part),
    )
    for part in ("train", "test")
}
GROUPS = {"rec.sport.baseball": 0, "rec.sport.hockey": 1}
SIGNATURE_LINES = 10  # a ruled line stands for a signature only this near to the end
# a word without its n't, n't, other clitics, words, and every other character on its own
_TOKEN = re.compile(r"\w+?(?=n't\b)|n't\b|'(?:s|m|re|ve|ll|d)\b|\w+|[^\w\s]")
_BARE_ESCAPE = re.compile(r"[ &](#\d{2,4}|quot|amp|lt|gt|nbsp|apos);")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_QUOTED = re.compile(r"^\s*[>|}:]|(?:writes|wrote|says|said)\s*:?\s*$|^In (?:article|message) ")
_RULE = re.compile(r"^\s*(?:--+|[-_=~*^#+|/\\ ]*[-_=~*^#]{4}[-_=~*^#+|/\\ ]*)\s*$")


class Row(NamedTuple):
    """Label and text."""

    label: int
    text: str


Cut = tuple[int, list[str]]  # label and words


@dataclass(frozen=True)
class RawTexts:
    """A set as published: texts with labels 0, 1 …, and how they are cut into words."""

    train: list[Row]
    test: list[Row] | None  # None: there is no published split
    words: Callable[[str], list[str]]
    classes: int = 2
    shorter_than: int | None = None  # texts of this many words or more are left out


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
    """Sizes of a set as in Table 2 of the paper."""

    median_length: float  # of the training texts, in tokens
    train: int  # texts to train on
    with_validation: int  # training texts and the validation texts pulled out of them


def statistics(texts: LabelledTexts) -> Statistics:
    """Return median length and size of the training part."""
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
    sentences of Yelp would be among the training texts.

    Args:
        name: "imdb", "ag_news", "newsgroups", "sst", "amazon", "yelp" or "yelp_reviews".
        folder: the data folder; None: the one that HEADWISE_DATA names.
        seed: decides which texts are held out and the order of all.
        longest: tokens after this many are cut off; None keeps texts whole.
        punctuation: keep tokens without letter or digit.
        held_out: validation texts, and as many test texts if there are that many.
        keep_copies: keep training texts that equal a held-out one.
        verify: raise if a checksum is unknown.
    """
    reader = entry(READERS, name, "labelled set")
    if longest is not None and longest < 1:
        raise ValueError(f"longest must be 1 or more, got {longest}.")
    origin = "the public sets, see headwise_papers.data.classification"
    raw = reader(data_folder(folder, wanted=name, origin=origin), verify=verify)
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
    """Return training, validation and test rows."""
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


def words_and_punctuation(text: str) -> list[str]:
    """Return lower-cased words and punctuation, by one regular expression.

    A run of letters, digits and underscores is a word, any other character a token of its own;
    clitics are cut off as in the Penn Treebank and in GloVe's vocabulary.

    >>> words_and_punctuation("Don't miss Costner's 2nd-best (8/10)!")[:8]
    ['do', "n't", 'miss', 'costner', "'s", '2nd', '-', 'best']
    """
    return _TOKEN.findall(text.lower())


def _without_numbers(text: str) -> list[str]:
    """Return words and punctuation; an integer of more than one digit is unknown (appendix A.3).

    >>> _without_numbers("Up 7 of 1,900")
    ['up', '7', 'of', '1', ',', '<unk>']
    """
    return [
        "<unk>" if len(token) > 1 and token.isdecimal() else token
        for token in words_and_punctuation(text)
    ]


def _spaced(text: str) -> list[str]:
    """Return the tokens of a text that is tokenised already, lower-cased."""
    return text.lower().split()


def _rows(
    file: DataFile,
    folder: Path,
    columns: Sequence[str] = ("label", "text"),
    *,
    clean: Callable[[str], str] = str,
    verify: bool,
) -> list[Row]:
    """Read label and text of each line of a table with labels 0 and 1."""
    label, text = columns.index("label"), columns.index("text")
    table = read_table(file, folder, columns=columns, verify=verify)
    return [Row(int(fields[label]), clean(fields[text])) for fields in table]


def _imdb(folder: Path, *, verify: bool) -> RawTexts:
    """Read IMDB (Maas et al., 2011), 25,000 reviews to train on and as many to test; no `<br />`.

    The known copy of the training file holds four texts about telephone programs in the place of
    the reviews neg/2_1, neg/9_1, pos/0_9 and pos/7_7; a file with the reviews is accepted as well.
    """
    columns = ("label", "stars", "id", "text")
    train, test = (
        _rows(file, folder, columns, clean=_without_breaks, verify=verify) for file in IMDB.values()
    )
    return RawTexts(train, test, words_and_punctuation)


def _without_breaks(text: str) -> str:
    return text.replace("<br />", " ")


def _sst(folder: Path, *, verify: bool) -> RawTexts:
    """Read the Stanford Sentiment Treebank without neutral sentences, in its own tokens.

    Only its parts train and test are used: the paper pulls its validation set out of train.
    """
    files = (sst_file("sst2", part) for part in ("train", "test"))
    train, test = (_rows(file, folder, verify=verify) for file in files)
    return RawTexts(train, test, _spaced)


def _amazon(folder: Path, *, verify: bool) -> RawTexts:
    """Read Multi-Domain Sentiment (Blitzer et al., 2007): reviews below 400 words, no titles.

    The known file has the 8,000 balanced reviews of four domains, not the paper's 40,000. The whole
    set, unprocessed.tar.gz of cs.jhu.edu/~mdredze/datasets/sentiment, is read instead where it was
    unpacked into `amazon_mds/unprocessed`: of every domain the labelled reviews, those of
    `positive.review` and `negative.review`, at most 2 (0) or at least 4 stars (1).
    """
    if (folder / AMAZON_WHOLE).is_dir():
        train = list(_of_all_domains(folder / AMAZON_WHOLE))
    else:
        columns = ("domain", "label", "stars", "title", "text")
        train = _rows(AMAZON, folder, columns, clean=html.unescape, verify=verify)
    return RawTexts(train, None, words_and_punctuation, shorter_than=400)


def _of_all_domains(folder: Path) -> Iterator[Row]:
    paths = sorted(
        path for kind in ("positive", "negative") for path in folder.rglob(f"{kind}.review")
    )
    if not paths:
        raise ValueError(
            f"{folder} has neither positive.review nor negative.review in any folder; unpack "
            "unprocessed.tar.gz there, or take the folder away to read the reviews of four domains."
        )
    for path in paths:
        try:
            rated = [(float(review.stars), review) for review in reviews_in(path.read_bytes())]
        except ValueError as problem:
            raise ValueError(f"{path} is no file of reviews ({problem}); get it again.") from None
        yield from _starred((stars, html.unescape(review.text)) for stars, review in rated)


def _starred(reviews: Iterator[Sequence[Any]]) -> Iterator[Row]:
    """Yield negative (at most 2 stars) and positive reviews (at least 4)."""
    for stars, text in reviews:
        if stars <= 2 or stars >= 4:
            yield Row(int(stars >= 4), text)


def _yelp(folder: Path, *, verify: bool) -> RawTexts:
    """Read Yelp sentences (Shen et al., 2017) in their own tokens: not the paper's whole reviews.

    Their training file is not public: train is their file `test`, test their file `dev`.
    """
    train, test = (_rows(YELP[part], folder, verify=verify) for part in ("test", "dev"))
    return RawTexts(train, test, _spaced)


def _yelp_reviews(folder: Path, *, verify: bool) -> RawTexts:
    """Read the Yelp Open Dataset: its first 20,000 reviews with other than 3 stars.

    Args:
        folder: the data folder; Yelp's file, a JSON object a line, is asked for at
            yelp.com/dataset and put below it as
            `yelp_reviews/yelp_academic_dataset_review.json`.
        verify: raise if there are fewer than 20,000; the file has no checksum, as Yelp changes it.
    """
    path = folder / YELP_REVIEWS.name
    if not path.is_file():
        raise ValueError(f"There is no {path}; ask for it at https://www.yelp.com/dataset.")
    with path.open("rb") as file:
        reviews = _json_rows(file, {"stars": float, "text": str}, where=str(path))
        train = list(islice(_starred(reviews), TAKEN_REVIEWS))
    if verify and len(train) < TAKEN_REVIEWS:
        raise ValueError(
            f"{path} has {len(train)} reviews with other than 3 stars, but {TAKEN_REVIEWS} were "
            "wanted; get the whole file."
        )
    return RawTexts(train, None, words_and_punctuation)


def _json_rows(
    lines: Iterable[str | bytes], fields: Mapping[str, Callable[[Any], Any]], *, where: str
) -> Iterator[list[Any]]:
    """Yield the fields of each JSON object, one a line, as the types given."""
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            row = [kind(record[name]) for name, kind in fields.items()]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{where}, line {number}: a JSON object with {' and '.join(fields)} was wanted, "
                f"got {line[:40]!r}; get the file again."
            ) from None
        yield row


def _ag_news(folder: Path, *, verify: bool) -> RawTexts:
    """Read AG News (Zhang et al., 2015), world (0) against business (1): title and description.

    The published `ag_news/train.csv` is read if it exists, and else the subset of 18,857 of its
    120,000 rows, of which 9,432 are of these two classes.
    """
    train = _ag_csv if AG_TRAIN.path(folder) else _ag_subset
    columns = ("label", "title", "description")
    test = read_table(AG_TEST, folder, columns=columns, labels="0123", verify=verify)
    rows = ((int(label), f"{title} {text}") for label, title, text in test)
    kept = _two_topics(train(folder, verify=verify))
    return RawTexts(kept, _two_topics(rows), _without_numbers)


def _two_topics(rows: Iterator[tuple[int, str]]) -> list[Row]:
    return [Row(AG_CLASSES[label], _unescaped(text)) for label, text in rows if label in AG_CLASSES]


def _unescaped(text: str) -> str:
    """Undo the corpus's escapes: ` #39;` (its ampersand is lost), tags, backslash line breaks."""
    whole = _BARE_ESCAPE.sub(lambda found: html.unescape(f"&{found[1]};"), text)
    return _TAG.sub(" ", whole).replace("\\", " ")


def _ag_subset(folder: Path, *, verify: bool) -> Iterator[tuple[int, str]]:
    columns = ("label", "text", "source")
    rows = read_table(AG_SUBSET, folder, columns=columns, labels="0123", verify=verify)
    for label, text, source in rows:
        # one of the three samples put " . " between title and description
        yield int(label), text.replace(" . ", " ", 1) if source == "noisyag_val" else text


def _ag_csv(folder: Path, *, verify: bool) -> Iterator[tuple[int, str]]:
    lines = AG_TRAIN.lines(folder, verify=verify)
    for number, fields in enumerate(csv.reader(lines), start=1):
        if len(fields) != 3 or fields[0] not in ("1", "2", "3", "4"):
            raise ValueError(
                f"{AG_TRAIN.name}, row {number}: class 1 to 4, title and description were wanted, "
                f"got {','.join(fields)[:40]!r}; get the file again."
            )
        yield int(fields[0]) - 1, f"{fields[1]} {fields[2]}"


def _newsgroups(folder: Path, *, verify: bool) -> RawTexts:
    """Read 20 Newsgroups by date, baseball (0) against hockey (1), without what names the group.

    Headers, quoted lines and signatures are removed, and words split at "_" (appendix A.3).
    """
    train, test = (
        [
            Row(GROUPS[group], without_wrapping(text).replace("_", " "))
            for group, text in _json_rows(
                file.lines(folder, verify=verify), {"group": str, "text": str}, where=file.name
            )
            if group in GROUPS
        ]
        for file in NEWSGROUPS.values()
    )
    return RawTexts(train, test, _without_numbers)


def without_wrapping(post: str) -> str:
    r"""Return the body of a post: no header, no quoted lines and who wrote them, no signature.

    A signature is what follows a line of dashes or the like that stands near the end.

    >>> without_wrapping("From: a@b\nLines: 3\n\nIn article <1> b writes:\n> Go\nNo.\n--\nA. B.\n")
    'No.'
    """
    lines = post.partition("\n\n")[2].split("\n")
    body = "\n".join(line for line in lines if not _QUOTED.search(line)).strip().split("\n")
    tail = max(1, len(body) - SIGNATURE_LINES)  # a first line is no signature
    ruled = [place for place in range(tail, len(body)) if _RULE.match(body[place])]
    return "\n".join(body[: ruled[0]] if ruled else body).strip()


class Reader(Protocol):
    """Function that reads a set from the data folder."""

    def __call__(self, folder: Path, *, verify: bool) -> RawTexts: ...


READERS: dict[str, Reader] = {
    "imdb": _imdb,
    "ag_news": _ag_news,
    "newsgroups": _newsgroups,
    "sst": _sst,
    "amazon": _amazon,
    "yelp": _yelp,
    "yelp_reviews": _yelp_reviews,
}
