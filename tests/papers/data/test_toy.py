"""The toy languages have the structure they promise."""

from collections import Counter, defaultdict
from itertools import combinations

import pytest

from headwise_papers.data.toy import ToyLanguage, ToyPair, frequencies

LANGUAGE = ToyLanguage()
PAIRS = LANGUAGE.pairs(5000, seed=0)
VOWELS = tuple("aeiou")
STEM = 5  # letters of a made-up stem


def target_of(pair: ToyPair, position: int) -> str:
    """The target word aligned to a source position."""
    (place,) = [target for target, source in pair.alignment if source == position]
    return pair.target[place]


def ending_of(pair: ToyPair, position: int) -> str:
    """What follows the stem of a noun, or the l of a pronoun, in the target."""
    return target_of(pair, position)[1 if pair.tags[position] == "PRON" else STEM :]


def arcs_of(pair: ToyPair, relation: str) -> list[tuple[int, int]]:
    return [(arc.head, arc.dependent) for arc in pair.arcs if arc.relation == relation]


def test_the_same_seed_gives_the_same_pairs_and_another_seed_others():
    assert ToyLanguage().pairs(50, seed=3) == LANGUAGE.pairs(50, seed=3)
    assert LANGUAGE.pairs(50, seed=3) != LANGUAGE.pairs(50, seed=4)


def test_fewer_pairs_are_the_beginning_of_more():
    assert LANGUAGE.pairs(600, seed=0) == PAIRS[:600]


def test_the_language_seed_changes_the_target_only():
    other = ToyLanguage(seed=1).pairs(100, seed=0)
    assert [pair.source for pair in other] == [pair.source for pair in PAIRS[:100]]
    assert all(a.target != b.target for a, b in zip(other, PAIRS, strict=False))


def test_the_target_is_a_function_of_the_source():
    small = ToyLanguage(
        nouns=2, transitive_verbs=1, intransitive_verbs=1, adjectives=1, frequency_adverbs=1,
        manner_adverbs=1,
    )  # fmt: skip
    known: dict[tuple[str, ...], ToyPair] = {}
    repeated = Counter[bool]()
    for pair in small.pairs(4000, seed=0):
        repeated[bool(pair.coreference)] += pair.source in known
        assert known.setdefault(pair.source, pair) == pair
    # Both kinds of sentence must come again, or nothing was tested.
    assert min(repeated[False], repeated[True]) > 50


def test_sentences_have_4_to_16_words():
    lengths = {len(pair.source) for pair in PAIRS}
    assert lengths == set(range(4, 17))


def test_every_target_word_is_aligned_to_exactly_one_source_word():
    for pair in PAIRS:
        assert sorted(target for target, _ in pair.alignment) == list(range(len(pair.target)))
        aligned = [source for _, source in pair.alignment]
        assert len(set(aligned)) == len(aligned)
        left_out = set(range(len(pair.source))) - set(aligned)
        assert {pair.source[position] for position in left_out} <= {"a", "some"}


def test_a_source_word_other_than_verbs_and_pronouns_has_one_translation():
    translations: defaultdict[str, set[str]] = defaultdict(set)
    for pair in PAIRS:
        for target, source in pair.alignment:
            translations[pair.source[source]].add(pair.target[target])
    several = {word for word, forms in translations.items() if len(forms) > 1}
    tags = {
        tag for pair in PAIRS for word, tag in zip(pair.source, pair.tags, strict=True)
        if word in several
    }  # fmt: skip
    assert tags == {"VERB", "PRON"}
    assert len(translations["saw"]) == 4
    assert translations["it"] == {"lo", "la"}
    assert translations["they"] == translations["them"] == {"loi", "lai"}


def test_arcs_join_words_of_the_right_classes():
    wanted = {
        "nsubj": ({"VERB"}, {"NOUN", "PRON"}),
        "obj": ({"VERB"}, {"NOUN", "PRON"}),
        "amod": ({"NOUN"}, {"ADJ"}),
        "advmod": ({"VERB"}, {"ADV"}),
    }
    seen: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for pair in PAIRS:
        for arc in pair.arcs:
            seen[arc.relation][0].add(pair.tags[arc.head])
            seen[arc.relation][1].add(pair.tags[arc.dependent])
    assert seen == wanted


def test_every_word_that_should_have_a_head_has_one():
    for pair in PAIRS:
        dependents = sorted(arc.dependent for arc in pair.arcs)
        having = {"NOUN", "PRON", "ADJ", "ADV"}
        assert dependents == [place for place, tag in enumerate(pair.tags) if tag in having]
        verbs = [place for place, tag in enumerate(pair.tags) if tag == "VERB"]
        assert sorted(head for head, _ in arcs_of(pair, "nsubj")) == verbs


def test_the_verb_agrees_with_its_subject_whatever_else_stands_there():
    for pair in PAIRS:
        for verb, subject in arcs_of(pair, "nsubj"):
            assert target_of(pair, verb)[STEM:] == "t" + ending_of(pair, subject)


def test_two_sentences_that_differ_only_in_the_subject_have_different_target_verbs():
    small = ToyLanguage(transitive_verbs=1, adjectives=1, frequency_adverbs=1, manner_adverbs=1)
    by_rest: defaultdict[tuple[str, ...], list[ToyPair]] = defaultdict(list)
    for pair in small.pairs(2000, seed=5):
        if not pair.coreference and arcs_of(pair, "obj"):
            ((_, subject),) = arcs_of(pair, "nsubj")
            by_rest[(*pair.source[:subject], "?", *pair.source[subject + 1 :])].append(pair)
    differ = Counter[bool]()
    for pairs in by_rest.values():
        for one, other in combinations(pairs[:5], 2):
            ((verb, subject),) = arcs_of(one, "nsubj")
            if one.source[subject] != other.source[subject]:
                differ[target_of(one, verb) != target_of(other, verb)] += 1
    # Two nouns may share gender and number, so the verb differs often but not always.
    assert differ.total() > 50
    assert 0.25 < differ[True] / differ.total() < 0.95


def test_no_fixed_offset_finds_the_subject():
    offsets = Counter(verb - subject for pair in PAIRS for verb, subject in arcs_of(pair, "nsubj"))
    assert set(offsets) == {1, 2, 3}
    assert max(offsets.values()) < 0.6 * offsets.total()


def test_the_antecedent_is_an_earlier_noun_and_the_only_one_of_its_number():
    plural = {"it": False, "they": True, "them": True}
    seen = Counter[str]()
    for pair in PAIRS:
        for pronoun, antecedent in pair.coreference:
            word = pair.source[pronoun]
            same_number = [
                place for place, tag in enumerate(pair.tags)
                if tag == "NOUN" and pair.source[place].endswith("s") == plural[word]
            ]  # fmt: skip
            assert same_number == [antecedent]
            assert antecedent < pronoun
            seen[word] += 1
        pronouns = [place for place, tag in enumerate(pair.tags) if tag == "PRON"]
        assert sorted(pronoun for pronoun, _ in pair.coreference) == pronouns
    assert set(seen) == set(plural)


def test_the_target_pronoun_has_the_gender_and_number_of_the_antecedent():
    seen = set[str]()
    for pair in PAIRS:
        for pronoun, antecedent in pair.coreference:
            assert ending_of(pair, pronoun) == ending_of(pair, antecedent)
            seen.add(target_of(pair, pronoun))
    assert seen == {"lo", "la", "loi", "lai"}


def test_the_antecedent_is_sometimes_the_subject_and_sometimes_the_object():
    relations = Counter(
        arc.relation
        for pair in PAIRS
        for _, antecedent in pair.coreference
        for arc in pair.arcs
        if arc.dependent == antecedent
    )
    assert min(relations["nsubj"], relations["obj"]) > 0.2 * relations.total()


def test_the_target_is_reordered():
    crossing = 0
    for pair in PAIRS:
        sources = [source for _, source in sorted(pair.alignment)]
        crossing += sources != sorted(sources)
    assert crossing > 0.9 * len(PAIRS)


def test_the_target_order_is_adverb_subject_object_verb_and_noun_adjective():
    for pair in PAIRS:
        place = {source: target for target, source in pair.alignment}
        subject = dict(arcs_of(pair, "nsubj"))
        for verb, adverb in arcs_of(pair, "advmod"):
            assert place[adverb] < place[subject[verb]]
        for verb, thing in arcs_of(pair, "obj"):
            assert place[subject[verb]] < place[thing] < place[verb]
        for noun, adjective in arcs_of(pair, "amod"):
            assert place[adjective] - place[noun] == noun - adjective


def test_word_frequencies_follow_zipf_with_rare_words():
    counts = frequencies(PAIRS)
    nouns = {word for pair in PAIRS for word, tag in zip(pair.source, pair.tags, strict=True)
             if tag == "NOUN"}  # fmt: skip
    ranked = sorted((counts[word] for word in nouns), reverse=True)
    rarest = ranked[-len(ranked) // 10 :]
    assert max(rarest) * 20 < ranked[0]
    assert min(rarest) > 0


def test_counted_frequencies_agree_with_the_true_ones():
    counts = frequencies(PAIRS)
    total = sum(counts.values())
    assert set(counts) == set(LANGUAGE.source_words)
    for word, count in counts.items():
        expected = LANGUAGE.frequency(word) * total
        assert abs(count - expected) < 6 * expected**0.5
    assert sum(map(LANGUAGE.frequency, LANGUAGE.source_words)) == pytest.approx(1.0)


def test_the_lexicons_are_sorted_moderate_and_hold_all_words_used():
    used = set(frequencies(PAIRS, side="target"))
    assert used <= set(LANGUAGE.target_words)
    assert 200 <= len(LANGUAGE.source_words) <= 300
    for words in (LANGUAGE.source_words, LANGUAGE.target_words):
        assert list(words) == sorted(set(words))
    assert set(LANGUAGE.source_words) & set(LANGUAGE.target_words) == {"."}


def test_a_word_belongs_to_one_class_and_a_is_never_followed_by_a_vowel():
    tags: defaultdict[str, set[str]] = defaultdict(set)
    for pair in PAIRS:
        for word, tag, following in zip(pair.source, pair.tags, pair.source[1:], strict=False):
            tags[word].add(tag)
            assert word != "a" or not following.startswith(VOWELS)
    assert all(len(classes) == 1 for classes in tags.values())


def test_larger_classes_are_filled_up_with_made_up_rare_words():
    language = ToyLanguage(nouns=500)
    assert len(language.source_words) == len(LANGUAGE.source_words) + 2 * 440
    new = set(language.source_words) - set(LANGUAGE.source_words)
    assert max(map(language.frequency, new)) < min(map(language.frequency, ("narwhal", "capybara")))


@pytest.mark.parametrize("size", [1000, 2000])
def test_no_word_stands_for_two_however_large_the_classes(size):
    classes = ("nouns", "transitive_verbs", "intransitive_verbs", "adjectives")
    classes = (*classes, "frequency_adverbs", "manner_adverbs")
    language = ToyLanguage(**dict.fromkeys(classes, size))
    # function words, and of each class its words, of nouns two forms each
    assert len(language.source_words) == 10 + (len(classes) + 1) * size
    for name in classes:  # a made-up word may take the place of a listed one of another class
        alone = ToyLanguage(**{name: size})
        forms = 2 if name == "nouns" else 1
        added = forms * (size - getattr(LANGUAGE, name))
        assert len(alone.source_words) == len(LANGUAGE.source_words) + added


def test_bad_settings_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="nouns must be 1 to 2000 words, got 0"):
        ToyLanguage(nouns=0)
    with pytest.raises(ValueError, match="must not be negative"):
        ToyLanguage(zipf_exponent=-1.0)
    with pytest.raises(ValueError, match="1 or more, got 0"):
        LANGUAGE.pairs(0, seed=0)
    with pytest.raises(ValueError, match="'unicorn' is no word"):
        LANGUAGE.frequency("unicorn")
