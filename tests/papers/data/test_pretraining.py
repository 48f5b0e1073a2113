"""Texts to pre-train on."""

import hashlib
import re

import pytest

from headwise_papers.data.pretraining import (
    PRETRAINING_FILES,
    documents_between_blanks,
    read_pretraining,
    read_text_file,
)
from headwise_papers.recipes.data import data_sets


def test_documents_end_at_blank_lines():
    assert documents_between_blanks([" a ", "", "b", "c", " ", ""]) == [["a"], ["b", "c"]]
    assert documents_between_blanks(["", " "]) == []


def test_a_file_keeps_its_last_tenth_for_validation(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"line {number}\n" for number in range(40)))
    texts = read_text_file(path)
    assert texts.train == [[f"line {number}" for number in range(36)]]
    assert texts.valid == [[f"line {number}" for number in range(36, 40)]]


def test_files_that_cannot_be_learnt_from(tmp_path):
    (tmp_path / "short.txt").write_text("one line")
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\n")
    (tmp_path / "empty.txt").write_text("\n")
    for name, said in (("no.txt", "There is no text file"), ("short.txt", "too few lines"),
                       ("odd.txt", r"odd.txt, line 1: UTF-8 text was wanted"),
                       ("empty.txt", r"empty.txt holds no text.*; give one")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            read_text_file(tmp_path / name)


def test_a_misspelt_corpus_gets_a_suggestion(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'debian-docs-en'"):
        read_pretraining("debian-doc-en")
    with pytest.raises(ValueError, match="There is no oromo-masakhanews/train"):
        read_pretraining("oromo", folder=tmp_path)


def test_every_corpus_is_listed_among_the_data_sets():
    assert {state.name for state in data_sets(None)} >= PRETRAINING_FILES.keys()


def test_wikitext_is_read_by_article_as_people_write(data_folder):
    texts = read_pretraining("wikitext-2", folder=data_folder)
    assert len(texts.valid) == len(texts.test) - 2 == 60
    assert texts.valid[0][0] == "= Homarus gammarus ="
    assert "up to 60 centimetres (24 in)" in texts.valid[0][3]
    assert not any(" @" in line for document in texts.valid for line in document)


def test_filipino_keeps_sentences_apart_that_never_stood_together(data_folder):
    texts = read_pretraining("filipino", folder=data_folder)
    assert [len(document) for document in texts.train[:2]] == [18_106, 1889]
    assert texts.train[1][0] == "GENESIS" and {len(one) for one in texts.train[12:]} == {1}


def test_no_held_out_oromo_article_is_trained_on(data_folder):
    texts = read_pretraining("oromo", folder=data_folder)
    trained = {_plain(line) for document in texts.train for line in document}
    held = [line for part in (texts.valid, texts.test) for document in part for line in document]
    sentences = {_plain(sentence) for line in held for sentence in line.split(".")}
    long = {sentence for sentence in sentences if len(sentence.split()) > 6}
    assert len(long) > 5000 and len(long & trained) < len(long) // 1000


def _plain(text):
    return " ".join(re.findall(r"\w+", text.lower()))


def test_books_are_parted_by_blank_lines(tmp_path):
    (tmp_path / "classic-books-en").mkdir()
    for part, text in {
        "train": "It was late.\nShe left.\n\nCall me Ishmael.\n",
        "valid": "One.\n",
        "test": "Two.\n",
    }.items():
        (tmp_path / f"classic-books-en/{part}.txt").write_text(text)
    texts = read_pretraining("classic-books-en", folder=tmp_path, verify=False)
    assert texts.train == [["It was late.", "She left."], ["Call me Ishmael."]]
    assert (texts.valid, texts.test) == ([["One."]], [["Two."]])


def test_real_books_held_out_are_the_stated_ones(data_folder):
    # checksums of the packed files: the first 16 hex digits
    stated = {"valid": (4, 4082, "a9080a396754d728"), "test": (6, 1837, "8ddb304b912fbadc")}
    files = PRETRAINING_FILES["classic-books-en"]
    for file, (books, paragraphs, checksum) in zip(files[1:], stated.values(), strict=True):
        path = file.path(data_folder)
        assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] == checksum
        documents = documents_between_blanks(file.lines(data_folder))
        assert (len(documents), sum(map(len, documents))) == (books, paragraphs)
