import pytest

from headwise.analysis.antecedents import antecedent_baselines, sieve
from headwise.text.mentions import Passage, make_mention

# Ann told the cook that she likes the cook
WORDS = ("Ann", "told", "the", "cook", "that", "she", "likes", "the", "cook")
SHE = make_mention(WORDS, (5, 6), right=[(0, 1)], wrong=[(2, 4)])
COOK = make_mention(WORDS, (7, 9), right=[(2, 4)], wrong=[(0, 1), (5, 6)])
PASSAGE = Passage(WORDS, " ".join(WORDS), (SHE, COOK))


def test_rules_reach_what_can_be_counted_by_hand():
    found = antecedent_baselines([PASSAGE])
    assert found["coreference_pronoun"] == {
        "random": 1 / 5,
        "previous": 0.0,
        "first": 1.0,
        "nearest_noun": 0.0,
        "nearest_mention": 0.0,
        "same_word": 0.0,
        "sieve": 0.0,  # a cook may be a woman, and stands nearer
    }
    assert found["coreference_nominal"] == {
        "random": 2 / 7,
        "previous": 0.0,
        "first": 0.0,
        "nearest_noun": 1.0,
        "nearest_mention": 0.0,
        "same_word": 1.0,
        "sieve": 1.0,
    }
    pronoun, nominal = found["coreference_pronoun"], found["coreference_nominal"]
    assert found["coreference"] == {
        rule: pytest.approx((pronoun[rule] + nominal[rule]) / 2) for rule in pronoun
    }


def test_a_mention_with_nothing_before_it_is_never_resolved_by_a_rule():
    words = ("She", "is", "Ann")
    she = make_mention(words, (0, 1), right=[(2, 3)], wrong=[])
    reached = antecedent_baselines([Passage(words, "She is Ann", (she,))])["coreference"]
    assert set(reached.values()) == {0.0}


@pytest.mark.parametrize(
    ("text", "mention", "others", "found"),
    [
        ("the old man saw the man and the old man", (7, 10), [(0, 3), (4, 6)], 2),  # the same words
        ("the old man saw Ann and the man", (6, 8), [(0, 3), (4, 5)], 2),  # the same head word
        ("Mr. Lee saw Miss Poe and he", (6, 7), [(0, 2), (3, 5)], 1),  # gender
        ("the girls saw James and they", (5, 6), [(0, 2), (3, 4)], 1),  # number
        ("I saw Ann and my", (4, 5), [(0, 1), (2, 3)], 0),  # person
        ("his wife saw it and she", (5, 6), [(0, 2), (3, 4)], 1),  # "his" is not of the wife
        ("the ship saw the crews and we", (6, 7), [(0, 2), (3, 5)], 4),  # nothing: the nearest
        ("and we saw Ann", (1, 2), [], -1),
    ],
)
def test_the_sieve_takes_the_nearest_mention_of_the_first_kind_there_is(
    text, mention, others, found
):
    words = tuple(text.split())
    asked = make_mention(words, mention, right=others[:1], wrong=others[1:])
    assert sieve(Passage(words, text, (asked,)), asked) == found


def test_the_sieve_tells_mentions_apart_that_stand_side_by_side_if_they_are_asked_for():
    text = "Ann met her and gave her Ann a hat of her own"
    words = tuple(text.split())
    ann, her, again = (
        make_mention(words, (2, 3), right=[(0, 1)], wrong=[]),
        make_mention(words, (6, 7), right=[(0, 1), (2, 3), (5, 6)], wrong=[]),
        make_mention(words, (10, 11), right=[(0, 1)], wrong=[(5, 6), (6, 7)]),
    )
    assert sieve(Passage(words, text, (ann, her, again)), again) == 5
