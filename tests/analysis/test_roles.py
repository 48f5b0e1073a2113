"""Roles: thresholds, and that the roles found are the roles planted."""

import doctest

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from headwise.analysis import roles, with_roles
from headwise.analysis.gold import punctuation_gold, rare_gold
from headwise.ops import softmax_attention
from headwise.recording import HeadTable, Pointing, Profile, Reading, Words
from headwise.sites import Head, Site, observe
from headwise_papers.data.batches import pad
from headwise_papers.data.toy import ToyLanguage
from headwise_papers.measures.toy_gold import toy_gold
from tests.recording.planted_heads import pointing_at, site_of

SELF = "encoder.0.self"


def role_of(baselines=None, **row):
    """The role of one head with these measures."""
    table = HeadTable.of({name: {SELF: [value]} for name, value in row.items()})
    return with_roles(table, baselines or {}).row(Head(SELF, 0))["role"]


def roles_of(baselines=None, **row):
    """All roles of one head, strongest first, as they are written."""
    table = HeadTable.of({name: {SELF: [value]} for name, value in row.items()})
    return with_roles(table, baselines or {}).row(Head(SELF, 0))["roles"]


@pytest.mark.parametrize(
    ("offset", "share", "role"),
    [
        (-1, 0.9, "previous"),
        (1, 1.0, "next"),
        (-1, 0.89, None),
        (0, 1.0, None),  # looking at oneself is no neighbour
        (2, 1.0, "offset +2"),
        (-3, 0.95, "offset -3"),
        (None, None, None),
    ],
)
def test_a_positional_head_looks_at_one_distance_nine_times_in_ten(offset, share, role):
    assert role_of(offset=offset, offset_share=share) == role


def test_words_of_another_sentence_are_not_neighbours():
    cross = "decoder.0.cross"
    table = HeadTable.of({"offset": {cross: [-1, 0]}, "offset_share": {cross: [1.0, 1.0]}})
    assert with_roles(table, {})["role"] == ("offset -1", "offset +0")


@pytest.mark.parametrize(("value", "role"), [(0.75, "obj"), (0.625, "obj"), (0.55, None)])
def test_an_annotated_role_is_ten_points_above_the_baseline(value, role):
    assert role_of({"obj": 0.5}, offset=0, offset_share=0.2, obj=value) == role


@pytest.mark.parametrize(
    ("column", "role"),
    [
        ("rarest", "rare words"),
        ("punctuation", "punctuation"),
        ("first_word", "first word"),
        ("special_mass", "sink"),
        ("duplicate", "duplicate"),
        ("induction", "induction"),
    ],
)
def test_other_roles_are_what_most_words_do(column, role):
    assert role_of({column: 0.1}, **{column: 0.5}) == role
    assert role_of({column: 0.1}, **{column: 0.49}) is None


@pytest.mark.parametrize("column", ["rarest", "punctuation", "first_word", "induction"])
def test_a_majority_is_not_enough_where_one_distance_does_as_well(column):
    assert role_of({column: 0.6}, **{column: 0.69}) is None
    assert role_of({column: 0.6}, **{column: 0.71}) is not None


def test_where_all_is_said_twice_a_repeated_word_needs_only_a_majority():
    assert role_of({"induction": 1.0}, induction=0.8) == "induction"
    assert role_of({"punctuation": 1.0}, punctuation=1.0) is None


def test_each_kind_of_head_has_to_beat_its_own_baseline():
    sites = {SELF: [0.7], "decoder.0.self": [0.7]}
    baselines = {"encoder.self: punctuation": 0.2, "decoder.self: punctuation": 0.65}
    found = with_roles(HeadTable.of({"punctuation": sites}), baselines)
    assert found["role"] == ("punctuation", None)
    baselines = {"encoder.self: det_to_head": 0.65, "decoder.self: det_to_head": 0.2}
    found = with_roles(HeadTable.of({"det_to_head": sites}), baselines)
    assert found["role"] == (None, "det_to_head")


@pytest.mark.parametrize("sentences", [3, 60])
def test_few_sentences_make_no_role_of_a_head_that_never_errs(sentences):
    profile = Profile(reading=Reading(range(sentences)))
    keys = [[[1, 2, 3, 4, 5, 5]]] * sentences
    profile(site_of(SELF), pointing_at(keys, 6))
    table = HeadTable.of(profile.drain())
    assert table["offset_share"] == (1.0,)
    assert with_roles(table, {})["role"] == (None if sentences == 3 else "next",)


def test_only_words_after_the_first_tell_whether_a_head_looks_at_the_first():
    assert role_of(first_share=1.0) is None
    assert role_of(first_share=0.2, first_word=1.0) == "first word"


def test_a_causal_head_that_looks_at_itself_has_nothing_to_do_with_marks():
    words, name = ["Tom", "saw", "the", "cat", "today", "."], "decoder.0.self"
    gold = punctuation_gold([words] * 60, "decoder.self")
    ranks = {word: 600 + place for place, word in enumerate(words)}
    gold += rare_gold([words] * 60, ranks.__getitem__, "decoder.self")
    reading = Reading(range(60), gold=gold)
    profile, pointing = Profile(reading=reading), Pointing(reading=reading)
    attended = pointing_at([[[0, 1, 2, 3, 4, 5]]] * 60, 6)
    for recorder in (profile, pointing):
        recorder(site_of(name), attended)
    table = HeadTable.of({**profile.drain(), **pointing.drain()})
    assert with_roles(table, pointing.baselines())["roles"] == (None,)


@pytest.mark.parametrize("column", ["previous", "next", "two_rarest"])
def test_columns_that_only_repeat_others_make_no_role(column):
    assert role_of({column: 0.1}, **{column: 1.0}) is None


@pytest.mark.parametrize(
    ("row", "baselines"),
    [
        ({"offset": -1, "offset_share": 0.95, "offset_share_low": 0.89}, {}),
        ({"obj": 0.7, "obj_low": 0.59}, {"obj": 0.5}),
        ({"rarest": 0.6, "rarest_low": 0.45}, {}),
        ({"obj": 1.0, "obj_low": None}, {"obj": 0.5}),
    ],
)
def test_a_share_that_may_lie_below_its_threshold_makes_no_role(row, baselines):
    assert role_of(baselines, **row) is None
    surer = {name: 1.0 if name.endswith("_low") else value for name, value in row.items()}
    assert role_of(baselines, **surer) is not None


def test_the_strongest_role_is_the_furthest_beyond_its_own_threshold():
    row = {"offset": 0, "offset_share": 0.1, "nsubj": 0.9, "coreference": 0.75}
    assert role_of({"nsubj": 0.75, "coreference": 0.25}, **row) == "coreference"
    # 0.98 is eight tenths of the way from 0.9 to 1, and 0.7 is four tenths from 0.5
    row = {"offset": -1, "offset_share": 0.98, "special_mass": 0.7}
    assert role_of(**row) == "previous" and roles_of(**row) == "previous, sink"
    assert roles_of(**row | {"special_mass": 0.95}) == "sink, previous"


def test_position_explains_a_head_before_grammar_does_when_both_are_certain():
    row = {"offset": 1, "offset_share": 1.0, "amod": 1.0}
    assert roles_of({"amod": 0.5}, **row) == "next, amod"


def test_a_label_not_measured_at_a_site_is_passed_over():
    assert role_of({"alignment": 0.2}, offset=0, offset_share=0.1, alignment=None) is None
    assert roles_of({"alignment": 0.2}, offset=0, offset_share=0.1) is None


def test_roles_come_first_and_other_columns_stay():
    table = HeadTable.of({"offset": {SELF: [1]}, "offset_share": {SELF: [1.0]}})
    found = with_roles(table, {})
    assert list(found.columns) == ["role", "roles", "offset", "offset_share"]
    assert list(table.columns) == ["offset", "offset_share"]
    assert with_roles(found, {}) == found


def test_examples_in_docstrings_hold():
    assert doctest.testmod(roles).attempted and not doctest.testmod(roles).failed


class Planted(nn.Module):
    """A head for each role: its scores are set by hand from the positions it is to look at."""

    roles = ("previous", "next", "nsubj_to_head", "coreference", "obj_to_dependent", None)

    def __init__(self) -> None:
        super().__init__()
        self.site = Site(SELF, len(self.roles), softmax_attention)

    def forward(self, length: int, right: dict[str, Tensor], lengths_B: Tensor) -> Tensor:
        batch, position_T = len(lengths_B), torch.arange(length)
        key_BHT = position_T.repeat(batch, len(self.roles), 1)  # nothing to find: look at oneself
        key_BHT[:, 0] = (position_T - 1).clamp(min=0)
        key_BHT[:, 1] = torch.minimum(position_T + 1, lengths_B[:, None] - 1)
        for head, role in enumerate(self.roles):
            for item, query, key in right.get(role or "", torch.zeros(0, 3)).tolist():
                key_BHT[item, head, query] = key
        zeros_BHT1 = torch.zeros(batch, len(self.roles), length, 1)
        bias_BHTT = 20.0 * one_hot(key_BHT, length)
        return self.site(zeros_BHT1, zeros_BHT1, zeros_BHT1, bias=bias_BHTT, lengths=lengths_B)


@pytest.mark.parametrize("batch_size", [60, 7])
def test_roles_found_are_the_roles_planted(batch_size):
    model, pairs = Planted(), ToyLanguage().pairs(60, seed=1)
    profile, pointing = Profile(), Pointing()
    with observe(model, profile, pointing):
        for start in range(0, len(pairs), batch_size):
            batch = pairs[start : start + batch_size]
            padded = pad([range(len(pair.source)) for pair in batch])
            length = padded.ids.shape[1]
            words = Words.each(torch.arange(length) < padded.lengths[:, None])
            reading = Reading(
                range(start, start + len(batch)), words={"encoder": words}, gold=toy_gold(batch)
            )
            profile.reading = pointing.reading = reading
            model(length, {gold.label: gold.right for gold in reading.gold}, padded.lengths)
    table = HeadTable.of(profile.drain() | pointing.drain())
    found = with_roles(table, pointing.baselines())
    assert found["role"] == Planted.roles
    assert found.row(Head(SELF, 3))["coreference"] == 1
    assert found.row(Head(SELF, 0))["offset_share"] == 1
