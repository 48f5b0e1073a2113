"""Records of columns, and which columns of a table fit a terminal."""

from headwise.recording.columns import COLUMNS as RECORDS
from headwise.recording.columns import (
    WIDE,
    column_of,
    fitting,
    known_columns,
    printing_order,
)

COLUMNS = {
    "role": ["next"],
    "roles": ["next, sink"],
    "confidence": [0.5],
    "confidence_low": [0.4],
    "confidence_high": [0.6],
    "offset_share": [0.25],
}
NAMES = ["roles", "role", "confidence", "offset_share", "not_there"]


def test_a_wide_terminal_shows_intervals_and_all_roles():
    shown = fitting(COLUMNS, NAMES, width=WIDE)
    assert shown == ["roles", "confidence", "confidence_low", "confidence_high", "offset_share"]


def test_a_narrow_one_shows_values_and_the_first_role():
    assert fitting(COLUMNS, NAMES, width=WIDE - 1) == ["role", "confidence", "offset_share"]


def test_columns_that_do_not_fit_are_left_out():
    # two spaces and "role"; two and "confidence" leave too little for "offset share"
    assert fitting(COLUMNS, NAMES, width=6) == ["role"]
    assert fitting(COLUMNS, NAMES, width=18) == ["role", "confidence"]
    assert fitting(COLUMNS, NAMES, width=5) == []


def test_every_column_has_a_name_of_its_own_and_a_meaning():
    assert len({column.name for column in RECORDS}) == len(RECORDS)
    assert all(column.meaning.endswith(".") for column in RECORDS)
    for place in ("importance", "printed"):
        given = [getattr(column, place) for column in RECORDS if getattr(column, place)]
        assert sorted(given) == list(range(1, len(given) + 1))


def test_relations_have_records_of_their_own():
    assert column_of("det_to_head").group == "gold" and column_of("no_such_column") is None


def test_what_says_most_is_printed_first():
    names = ["confidence", "mine", "role", "original"]
    assert printing_order(names) == ["original", "role", "confidence", "mine"]


def test_settings_decide_which_columns_there_may_be():
    off = {"mentions": False, "alignments": False, "relevance": False, "ablation_lines": 0}
    few = known_columns((), sample=1, **off)
    assert "output_norm_low" in few and not {"relevance", "loss_rise", "alignment"} & set(few)
    on = {"mentions": True, "alignments": True, "relevance": True, "ablation_lines": 1}
    many = known_columns(("obj",), sample=1, **on)
    assert {"relevance", "loss_rise", "obj_to_dependent_high", "alignment"} <= set(many)
    assert {"coreference_proper", "entropy"} <= set(many) and "entropy_low" not in many
