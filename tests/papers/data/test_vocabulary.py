"""Words become numbers and come back."""

import json

import pytest

from headwise_papers.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

SENTENCES = [["the", "dog", "saw", "the", "cat"], ["a", "cat", "slept"]]
VOCABULARY = Vocabulary.from_sentences(SENTENCES)


@pytest.mark.parametrize("sentence", SENTENCES, ids=" ".join)
def test_known_words_come_back(sentence):
    assert VOCABULARY.decode(VOCABULARY.encode(sentence)) == sentence


def test_the_marks_come_first_then_words_by_count_then_alphabetically():
    assert VOCABULARY.words == (*SPECIALS, "cat", "the", "a", "dog", "saw", "slept")
    assert [VOCABULARY.words[mark] for mark in (PAD, BOS, EOS, UNK)] == list(SPECIALS)
    assert len(VOCABULARY) == 10


def test_rare_words_are_left_out_and_encoded_as_unknown():
    vocabulary = Vocabulary.from_sentences(SENTENCES, minimum_count=2)
    assert vocabulary.encode(["the", "dog"]) == [vocabulary.words.index("the"), UNK]


def test_decoding_stops_at_eos_drops_padding_and_shows_unknown_words():
    the = VOCABULARY.words.index("the")
    assert VOCABULARY.decode([BOS, the, UNK, PAD, EOS, the]) == ["the", "<unk>"]


def test_text_never_turns_into_a_mark():
    vocabulary = Vocabulary.from_sentences([["<eos>", "dog", "<pad>"]])
    assert vocabulary.words == (*SPECIALS, "dog")
    assert vocabulary.encode(["<eos>", "<pad>"]) == [UNK, UNK]


def test_json_round_trip_is_a_plain_list():
    vocabulary = Vocabulary.from_sentences([["naïve", '"quoted"']])
    assert json.loads(vocabulary.to_json()) == list(vocabulary.words)
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "JSON list of words"),
        ("{}", "JSON list of words"),
        ("[1, 2]", "JSON list of words"),
        ("[]", "starts with <pad>"),
        ('["dog"]', "starts with <pad>"),
        (json.dumps([*SPECIALS, "dog", "dog"]), "'dog' came again"),
    ],
)
def test_what_is_no_vocabulary_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.from_json(text)


@pytest.mark.parametrize("number", [-1, 10])
def test_an_id_outside_the_vocabulary_is_refused(number):
    with pytest.raises(ValueError, match=f"from 0 to 9 here, got {number}"):
        VOCABULARY.decode([number])


def test_a_minimum_count_below_one_is_refused():
    with pytest.raises(ValueError, match="minimum_count must be 1 or more, got 0"):
        Vocabulary.from_sentences(SENTENCES, minimum_count=0)
