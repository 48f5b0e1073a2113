"""Which columns of a table fit a terminal."""

from headwise.recording.head_cells import WIDE, fitting

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
