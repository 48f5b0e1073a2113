"""Measures of classes against written-out definitions, and what a paired test may claim."""

import math

import pytest
import torch

from headwise_papers.measures.classification import (
    Part,
    accuracy,
    confusion,
    f1,
    macro_f1,
    matthews,
    paired_test,
    student_p,
)

GOLD = [1, 1, 1, 0, 0, 1, 0, 1, 0, 0]
SAID = [1, 0, 1, 0, 1, 1, 0, 1, 0, 1]  # 4 true positives, 2 false ones, 1 missed


def table(gold=GOLD, said=SAID, classes=2):
    return confusion(gold, said, classes=classes).sum(0)


def test_measures_of_two_classes_are_those_of_the_textbook():
    assert table().tolist() == [[3, 2], [1, 4]]
    assert float(accuracy(table())) == pytest.approx(0.7)
    precision, recall = 4 / 6, 4 / 5
    wanted = 2 * precision * recall / (precision + recall)
    assert float(f1(table())) == pytest.approx(wanted)
    other = 2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5)
    assert float(f1(table(), positive=0)) == pytest.approx(other)
    assert float(macro_f1(table())) == pytest.approx((wanted + other) / 2)
    assert float(matthews(table())) == pytest.approx((4 * 3 - 2 * 1) / math.sqrt(6 * 5 * 5 * 4))


def test_matthews_is_the_correlation_of_the_labels():
    both = torch.tensor([GOLD, SAID], dtype=torch.float64)
    assert float(matthews(table())) == pytest.approx(float(torch.corrcoef(both)[0, 1]))


def test_more_classes_do_not_change_what_two_of_them_say():
    for measure in (accuracy, matthews):
        assert float(measure(table(classes=4))) == pytest.approx(float(measure(table())))


def test_a_model_that_says_one_class_correlates_with_nothing():
    constant = table([0, 1, 1], [1, 1, 1])
    assert float(matthews(constant)) == 0
    assert float(f1(constant, positive=0)) == 0


def test_tables_are_judged_side_by_side():
    both = torch.stack([table(), table(GOLD, GOLD)])
    assert accuracy(both).tolist() == pytest.approx([0.7, 1.0])
    assert matthews(both)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [  # from tables of the distribution
        (12.706, 1, 0.05),
        (2.262, 9, 0.05),
        (3.250, 9, 0.01),
        (-2.262, 9, 0.05),
        (4.303, 2, 0.05),
        (1.984, 100, 0.05),
        (0.0, 5, 1.0),
        (0.0001, 5, 0.99992),
    ],
)
def test_p_values_are_those_of_the_tables(t, degrees, p):
    assert student_p(t, degrees) == pytest.approx(p, rel=1e-3)


def test_p_values_of_one_degree_are_those_of_the_cauchy_distribution():
    for t in (0.01, 0.5, 1.0, 3.0, 200.0):
        assert student_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-9)


def parts(correct, classes=2):
    """Parts of examples that are all of class 1, of which some are said rightly."""
    made, first = [], 0
    for row in correct:
        numbers = list(range(first, first + len(row)))
        made.append(Part(numbers, confusion([1] * len(row), row, classes=classes)))
        first += len(row)
    return made


def test_student_over_parts_is_the_formula():
    a, b = parts([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 1]]), parts([[0, 1, 0, 0]] * 3)
    found = paired_test(a, b, accuracy)
    assert found.difference == pytest.approx((0.5 + 0.75 + 0.25) / 3)
    t = 0.5 / (0.25 / math.sqrt(3))
    assert found.t == pytest.approx(t) and found.p == pytest.approx(student_p(t, 2))
    corrected = paired_test(a, b, accuracy, overlap=0.5)
    assert corrected.t == pytest.approx(0.5 / (0.25 * math.sqrt(1 / 3 + 0.5)))
    assert corrected.p > found.p


def test_two_equal_models_do_not_differ():
    same = parts([[1, 0, 1], [1, 1, 0]])
    found = paired_test(same, same, accuracy)
    assert (found.difference, found.t, found.p) == (0, None, 1.0)
    assert found.bootstrap_low == found.bootstrap_high == 0 and found.bootstrap_p == 1


def test_parts_that_all_differ_by_the_same_prove_nothing_by_students_test():
    a, b = parts([[1, 1, 0, 0]] * 2), parts([[1, 0, 0, 0]] * 2)
    found = paired_test(a, b, accuracy)
    assert (found.difference, found.t, found.p) == (0.25, None, None)
    assert found.bootstrap_p > 0.05  # of 8 examples 2 differ


def test_the_bootstrap_is_of_the_mean_over_parts():
    # the large part differs by 1/60, the small one by 1/2: all examples alike would give 0.03
    a, b = parts([[1] * 60, [1, 1]]), parts([[0] + [1] * 59, [0, 1]])
    found = paired_test(a, b, accuracy, samples=4000)
    assert found.difference == pytest.approx((1 / 60 + 1 / 2) / 2)
    assert found.bootstrap_low < found.difference < found.bootstrap_high
    assert found.bootstrap_high > 0.45


def test_the_bootstrap_agrees_with_the_sign_test_it_approximates():
    # 30 examples, of which the first model alone has 9 right, and the second alone 1
    a, b = parts([[1] * 9 + [0] + [1] * 20]), parts([[0] * 9 + [1] + [1] * 20])
    found = paired_test(a, b, accuracy, samples=4000)
    sign = 2 * sum(math.comb(10, k) for k in (0, 1)) / 2**10
    assert found.t is None and found.p is None  # one part says nothing of other trainings
    assert found.difference == pytest.approx(8 / 30)
    assert found.bootstrap_low > 0 and 0 < found.bootstrap_p < 2 * sign
    assert paired_test(b, a, accuracy, samples=4000).bootstrap_high < 0


def test_an_example_that_several_seeds_judged_is_drawn_as_one():
    row = [1, 0, 1, 1, 0, 1, 0, 0, 1, 0]
    once = [Part(list(range(10)), confusion([1] * 10, row, classes=2))]
    never = [Part(list(range(10)), confusion([1] * 10, [0] * 10, classes=2))]
    found, thrice = (paired_test(once * n, never * n, accuracy) for n in (1, 3))
    # three seeds that say the same are no more evidence than one
    assert thrice.bootstrap_low == pytest.approx(found.bootstrap_low)
    assert thrice.bootstrap_high == pytest.approx(found.bootstrap_high)


def test_only_the_same_examples_can_be_compared():
    a, b = parts([[1, 0], [1, 1]]), parts([[1, 0, 0], [1]])
    with pytest.raises(ValueError, match="Part 0 of the two models was judged on different"):
        paired_test(a, b, accuracy)
    with pytest.raises(ValueError, match="as many parts each"):
        paired_test(a, b[:1], accuracy)
    with pytest.raises(ValueError, match="One prediction for each"):
        confusion([1], [], classes=2)
    with pytest.raises(ValueError, match="1 degree of freedom"):
        student_p(1.0, 0)
