import pytest

from headwise_papers.data.annotations import (
    LEVELS,
    REFLEXIVES,
    Reflexive,
    read_reflexives,
    with_distractors,
)

SIMPLE = Reflexive(("our", "prince", "will", "love", "himself"), 0, 4, (0, 1), ())
OTHERS = Reflexive(
    ("my", "nun", "can", "hit", "the", "king", "by", "herself"), 1, 7, (0, 1), (4, 5)
)
TOUCHING = Reflexive(("the", "king", "himself"), 0, 2, (0, 1), ())


def said(passage, places):
    return [passage.words[place] for place in places]


def put(folder, *lines):
    path = folder / REFLEXIVES.name
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def test_rows_become_sentences_with_the_places_of_their_words(tmp_path):
    put(
        tmp_path,
        "refl.0\tour prince will love himself\t4\t0 1",
        "refl.1\tmy nun can hit the king by herself\t7\t0 1\t4 5",
    )
    assert read_reflexives(folder=tmp_path, verify=False) == [SIMPLE, OTHERS]


def test_a_row_of_another_form_is_refused_with_its_number(tmp_path):
    put(tmp_path, "refl.0\tour prince will love himself\t4\t0 1", "refl.0\tno places")
    with pytest.raises(ValueError, match=r"line 2: refl.LEVEL, a sentence .* got 'refl.0"):
        read_reflexives(folder=tmp_path, verify=False)


@pytest.mark.parametrize("where", ["after", "before", "none"])
def test_reflexive_and_antecedent_keep_their_meaning_wherever_the_other_sentence_is(where):
    for seed in range(5):
        for passage in with_distractors([SIMPLE, OTHERS], where=where, seed=seed):
            (mention,) = passage.mentions
            assert said(passage, [mention.head])[0].endswith("self")
            assert said(passage, mention.antecedents) in (["our", "prince"], ["my", "nun"])
            assert mention.kind == "pronoun"
            assert not set(mention.antecedents) & set(mention.distractors)
            assert passage.words[-1] == "."
            assert passage.text.count(" .") == (1 if where == "none" else 2)


def test_somebody_else_is_named_before_or_after():
    (after,) = with_distractors([SIMPLE], where="after")
    (before,) = with_distractors([SIMPLE], where="before")
    (alone,) = with_distractors([SIMPLE], where="none")
    assert min(after.mentions[0].distractors) > after.mentions[0].head
    assert before.mentions[0].distractors == (0, 1)
    assert alone.mentions[0].distractors == ()


def test_another_place_for_it_is_refused(unchecked):
    with pytest.raises(ValueError, match="where must be 'after', 'before' or 'none', got 'aft'"):
        with_distractors([SIMPLE], where="aft")


def test_the_word_before_is_never_the_antecedent():
    assert len(with_distractors([SIMPLE, TOUCHING])) == 1


def test_a_seed_draws_the_same_sentences_none_of_them_twice():
    many = [Reflexive((str(number), *SIMPLE.words[1:]), 0, 4, (0, 1), ()) for number in range(50)]
    drawn = with_distractors(many, count=20, seed=3)
    assert drawn == with_distractors(many, count=20, seed=3)
    assert drawn != with_distractors(many, count=20, seed=4)
    assert len({passage.words[0] for passage in drawn}) == 20
    assert len(with_distractors(many, count=99)) == 50


def test_the_published_files_are_joined_as_rows():
    parts = []
    for level in LEVELS:
        sentence = " ".join((OTHERS if level else SIMPLE).words)
        places = "x\t7\t0 1\t4 5 " if level else "x\t4\t0 1\t"
        parts += [f"{sentence}\n".encode(), f"{places}\n".encode()]
    assert REFLEXIVES.make is not None
    with pytest.raises(ValueError):  # a missing row does not go unseen
        REFLEXIVES.make([*parts[:-1], b""])
    made = REFLEXIVES.make([part.rstrip(b"\n") for part in parts]).decode().splitlines()
    assert made[0] == "refl.0\tour prince will love himself\t4\t0 1"
    assert made[8] == "refl.8\tmy nun can hit the king by herself\t7\t0 1\t4 5"


def test_the_set_at_hand_has_nine_levels_and_its_first_words_are_meant(data_folder):
    sentences = read_reflexives(folder=data_folder)
    assert [sum(one.level == level for one in sentences) for level in LEVELS] == [2000] * 9
    assert all(one.antecedent == (0, 1) for one in sentences)
    assert all(one.place == len(one.words) - 1 for one in sentences)
