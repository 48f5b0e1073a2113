"""Corpora: read as they are needed, told apart by name, sampled the same however they are cut."""

from pathlib import Path

import pytest

from headwise.text.treebank import read_treebank
from headwise.workflows.inspect import corpus as module
from headwise.workflows.inspect.corpus import (
    Sample,
    batched_by_length,
    coreference_corpus,
    corpus_of,
)
from headwise.workflows.inspect.sentence import Sentence
from tests.workflows.small_hosts import LINES
from tests.workflows.small_trees import SENTENCES, write_treebank


def test_a_file_is_told_apart_by_its_name(tmp_path):
    trees = corpus_of(write_treebank(tmp_path / "trees.conllu"))
    assert [sentence.tree is None for sentence in trees.read()] == [False] * len(SENTENCES)
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    lines = corpus_of(tmp_path / "text.txt")
    assert [sentence.text for sentence in lines.read()] == LINES
    assert lines.fingerprint != trees.fingerprint


def test_counting_gives_ranks_and_the_number_of_sentences():
    counted = corpus_of(LINES).count()
    assert counted.sentences == len(LINES) and counted.ranks.rank(".") == 0
    assert corpus_of(iter(LINES)).count() is None


def test_lines_trees_and_sentences_may_be_mixed(tmp_path):
    trees = list(read_treebank(write_treebank(tmp_path / "trees.conllu")))
    mixed = [LINES[0], trees[0], Sentence.of_text("it ran .")]
    read = list(corpus_of(mixed).read())
    assert [sentence.tree for sentence in read] == [None, trees[0], None]


def test_bad_files_are_named_before_anything_else(tmp_path):
    (tmp_path / "bad.conllu").write_text("the dog\n")
    with pytest.raises(ValueError, match=r"bad.conllu, line 1: 10 columns"):
        corpus_of(tmp_path / "bad.conllu")
    for name in ("no.txt", "no.conllu"):
        with pytest.raises(ValueError, match=f"There is no .*{name}"):
            corpus_of(tmp_path / name)
    with pytest.raises(ValueError, match="There is no coreference set 'gaps'"):
        coreference_corpus("gaps")


def test_a_coreference_set_may_be_named_with_its_part(data_folder: Path):
    first = next(coreference_corpus("gap:validation").read())
    assert first.passage is not None and first.words == first.passage.words


def test_batches_hold_every_sentence_once_and_similar_lengths_together(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)
    sentences = [Sentence.of_text(line) for line in LINES]
    chunks = list(batched_by_length(sentences, 3))
    assert [[len(batch) for batch in chunk] for chunk in chunks] == [[3, 1], [3]]
    assert sorted(n for chunk in chunks for batch in chunk for n, _ in batch) == list(range(7))
    assert list(batched_by_length(sentences, 3, first=1)) == chunks[1:]


def test_a_corpus_is_read_as_it_is_needed(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 8)
    drawn = 0

    def corpus():
        nonlocal drawn
        for _ in range(100):
            drawn += 1
            yield Sentence.of_text("the dog ran .")

    for number, _ in enumerate(batched_by_length(corpus(), 4), start=1):
        assert drawn <= 8 * number
    assert drawn == 100


def test_a_sample_is_the_same_for_a_corpus_read_anyhow_and_fair():
    sentences = [Sentence.of_text(f"dog {number}") for number in range(200)]
    sample = Sample(20, first=3, seed=1)
    assert list(sample.watch(sentences)) == sentences
    again = Sample(20, seed=1)
    list(again.watch(iter(sentences)))
    assert again.drawn == sample.drawn and [n for n, _ in sample.beginning] == [0, 1, 2]
    smaller = Sample(5, seed=1)
    list(smaller.watch(sentences))
    assert smaller.drawn == sample.drawn[:5]  # the first of a sample are a sample
    counts = [0] * 4
    for seed in range(50):
        drawing = Sample(8, seed=seed)
        list(drawing.watch(sentences))
        for number, _ in drawing.drawn:
            counts[number // 50] += 1
    assert sum(counts) == 400 and min(counts) > 70


def test_no_sample_keeps_nothing():
    sample = Sample(0)
    list(sample.watch([Sentence.of_text("a")]))
    assert sample.drawn == [] and sample.beginning == []


@pytest.mark.parametrize(("kept", "times"), [(2**20, 1), (20, 2)])
def test_a_file_that_fits_into_memory_is_read_once(tmp_path, monkeypatch, kept, times):
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    corpus = corpus_of(tmp_path / "text.txt")
    calls, read = [], module.read_lines
    monkeypatch.setattr(module, "KEPT", kept)
    monkeypatch.setattr(module, "read_lines", lambda path: (calls.append(path), read(path))[1])
    assert corpus.size() == len(LINES)
    assert [sentence.text for sentence in corpus.read()] == LINES
    assert len(calls) == times
