"""Tagged sentences: IOB1 becomes BIO, and nothing is lost on the way."""

import lzma

import pytest

from headwise_papers.data.tasks import (
    TAGGING_SETS,
    bio,
    read_tagged_files,
    read_tagged_task,
    tagging_files,
)
from headwise_papers.measures.spans import spans

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
French JJ I-NP B-MISC
call NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def test_conll_is_read_as_bio_without_document_marks(tmp_path):
    (tmp_path / "conll2003").mkdir()
    for part in ("train", "dev", "test"):
        path = tmp_path / f"conll2003/eng.{part}.conll.xz"
        path.write_bytes(lzma.compress(CONLL.encode()))
    task = read_tagged_task("conll2003", folder=tmp_path, verify=False)
    assert task.train == [
        (("EU", "rejects", "German", "French", "call"), ("B-ORG", "O", "B-MISC", "B-MISC", "O")),
        (("Peter", "Blackburn"), ("B-PER", "I-PER")),
    ]
    assert task.classes == ("O", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER")


def test_the_spans_of_iob1_are_those_of_bio():
    for tags in (["I-A", "B-A", "I-A", "I-B"], ["B-A", "O", "I-A"], ["O"]):
        assert spans(bio(tags)) == spans(tags)
        assert bio(bio(tags)) == bio(tags)


def test_files_of_ones_own_may_have_tabs(tmp_path):
    paths = [tmp_path / f"{part}.conll" for part in ("train", "dev", "test")]
    for path in paths:
        path.write_text("In\tO\nNew\tB-LOC\nYork\tI-LOC\n\nNo\tO\n")
    task = read_tagged_files(*paths)
    assert task.test[0] == (("In", "New", "York"), ("O", "B-LOC", "I-LOC"))
    assert len(task.dev) == 2 and task.groups(task.dev) == ["In New York", "No"]
    paths[2].write_text("In O\nYork LOC\n")
    with pytest.raises(ValueError, match=r"test.conll, line 2: a word and, last, a tag such as O"):
        read_tagged_files(*paths)
    paths[2].write_text("\n\n")
    with pytest.raises(ValueError, match=r"test.conll holds no text"):
        read_tagged_files(*paths)
    paths[2].write_bytes(b"In O\nK\xf6ln B-LOC\n")
    with pytest.raises(ValueError, match=r"test.conll, line 2: UTF-8 text was wanted"):
        read_tagged_files(*paths)
    for path in paths:
        path.write_text("In O\n")
    with pytest.raises(ValueError, match="has no tag but O"):
        read_tagged_files(*paths)


def test_unknown_sets_and_missing_data_are_told(monkeypatch):
    with pytest.raises(ValueError, match="Did you mean 'masakhaner-yor'"):
        read_tagged_task("masakhaner-yorr")
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    with pytest.raises(ValueError, match=r"MasakhaNER2.0/data/yor of .*masakhane-ner at ba5843cd"):
        read_tagged_task("masakhaner-yor")


def test_every_set_has_three_files():
    files = [file for name in TAGGING_SETS for file in tagging_files(name)]
    assert len(TAGGING_SETS) == 22 and len({file.sha256 for file in files}) == len(files) == 66


@pytest.mark.parametrize(
    ("name", "sentences", "words"),
    [
        ("conll2003", (14041, 3250, 3453), 203_621),
        ("masakhaner-amh", (1750, 250, 500), 25_819),
        ("masakhaner-xho", (5718, 817, 1633), 86_645),  # two tags stand without a word
    ],
)
def test_the_sets_at_hand_have_their_known_sizes(name, sentences, words, data_folder):
    task = read_tagged_task(name, folder=data_folder)
    assert tuple(len(part) for part in (task.train, task.dev, task.test)) == sentences
    assert sum(len(sentence.words) for sentence in task.train) == words
    assert len(task.classes) == 9
