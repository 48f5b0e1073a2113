import lzma
import os

import pytest

from headwise_papers.data.bags import from_trees, read_sst
from headwise_papers.ops.sen import class_counts, topic_purity

needs_data = pytest.mark.skipif(
    not os.environ.get("HEADWISE_DATA"), reason="HEADWISE_DATA names no folder with sst"
)
ROWS = {
    "train": "1\tThe best `` film '' , ever !\n0\tA powerful bore\u0085 .\n1\t...\n",
    "dev": "0\tbad film\n",
    "test": "1\tUnseen word\n",
}


@pytest.fixture
def small(tmp_path):
    (tmp_path / "sst").mkdir()
    for part, text in ROWS.items():
        path = tmp_path / "sst" / f"sst2.{part}.tsv.xz"
        path.write_bytes(lzma.compress(text.encode()))
    return tmp_path


def test_words_are_lower_cased_and_punctuation_dropped(small):
    sst = read_sst("sst2", folder=small, verify=False)
    read = [
        sst.vocabulary.decode(row[:length])
        for row, length in zip(sst.train.tokens[0].tolist(), sst.train.lengths[0], strict=True)
    ]
    assert read == [["the", "best", "film", "ever"], ["a", "powerful", "bore"]]
    assert sst.train.labels.tolist() == [[1, 0]]  # nothing was left of the third sentence
    assert sst.vocabulary.encode(["unseen", "elsewhere"]) != [3, 3]
    assert sst.classes == 2


def test_unknown_contents_are_refused(small):
    with pytest.raises(ValueError, match="damaged or another version"):
        read_sst("sst2", folder=small)


def test_a_broken_line_is_named(small):
    (small / "sst/sst2.dev.tsv").write_text("0\tbad\n7\tworse\n")
    with pytest.raises(ValueError, match=r"sst2.dev.tsv, line 2: .* the label one of 0, 1"):
        read_sst("sst2", folder=small, verify=False)


def test_without_data_the_reader_says_how_to_get_it(monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    with pytest.raises(ValueError, match="fine-grained-sentiment"):
        read_sst("sst5")


def test_trees_become_sentences(tmp_path):
    for part in ("train", "dev", "test"):
        trees = "(4 (2 A) (3 (2 -LRB-) (3 fine\\/good)))\n(2 So)\n(1 (2 Bad) (2 .))\n"
        (tmp_path / f"{part}.txt").write_text(trees)
    from_trees(tmp_path, tmp_path)
    assert (tmp_path / "sst/sst5.dev.tsv").read_text() == "4\tA ( fine/good\n2\tSo\n1\tBad .\n"
    assert (tmp_path / "sst/sst2.train.tsv").read_text() == "1\tA ( fine/good\n0\tBad .\n"


@needs_data
def test_best_and_powerful_are_as_often_in_sst2_as_in_the_paper():
    sst = read_sst("sst2")
    train, size = sst.train.seed(0), len(sst.vocabulary)
    assert [sst.train.labels.numel(), sst.dev.labels.numel(), sst.test.labels.numel()] == [
        6920,
        872,
        1821,
    ]
    tokens, labels, lengths = train.tokens[0], train.labels[0], train.lengths[0]
    counts = class_counts(tokens, labels, lengths=lengths, vocabulary=size, classes=2)
    best, powerful = sst.vocabulary.encode(["best", "powerful"])
    assert counts[best].tolist() == [25, 103]
    assert counts[powerful].tolist() == [0, 36]
    purity = topic_purity(tokens, labels, lengths=lengths, vocabulary=size)
    assert purity[powerful] == 1
    assert purity[best].item() == pytest.approx(0.609, abs=5e-4)


@needs_data
def test_sst5_has_five_classes_and_the_published_sizes():
    sst = read_sst("sst5")
    assert [bags.labels.numel() for bags in (sst.train, sst.dev, sst.test)] == [8544, 1101, 2210]
    assert sst.train.labels.unique().tolist() == [0, 1, 2, 3, 4]
