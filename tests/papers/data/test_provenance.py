import hashlib
import io
import json
import lzma
import tarfile
import zipfile

import pytest

from headwise_papers.data.bags import sst_file
from headwise_papers.data.classification import NEWSGROUPS
from headwise_papers.data.provenance import (
    ag_news_table,
    amazon_table,
    glove_commonest,
    imdb_table,
    newsgroup_lines,
    unzipped,
    yelp_table,
)


def archive(files):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz", compresslevel=1) as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return written.getvalue()


def test_imdb_is_negative_first_and_by_number():
    files = {"pos/10_9": b"d", "pos/2_8": b"c\t\nx ", "neg/7_1": b"b", "neg/0_2": b"a"}
    tar = archive({f"aclImdb/train/{name}.txt": text for name, text in files.items()}
                  | {"aclImdb/train/unsup/0_0.txt": b"no", "aclImdb/test/neg/1_1.txt": b"t",
                     "aclImdb/README": b""})  # fmt: skip
    rows = ["0\t2\tneg/0_2\ta", "0\t1\tneg/7_1\tb", "1\t8\tpos/2_8\tc x", "1\t9\tpos/10_9\td"]
    assert imdb_table([tar], part="train").decode().splitlines() == rows
    assert imdb_table([tar], part="test") == b"0\t1\tneg/1_1\tt\n"


def test_newsgroups_are_json_lines_and_old_bytes_are_latin_1():
    tar = archive({"20news-bydate-test/rec/9": b"x", "20news-bydate-train/rec/2": b"caf\xe9\n",
                   "20news-bydate-train/alt/3": "é".encode()})  # fmt: skip
    lines = newsgroup_lines([tar], part="train").decode().splitlines()
    assert lines[0] == '{"group": "alt", "id": "3", "text": "é"}'
    assert json.loads(lines[1]) == {"group": "rec", "id": "2", "text": "café\n"}


def test_tables_of_the_other_sets():
    assert ag_news_table([b'"3","A ""b""","c "\n']) == b'2\tA "b"\tc\n'
    assert yelp_table([b"bad .\n", b"good .\n"]) == b"0\tbad .\n1\tgood .\n"
    review = "<review>\n<rating>\n{0}\n</rating>\n<title>\nT\n</title>\n"
    review += "<review_text>\na. \n\nb\nc\n</review_text>\n</review>\n"
    parts = [review.format(stars).encode() for stars in ("5.0", "1.0")]
    assert amazon_table(parts) == b"books\t1\t5.0\tT\ta.  b c\nbooks\t0\t1.0\tT\ta.  b c\n"


def test_word_vectors_are_rounded_from_single_precision():
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("glove.6B.50d.txt", "the 0.418 -0.00066023\nman 0.2935 1.1685\n\x85 1 2\n")
        archive.writestr("glove.6B.100d.txt", "the 9\n")
    made = glove_commonest([written.getvalue()]).decode()
    # 0.2935 is below its decimal in double precision and above it in single precision
    assert made == "the 0.418 -0.001\nman 0.294 1.168\n\x85 1.000 2.000\n"


@pytest.mark.parametrize(
    "make", [unzipped, glove_commonest, lambda parts: imdb_table(parts, part="train")]
)
def test_what_is_no_archive_is_an_error_that_fetching_reports(make):
    with pytest.raises((ValueError, OSError)):
        make([b"<html>moved</html>"])


@pytest.mark.parametrize("part", ["dev", "test"])
def test_the_published_trees_make_the_known_files(data_folder, part):
    trees = lzma.decompress((data_folder / f"sst/trees.{part}.ptb.xz").read_bytes())
    for name in ("sst2", "sst5"):
        file = sst_file(name, part)
        assert file.make is not None and file.is_known(file.make([trees]))


@pytest.mark.slow
def test_an_archive_of_the_posts_makes_the_known_file(data_folder):
    posts = map(json.loads, NEWSGROUPS["test"].lines(data_folder))
    tar = archive({f"20news-bydate-test/{post['group']}/{post['id']}": post["text"].encode()
                   for post in posts})  # fmt: skip
    made = hashlib.sha256(newsgroup_lines([tar], part="test")).hexdigest()
    assert made == NEWSGROUPS["test"].sha256
