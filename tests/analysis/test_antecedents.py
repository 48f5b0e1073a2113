import pytest
import torch

from headwise.analysis.antecedents import antecedent_accuracy, antecedent_baselines
from headwise.data.mentions import Passage, make_mention

# Ann told the cook that she likes the cook
WORDS = ("Ann", "told", "the", "cook", "that", "she", "likes", "the", "cook")
SHE = make_mention(WORDS, (5, 6), right=[(0, 1)], wrong=[(2, 4)])
COOK = make_mention(WORDS, (7, 9), right=[(2, 4)], wrong=[(0, 1), (5, 6)])
PASSAGE = Passage(WORDS, " ".join(WORDS), (SHE, COOK))


def test_a_head_is_right_where_its_strongest_word_is_one_of_the_antecedents():
    # three heads: both right, only the noun right, neither
    strongest = torch.tensor([[0, 2], [3, 3], [-1, 8]])
    found = antecedent_accuracy(strongest, [SHE, COOK])
    assert found["coreference"].tolist() == [1.0, 0.5, 0.0]
    assert found["coreference_pronoun"].tolist() == [1.0, 0.0, 0.0]
    assert found["coreference_nominal"].tolist() == [1.0, 1.0, 0.0]
    layered = antecedent_accuracy(strongest[None].expand(4, 3, 2), [SHE, COOK])
    assert layered["coreference"].shape == (4, 3)


def test_words_far_outside_are_wrong():
    found = antecedent_accuracy(torch.tensor([[500, 500]]), [SHE, COOK])
    assert found["coreference"].tolist() == [0.0]


def test_other_numbers_of_mentions_are_refused():
    with pytest.raises(ValueError, match="each of 1 mentions was wanted, got 2"):
        antecedent_accuracy(torch.tensor([[0, 0]]), [SHE])
    with pytest.raises(ValueError, match="give at least one"):
        antecedent_accuracy(torch.zeros(1, 0, dtype=torch.long), [])


def test_rules_reach_what_can_be_counted_by_hand():
    found = antecedent_baselines([PASSAGE])
    assert found["coreference_pronoun"] == {
        "random": 1 / 5,
        "previous": 0.0,
        "first": 1.0,
        "nearest_noun": 0.0,
        "nearest_mention": 0.0,
        "same_word": 0.0,
    }
    assert found["coreference_nominal"] == {
        "random": 2 / 7,
        "previous": 0.0,
        "first": 0.0,
        "nearest_noun": 1.0,
        "nearest_mention": 0.0,
        "same_word": 1.0,
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
