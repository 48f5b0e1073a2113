"""The names to learn: pinned, so that adding, renaming or removing one is a decision."""

import pytest

import headwise

NAMES = [
    "Attended",
    "Head",
    "HeadTable",
    "Run",
    "Site",
    "adopt",
    "check_parity",
    "entmax_attention",
    "find_sites",
    "gated",
    "gaussian_attention",
    "guide",
    "inspect",
    "masked",
    "observe",
    "prune",
    "release",
    "replace",
    "softmax_attention",
    "sparsemax_attention",
    "topk_attention",
    "uniform_attention",
]


def test_there_are_few_names_in_order():
    assert headwise.__all__ == NAMES == sorted(NAMES)
    assert len(NAMES) <= 24  # more are more to learn: another one is a decision


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name):
    thing = getattr(headwise, name)
    assert callable(thing) and thing.__module__.startswith("headwise.")
    written = (thing.__doc__ or "").strip()
    assert written and not written.startswith(f"{name}(")  # a dataclass's own is no docstring


def test_dir_lists_the_names():
    assert set(dir(headwise)) >= {*NAMES, "__version__"}


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"has no name 'sparse_attention'; it has Attended"):
        _ = headwise.sparse_attention


def test_star_brings_the_names_and_nothing_else():
    scope: dict[str, object] = {}
    exec("from headwise import *", scope)
    assert {name for name in scope if not name.startswith("__")} == set(NAMES)
