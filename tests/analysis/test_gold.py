import time
from collections import Counter

import pytest

from headwise.analysis.gold import (
    alignment_gold,
    coreference_gold,
    duplicate_gold,
    first_gold,
    induction_gold,
    links_in,
    neighbour_gold,
    punctuation_gold,
    rare_gold,
    relative_positions,
    syntax_gold,
)
from headwise.text.frequencies import WordRanks
from headwise.text.mentions import Passage, make_mention
from headwise.text.treebank import Tree
from headwise_papers.data.annotations import read_named_treebank

# "The big red dog was seen": red and big modify dog, dog is the passive subject of seen
DOG = Tree(
    ("The", "big", "red", "dog", "was", "seen"),
    (3, 3, 3, 5, 5, -1),
    ("det", "amod", "amod", "nsubj:pass", "aux:pass", "root"),
    ("DET", "ADJ", "ADJ", "NOUN", "AUX", "VERB"),
    "The big red dog was seen",
)
TOM = Tree(("Tom", "ran"), (1, -1), ("nsubj", "root"), ("PROPN", "VERB"), "Tom ran")


def rows(golds):
    """{label: sorted rows}"""
    return {gold.label: sorted(map(tuple, gold.right.tolist())) for gold in golds}


def test_relations_are_asked_for_in_both_directions():
    golds = syntax_gold([TOM, DOG])
    assert rows(golds) == {
        "amod_to_head": [(1, 1, 3), (1, 2, 3)],
        "amod_to_dependent": [(1, 3, 1), (1, 3, 2)],
        "nsubj_to_head": [(0, 0, 1)],
        "nsubj_to_dependent": [(0, 1, 0)],
    }
    assert {gold.kind for gold in golds} == {"encoder.self"}


def test_subtypes_are_apart_unless_counted_with_their_base():
    assert rows(syntax_gold([DOG], relations=["nsubj"])) == {}
    named = rows(syntax_gold([DOG], relations=["nsubj:pass"]))
    assert named == {"nsubj:pass_to_head": [(0, 3, 5)], "nsubj:pass_to_dependent": [(0, 5, 3)]}
    assert rows(syntax_gold([DOG], relations=["nsubj"], subtypes=True))["nsubj_to_head"] == [
        (0, 3, 5)
    ]
    every = rows(syntax_gold([DOG], relations=None))
    assert {"det_to_head", "aux:pass_to_dependent"} <= set(every) and len(every) == 8


def test_a_decoder_is_not_asked_for_what_it_cannot_see():
    found = rows(syntax_gold([TOM, DOG], "decoder.self"))
    assert found == {
        "amod_to_dependent": [(1, 3, 1), (1, 3, 2)],
        "nsubj_to_dependent": [(0, 1, 0)],
    }
    assert set(rows(neighbour_gold([["a", "b"]], "decoder.self"))) == {"previous"}
    marks = rows(punctuation_gold([["a", ",", "b"]], "decoder.self"))
    assert marks == {"punctuation": [(0, 2, 1)]}


def test_the_full_stop_does_not_ask_for_itself():
    assert punctuation_gold([["a", "b", "."]], "decoder.self") == []
    assert rows(punctuation_gold([["a", "."]])) == {"punctuation": [(0, 0, 1)]}


def test_a_rare_word_may_look_at_itself_only_where_it_could_look_elsewhere():
    sentences = [["the", "emu", "the"]]
    causal = rows(rare_gold(sentences, RANKS.__getitem__, "decoder.self"))
    assert causal["rarest"] == [(0, 2, 1)]
    assert (0, 1, 1) in rows(rare_gold(sentences, RANKS.__getitem__))["rarest"]


def test_relative_positions_are_those_of_the_dependent():
    found = relative_positions([TOM, DOG, TOM], relations=("nsubj", "amod", "obj"))
    assert found == {"nsubj": Counter({-1: 2}), "amod": Counter({-1: 1, -2: 1}), "obj": Counter()}


RANKS = {"the": 0, "cat": 600, "dog": 600, "ox": 700, "emu": 900}


def test_every_word_asks_for_the_rarest():
    golds = rows(rare_gold([["the", "ox", "emu"], ["the", "the"]], RANKS.__getitem__))
    assert golds["rarest"] == [(0, query, 2) for query in range(3)]
    assert golds["two_rarest"] == [(0, query, key) for query in range(3) for key in (1, 2)]


def test_of_equally_rare_words_all_are_right():
    golds = rows(rare_gold([["cat", "the", "dog"], ["emu", "cat", "dog"]], RANKS.__getitem__))
    assert {key for item, _, key in golds["rarest"] if item == 0} == {0, 2}
    assert {key for item, _, key in golds["two_rarest"] if item == 0} == {0, 2}
    assert {key for item, _, key in golds["two_rarest"] if item == 1} == {0, 1, 2}


def test_sentences_of_common_words_are_left_out_of_the_rare():
    assert rare_gold([["the", "cat"]], RANKS.__getitem__, common=601) == []
    assert len(rare_gold([["the", "cat"]], RANKS.__getitem__, common=600)) == 2
    one = rows(rare_gold([["emu"], []], RANKS.__getitem__))
    assert one == {"rarest": [(0, 0, 0)], "two_rarest": [(0, 0, 0)]}


def test_marks_and_first_words_are_asked_for_from_everywhere():
    sentences = [["a", ",", "b", "!"], [], ["c"]]
    assert rows(punctuation_gold(sentences)) == {
        "punctuation": [(0, query, key) for query in range(4) for key in (1, 3) if query != key]
    }
    assert rows(first_gold(sentences)) == {"first_word": [(0, query, 0) for query in (1, 2, 3)]}
    assert punctuation_gold([["a"]]) == [] == first_gold([["a"], []])


def test_neighbours_exist():
    found = rows(neighbour_gold([["a", "b", "c"], ["d"]]))
    assert found == {"previous": [(0, 1, 0), (0, 2, 1)], "next": [(0, 0, 1), (0, 1, 2)]}


def test_a_repeated_word_asks_for_itself_before_and_for_what_followed():
    sentences = [["x"], ["a", "b", "a", "c", "a", "a"]]
    assert rows(duplicate_gold(sentences)) == {
        "duplicate": [(1, 2, 0), (1, 4, 0), (1, 4, 2), (1, 5, 0), (1, 5, 2), (1, 5, 4)]
    }
    assert rows(induction_gold(sentences)) == {
        "induction": [(1, 2, 1), (1, 4, 1), (1, 4, 3), (1, 5, 1), (1, 5, 3)]
    }
    assert duplicate_gold([["A", "a"]]) == []  # as written


def test_links_go_from_target_to_source():
    (gold,) = alignment_gold([links_in("0-0 2-1 1-1"), []])
    assert gold.kind == "decoder.cross" and gold.label == "alignment"
    assert gold.right.tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 2]]
    with pytest.raises(ValueError, match="such as 0-2 was wanted, got '1:2'"):
        links_in("0-0 1:2")


def test_mentions_ask_from_their_head_word_by_kind():
    words = ("Ann", "met", "the", "old", "dog", "and", "she", "fed", "the", "dog")
    she = make_mention(words, (6, 7), right=[(0, 1)], wrong=[(2, 5)])
    dog = make_mention(words, (8, 10), right=[(2, 5)], wrong=[(0, 1)])
    found = rows(coreference_gold([Passage(words, " ".join(words), (she, dog))]))
    dogs = [(0, 9, 2), (0, 9, 3), (0, 9, 4)]
    assert found == {
        "coreference": [(0, 6, 0), *dogs],
        "coreference_pronoun": [(0, 6, 0)],
        "coreference_nominal": dogs,
    }


def test_a_batch_of_real_sentences_is_quick(data_folder):
    trees = list(read_named_treebank("en_ewt", "dev", folder=data_folder))
    sentences = [tree.words for tree in trees]
    start = time.perf_counter()
    ranks = WordRanks.count(sentences)
    syntax_gold(trees), rare_gold(sentences, ranks.rank), punctuation_gold(sentences)
    neighbour_gold(sentences), duplicate_gold(sentences), induction_gold(sentences)
    assert time.perf_counter() - start < 10
    offsets = relative_positions(trees)
    assert offsets["nsubj"].most_common(1)[0][0] == -1 and offsets["obj"].most_common(1)[0][0] > 0
