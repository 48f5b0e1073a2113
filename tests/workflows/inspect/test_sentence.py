"""Sentences: where words are, and which pieces belong to them."""

import pytest

from headwise.text.treebank import read_treebank
from headwise.workflows.inspect.sentence import Sentence
from tests.workflows.small_trees import write_treebank


def test_words_of_plain_text_are_those_of_the_text():
    sentence = Sentence.of_text("It's   3.14, isn't it?")
    assert "".join(sentence.words) == "It's3.14,isn'tit?"
    assert [sentence.text[a:b] for a, b in sentence.spans] == list(sentence.words)


def test_a_piece_belongs_to_the_word_of_its_first_character():
    sentence = Sentence.of_text("the dogs, ran")
    pieces = [(0, 3), (3, 7), (7, 8), (8, 9), (9, 13)]  # spaces before words, as GPT-2 has them
    assert sentence.words_of(pieces) == [0, 1, 1, 2, 3]


def test_a_piece_over_two_words_belongs_to_the_first_and_spaces_to_the_next():
    sentence = Sentence.of_words(["do", "n't", "go"], "don't go")
    assert sentence.words_of([(0, 3), (3, 5), (5, 6), (6, 8)]) == [0, 1, 2, 2]
    assert sentence.words_of([(0, 5), (8, 8)]) == [0, 2]


def test_words_never_fall_even_if_spans_do():
    assert Sentence.of_text("a b c").words_of([(0, 1), (4, 5), (2, 3)]) == [0, 2, 2]


def test_a_tree_keeps_its_words_and_how_they_were_written(tmp_path):
    (first, *_) = read_treebank(write_treebank(tmp_path / "trees.conllu"))
    sentence = Sentence.of_tree(first)
    assert sentence.text == "the dog saw some cats." and sentence.words == first.words
    assert sentence.spaced().text == "the dog saw some cats ."
    assert sentence.spaced().tree is first and sentence.spaced().words == sentence.words


def test_plain_text_is_not_spaced_anew():
    sentence = Sentence.of_text("the dog ran.")
    assert sentence.spaced() is sentence


def test_words_that_are_not_in_their_text_are_refused():
    with pytest.raises(ValueError, match="The word 'cat' was wanted"):
        Sentence.of_words(["cat"], "the dog")
