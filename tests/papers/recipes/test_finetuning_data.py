"""Seeds and folds: who learns from what."""

from collections import Counter

import pytest

from headwise_papers.data.tasks import Example, TextTask
from headwise_papers.recipes.finetuning_data import folds_of, splits_of


def task(count=40):
    rows = [Example(number % 2, f"text {number // 2}", str(number)) for number in range(count)]
    return TextTask("toy", rows[:30], rows[30:35], rows[35:], ("no", "yes"), "accuracy")


def test_published_parts_are_the_same_for_every_seed():
    one, two = splits_of(task(), seeds=(0, 5), folds=0)
    assert (one.name, two.name, two.seed) == ("seed-0", "seed-5", 5)
    assert one[2:] == two[2:] == (list(range(30)), list(range(30, 35)), list(range(35, 40)))


def test_folds_judge_every_example_once_and_share_no_text():
    splits = splits_of(task(), seeds=(0,), folds=10)
    assert sorted(place for split in splits for place in split.test) == list(range(40))
    for split in splits:
        assert sorted([*split.train, *split.dev, *split.test]) == list(range(40))
        texts = [{place // 2 for place in part} for part in split[2:]]
        assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    assert [split.name for split in splits][-1] == "seed-0-fold-9"


def test_no_text_of_either_side_is_in_two_folds():
    # every question stands twice, in two sentences, and every sentence has three questions
    rows = [Example(n % 2, f"question {n // 2}", f"sentence {n // 6} {n % 2}") for n in range(120)]
    pairs = TextTask("pairs", rows[:80], rows[80:100], rows[100:], ("no", "yes"), "accuracy")
    for split in splits_of(pairs, seeds=(0,), folds=5):
        parts = [{text for at in part for text in rows[at][1:]} for part in split[2:]]
        assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_folds_are_of_about_one_size_and_always_the_same():
    groups = [f"text {number % 70}" for number in range(100)]
    folds = folds_of(groups, 10)
    sizes = Counter(map(len, folds))
    assert max(sizes) - min(sizes) <= 1 and folds_of(groups, 10) == folds


def test_too_few_folds_or_texts_are_refused():
    with pytest.raises(ValueError, match="folds must be 3 or more, and at most the 2 different"):
        folds_of(["a", "b", "a"], 3)
    with pytest.raises(ValueError, match="got 2"):
        splits_of(task(), seeds=(0,), folds=2)
