"""toy_gold: the positions it names are those of the words meant."""

import pytest
import torch

from headwise_papers.data.toy import ToyLanguage
from headwise_papers.measures.toy_gold import toy_gold

PAIRS = ToyLanguage().pairs(40, seed=3)
GOLD = {gold.label: gold for gold in toy_gold(PAIRS)}


def tags_of(label):
    """The word classes of (query, key) in every row of a label."""
    rows = GOLD[label].right.tolist()
    return {(PAIRS[i].tags[query], PAIRS[i].tags[key]) for i, query, key in rows}


def test_every_relation_is_asked_in_both_directions():
    relations = [f"{name}_to_{end}" for name in ("nsubj", "obj", "amod", "advmod")
                 for end in ("head", "dependent")]  # fmt: skip
    assert sorted(GOLD) == sorted([*relations, "coreference", "alignment"])


@pytest.mark.parametrize(
    ("label", "query", "keys"),
    [
        ("nsubj_to_head", {"NOUN", "PRON"}, {"VERB"}),
        ("nsubj_to_dependent", {"VERB"}, {"NOUN", "PRON"}),
        ("obj_to_dependent", {"VERB"}, {"NOUN", "PRON"}),
        ("amod_to_head", {"ADJ"}, {"NOUN"}),
        ("advmod_to_head", {"ADV"}, {"VERB"}),
        ("coreference", {"PRON"}, {"NOUN"}),
    ],
)
def test_labels_join_words_of_the_right_class(label, query, keys):
    found = tags_of(label)
    assert {asking for asking, _ in found} == query
    assert {seen for _, seen in found} == keys


def test_a_sentence_worked_out_by_hand():
    pair = ToyLanguage().pairs(5, seed=0)[4]
    # a cow often fell and it suddenly saw the cats .
    # totodu dutida fobafta na fiketu la ke korufoi kufupta .
    gold = {g.label: g.right.tolist() for g in toy_gold([PAIRS[0], pair])}
    second = {label: [row[1:] for row in rows if row[0] == 1] for label, rows in gold.items()}
    assert second["coreference"] == [[5, 1]]
    assert second["nsubj_to_head"] == [[1, 3], [5, 7]]
    assert second["obj_to_dependent"] == [[7, 9]]
    assert second["advmod_to_head"] == [[2, 3], [6, 7]]
    sources = [2, 1, 3, 4, 6, 5, 8, 9, 7, 10]
    assert second["alignment"] == [[target, source] for target, source in enumerate(sources)]


def test_alignment_asks_from_each_target_word_once_in_cross_attention():
    gold = GOLD["alignment"]
    asked = [(i, target) for i, target, _ in gold.right.tolist()]
    assert asked == [(i, t) for i, pair in enumerate(PAIRS) for t in range(len(pair.target))]
    assert gold.kind == "decoder.cross"
    assert {g.kind for g in GOLD.values() if g is not gold} == {"encoder.self"}


def test_a_batch_without_annotation_of_a_kind_has_no_such_label():
    plain = [pair for pair in PAIRS if not pair.coreference]
    assert plain and "coreference" not in {gold.label for gold in toy_gold(plain)}
    assert all(gold.right.dtype == torch.long for gold in toy_gold(plain))
