"""Spans as seqeval counts them, on the cases that its own documentation and conlleval settle."""

import pytest

from headwise_papers.measures.spans import Span, span_counts, span_f1, span_scores, spans


def test_the_example_of_seqevals_documentation():
    gold = [
        ["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"],
        ["B-PER", "I-PER", "O"],
    ]
    said = [
        ["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"],
        ["B-PER", "I-PER", "O"],
    ]
    assert span_scores(gold, said) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O O", []),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER I-PER", [("PER", 0, 2)]),  # seqeval's default mode takes it for a span
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("B-PER O I-PER", [("PER", 0, 1), ("PER", 2, 3)]),
        ("O B-LOC I-LOC", [("LOC", 1, 3)]),
    ],
)
def test_spans_of_tags_well_formed_or_not(tags, found):
    assert spans(tags.split()) == [Span(*span) for span in found]


def test_a_span_is_right_only_whole_and_of_its_type():
    gold = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert span_counts(gold, [["B-PER", "O", "O", "B-LOC"]]).tolist() == [[1, 2, 2]]
    assert span_counts(gold, [["B-PER", "I-PER", "I-PER", "B-LOC"]]).tolist() == [[1, 2, 2]]
    assert span_counts(gold, [["B-ORG", "I-ORG", "O", "B-LOC"]]).tolist() == [[1, 2, 2]]
    assert span_counts(gold, gold).tolist() == [[2, 2, 2]]


def test_scores_are_those_of_all_spans_together():
    gold = [["B-PER"], ["B-LOC", "B-LOC", "B-LOC"]]
    said = [["B-PER"], ["B-LOC", "O", "O"]]
    scores = span_scores(gold, said)
    assert scores == (1.0, 0.5, pytest.approx(2 / 3))
    assert float(span_f1(span_counts(gold, said).sum(0))) == pytest.approx(scores.f1)


def test_nothing_to_find_scores_nothing():
    assert span_scores([["O"]], [["O"]]) == (0, 0, 0)


def test_bad_tags_are_named():
    with pytest.raises(ValueError, match="got 'PER'"):
        spans(["PER"])
    with pytest.raises(ValueError, match="Sentence 1 has 2 words, but 1 tags"):
        span_counts([["O"], ["O", "O"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="got 0 for 1"):
        span_counts([["O"]], [])
