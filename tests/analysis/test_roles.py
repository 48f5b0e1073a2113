"""Roles: thresholds, and that the roles found are the roles planted."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from headwise.analysis import toy_gold, with_roles
from headwise.data.batching import pad
from headwise.data.toy import ToyLanguage
from headwise.ops import softmax_attention
from headwise.recording import HeadTable, Pointing, Profile
from headwise.sites import Head, Site, observe

SELF = "encoder.0.self"


def role_of(baselines=None, **row):
    """The role of one head with these measures."""
    table = HeadTable.of({name: {SELF: [value]} for name, value in row.items()})
    return with_roles(table, baselines or {}).row(Head(SELF, 0))["role"]


@pytest.mark.parametrize(
    ("offset", "share", "role"),
    [
        (-1, 0.9, "previous"),
        (1, 1.0, "next"),
        (-1, 0.89, None),
        (0, 1.0, None),  # looking at oneself is no neighbour
        (2, 1.0, None),
        (None, None, None),
    ],
)
def test_a_positional_head_looks_at_one_neighbour_nine_times_in_ten(offset, share, role):
    assert role_of(offset=offset, offset_share=share) == role


@pytest.mark.parametrize(("value", "role"), [(0.75, "obj"), (0.625, "obj"), (0.55, None)])
def test_an_annotated_role_is_ten_points_above_the_baseline(value, role):
    assert role_of({"obj": 0.5}, offset=0, offset_share=0.2, obj=value) == role


def test_the_role_with_the_largest_margin_wins_not_the_largest_share():
    row = {"offset": 0, "offset_share": 0.1, "nsubj": 0.9, "coreference": 0.75}
    assert role_of({"nsubj": 0.75, "coreference": 0.25}, **row) == "coreference"


def test_position_explains_a_head_before_grammar_does():
    assert role_of({"amod": 0.5}, offset=1, offset_share=0.95, amod=0.9) == "next"


def test_a_label_not_measured_at_a_site_is_passed_over():
    assert role_of({"alignment": 0.2}, offset=0, offset_share=0.1, alignment=None) is None


def test_roles_come_first_and_other_columns_stay():
    table = HeadTable.of({"offset": {SELF: [1]}, "offset_share": {SELF: [1.0]}})
    found = with_roles(table, {})
    assert list(found.columns) == ["role", "offset", "offset_share"]
    assert list(table.columns) == ["offset", "offset_share"]


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
            profile.words = {"encoder": torch.arange(length) < padded.lengths[:, None]}
            pointing.gold = toy_gold(batch)
            pointing.count_offsets()
            model(length, {gold.label: gold.right for gold in pointing.gold}, padded.lengths)
    table = HeadTable.of(profile.drain() | pointing.drain())
    found = with_roles(table, pointing.baselines())
    assert found["role"] == Planted.roles
    assert found.row(Head(SELF, 3))["coreference"] == 1
    assert found.row(Head(SELF, 0))["offset_share"] == 1
