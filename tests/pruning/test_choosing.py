"""Which heads are kept by a measure, by trying, and by chance."""

import pytest
import torch

from headwise.pruning import choosing
from headwise.recording import HeadTable
from headwise.sites import find_sites
from tests.pruning.worth import Worth

WORTH = torch.tensor([[1.0, 9.0, 4.0, 2.0], [7.0, 3.0, 8.0, 0.5]], dtype=torch.float64)
TABLE = HeadTable.of({"worth": {f"encoder.{i}.self": row for i, row in enumerate(WORTH)}})


def count(keep):
    return sum(map(len, keep.values()))


def test_the_largest_values_are_kept_and_emptied_sites_are_named():
    assert choosing.by_column(TABLE, "worth", 3) == {
        "encoder.0.self": [1],
        "encoder.1.self": [0, 2],
    }
    assert choosing.by_column(TABLE, "worth", 1) == {"encoder.0.self": [1], "encoder.1.self": []}
    assert count(choosing.by_column(TABLE, "worth", 0)) == 0
    assert choosing.by_column(TABLE, "worth", 2, lowest=True) == {
        "encoder.0.self": [0],
        "encoder.1.self": [3],
    }


def test_heads_outside_where_are_not_named():
    assert choosing.by_column(TABLE, "worth", 2, where="encoder.1.*") == {"encoder.1.self": [0, 2]}


def test_of_equal_heads_the_first_stay():
    table = HeadTable.of({"same": {"encoder.10.self": [1, 1], "encoder.9.self": [1, 1]}})
    assert choosing.by_column(table, "same", 3) == {
        "encoder.10.self": [0, 1],
        "encoder.9.self": [0],
    }


def test_groups_stay_or_go_whole():
    # means 5, 3, 5, 4.25
    assert choosing.by_column(TABLE, "worth", 4, group=2) == {
        "encoder.0.self": [0, 1],
        "encoder.1.self": [0, 1],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "wort", "count": 1}, "no column 'wort'"),
        ({"column": "worth", "count": 9}, "between 0 and the 8 heads there are, got 9"),
        ({"column": "worth", "count": 1, "where": "decoder.*"}, "chooses no head of the table"),
        ({"column": "worth", "count": 3, "group": 2}, "multiple of the group of 2 heads, got 3"),
        ({"column": "worth", "count": 3, "group": 3}, "cannot be grouped by 3"),
        ({"column": "worth", "count": 3, "group": 0}, "group must be at least 1"),
    ],
)
def test_what_cannot_be_chosen_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        choosing.by_column(TABLE, **options)


def test_heads_without_a_value_are_refused():
    table = HeadTable.of({"worth": {"encoder.0.self": [1.0, None]}})
    with pytest.raises(ValueError, match=r"'worth' holds None at encoder\.0\.self\.1"):
        choosing.by_column(table, "worth", 1)


def test_chance_keeps_as_many_as_said_and_repeats():
    model = Worth(WORTH)
    keeps = [choosing.random(model, 3, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert keeps[0] == keeps[1] and len({str(keep) for keep in keeps}) > 1
    assert all(count(keep) == 3 for keep in keeps)
    assert list(choosing.random(model, 1, where="encoder.1.*")) == ["encoder.1.self"]
    whole = choosing.random(model, 4, seed=1, group=2)
    assert all(kept in ([], [0, 1], [2, 3], [0, 1, 2, 3]) for kept in whole.values())


def test_chance_keeps_every_head_equally_often():
    model, seeds = Worth(WORTH), 400
    hits = torch.zeros(2, 4)
    for seed in range(seeds):
        for name, kept in choosing.random(model, 2, seed=seed).items():
            hits[int(name.split(".")[1]), kept] += 1
    assert (hits / seeds - 0.25).abs().max() < 0.09  # four deviations


@pytest.mark.parametrize("at_once", [1, 3])
def test_greedy_finds_the_heads_of_most_worth_and_leaves_the_model_alone(at_once):
    model, told = Worth(WORTH), []
    keep = choosing.greedy(
        model,
        lambda model: model().item(),
        3,
        better="lower",
        at_once=at_once,
        progress=lambda done, total: told.append((done, total)),
    )
    assert keep == model.best(3)
    assert not any(site.changes for site in find_sites(model))
    total = {1: 8 + 7 + 6 + 5 + 4, 3: 8 + 5}[at_once]
    assert told == [(done, total) for done in range(total + 1)]


def test_greedy_can_look_for_the_higher():
    model = Worth(WORTH)
    keep = choosing.greedy(model, lambda model: -model().item(), 2, where="encoder.1.*")
    assert keep == {"encoder.1.self": [0, 2]}
    worst = choosing.greedy(model, lambda model: model().item(), 2)
    assert worst == {"encoder.0.self": [0], "encoder.1.self": [3]}


def test_greedy_does_not_rank_by_what_is_no_number():
    with pytest.raises(ValueError, match="measures nan, so it cannot be ranked"):
        choosing.greedy(Worth(WORTH), lambda model: float("nan"), 2)


def test_greedy_sees_what_heads_are_worth_together():
    """Heads 0 and 1 say the same: either can go, not both, though each alone is worth nothing."""
    model = Worth(torch.tensor([[1.0, 1.0, 0.6, 0.0]]))

    def lost(model):
        said_H = model.layers[0](torch.ones(1, 4, 1, 1))
        return (torch.maximum(said_H[0], said_H[1]) * 1.0 + said_H[2] * 0.6).item()

    keep = choosing.greedy(model, lost, 2)["encoder.0.self"]
    assert keep == [1, 2]
