"""Reviews, negative (0) or positive (1): IMDB, SST, Amazon's four domains, and Yelp."""

import html
import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from headwise.text.source import DataFile, github
from headwise_papers.data import sst as treebank
from headwise_papers.data.provenance import amazon_table, imdb_table, reviews_in, yelp_table
from headwise_papers.data.raw import RawTexts, Row, read_table, words_and_marks

__all__ = ["amazon", "imdb", "sst", "yelp", "yelp_reviews"]

# the training file with the four reviews that its known copy has wrongly, see `imdb`
IMDB_PUT_RIGHT = ("0d94051027b4e26133fdbc25e6aca24297d1ad13ad27063d5e1621846562e09b",)
IMDB = {
    part: DataFile(
        f"imdb/imdb.{part}.tsv",
        checksum,
        "aclImdb_v1.tar.gz of ai.stanford.edu/~amaas/data/sentiment: label, stars, "
        "pos-or-neg/id_stars and text between tabs",
        ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
        partial(imdb_table, part=part),
        IMDB_PUT_RIGHT if part == "train" else (),
    )
    for part, checksum in {
        "train": "9033b10a89ee9de3a1f4c5cc37988a3e63bf9bbdc215dd18d53cab4f1d01f762",
        "test": "91fed595f7a30e3ed631cd7a432df19a19dc56747cff2013476b3853446ad57d",
    }.items()
}
AMAZON = DataFile(
    "amazon_mds/amazon_mds.tsv",
    "a3e38c6df168159c205037d21a63cbf5c419aef1393e4fdad08a34dbb1b7c620",
    "sorted_data_acl of github.com/lorenzoritter/domainadaption: domain, label, stars, title and "
    "text between tabs",
    tuple(
        github(
            "lorenzoritter/domainadaption", "f35a7541", f"sorted_data_acl/{domain}/{kind}.review"
        )
        for domain in ("books", "dvd", "electronics", "kitchen_%26_housewares")
        for kind in ("positive", "negative")
    ),
    amazon_table,
)
AMAZON_WHOLE = "amazon_mds/unprocessed"  # folder; the whole set has no known checksum
YELP = {
    part: DataFile(
        f"yelp_sentences/yelp.{part}.tsv",
        checksum,
        f"data/yelp/sentiment.{part}.0 and .1 of github.com/shentianxiao/language-style-transfer: "
        "label and text between tabs",
        tuple(
            github(
                "shentianxiao/language-style-transfer",
                "f078a9d3",
                f"data/yelp/sentiment.{part}.{label}",
            )
            for label in (0, 1)
        ),
        yelp_table,
    )
    for part, checksum in {
        "dev": "c013aa489b52ec3e6206e94d872973606fda3a61e0c46470487cf25c38c78184",
        "test": "f9097bb594eb678769f021d02d31773b8d44b767ac3e6cb758bb21947a66226a",
    }.items()
}
YELP_REVIEWS = DataFile(
    "yelp_reviews/yelp_academic_dataset_review.json",
    "",  # Yelp changes it from time to time
    "Yelp's own file, asked for at https://www.yelp.com/dataset",
)
TAKEN_REVIEWS = 20_000  # appendix A.1


def spaced(text: str) -> list[str]:
    """The tokens of a text that is tokenised already: between white space, lower-cased."""
    return text.lower().split()


def imdb(folder: Path, *, verify: bool) -> RawTexts:
    """IMDB (Maas et al., 2011), 25,000 reviews to train on and as many to test; no `<br />`.

    The known copy of the training file holds four texts about telephone programs in the place of
    the reviews neg/2_1, neg/9_1, pos/0_9 and pos/7_7; a file with the reviews is taken as well.
    """
    columns = ("label", "stars", "id", "text")
    train, test = (
        [
            Row(int(label), text.replace("<br />", " "))
            for label, _, _, text in read_table(
                file, folder, columns=columns, classes=2, verify=verify
            )
        ]
        for file in IMDB.values()
    )
    return RawTexts(train, test, words_and_marks)


def sst(folder: Path, *, verify: bool) -> RawTexts:
    """The Stanford Sentiment Treebank without neutral sentences, in its own tokens.

    Only its parts train and test are used: the paper pulls its validation set out of train.
    """
    train, test = (
        [
            Row(int(label), text)
            for label, text in read_table(
                treebank.sst_file("sst2", part),
                folder,
                columns=("label", "text"),
                classes=2,
                verify=verify,
            )
        ]
        for part in ("train", "test")
    )
    return RawTexts(train, test, spaced)


def amazon(folder: Path, *, verify: bool) -> RawTexts:
    """Multi-Domain Sentiment (Blitzer et al., 2007): reviews of fewer than 400 words, no titles.

    At hand are the 8,000 balanced reviews of four domains, not the paper's 40,000. The whole set,
    unprocessed.tar.gz of cs.jhu.edu/~mdredze/datasets/sentiment, is read instead where it was
    unpacked into `amazon_mds/unprocessed`: of every domain the labelled reviews, those of
    `positive.review` and `negative.review`, at most 2 (0) or at least 4 stars (1).
    """
    if (folder / AMAZON_WHOLE).is_dir():
        whole = list(_of_all_domains(folder / AMAZON_WHOLE))
        return RawTexts(whole, None, words_and_marks, shorter_than=400)
    columns = ("domain", "label", "stars", "title", "text")
    rows = read_table(AMAZON, folder, columns=columns, classes=2, verify=verify)
    train = [Row(int(label), html.unescape(text)) for _, label, _, _, text in rows]
    return RawTexts(train, None, words_and_marks, shorter_than=400)


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
        for stars, review in rated:
            if stars <= 2 or stars >= 4:
                yield Row(int(stars >= 4), html.unescape(review.text))


def yelp(folder: Path, *, verify: bool) -> RawTexts:
    """Yelp sentences (Shen et al., 2017) in their own tokens: not the paper's whole reviews.

    Their training file is not public: train is their file `test`, test their file `dev`.
    """
    train, test = (
        [
            Row(int(label), text)
            for label, text in read_table(
                YELP[part], folder, columns=("label", "text"), classes=2, verify=verify
            )
        ]
        for part in ("test", "dev")
    )
    return RawTexts(train, test, spaced)


def yelp_reviews(folder: Path, *, verify: bool) -> RawTexts:
    """The Yelp Open Dataset: the first 20,000 reviews of at most 2 (0) or at least 4 stars (1).

    Args:
        folder: the data folder; Yelp's file, a JSON object a line, is asked for at
            yelp.com/dataset and put below it as
            `yelp_reviews/yelp_academic_dataset_review.json`.
        verify: that there are 20,000; Yelp changes the file from time to time, so that it has no
            checksum.
    """
    path = folder / YELP_REVIEWS.name
    if not path.is_file():
        raise ValueError(f"There is no {path}; ask for it at https://www.yelp.com/dataset.")
    train = list(islice(_starred(path), TAKEN_REVIEWS))
    if verify and len(train) < TAKEN_REVIEWS:
        raise ValueError(
            f"{path} has {len(train)} reviews with other than 3 stars, but {TAKEN_REVIEWS} were "
            "wanted; get the whole file."
        )
    return RawTexts(train, None, words_and_marks)


def _starred(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                review = json.loads(line)
                stars, text = float(review["stars"]), str(review["text"])
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{path}, line {number}: a JSON object with stars and text was wanted, got "
                    f"{line[:40]!r}; get the file again."
                ) from None
            if stars <= 2 or stars >= 4:
                yield Row(int(stars >= 4), text)
