"""Patterns, plans and how alpha falls."""

import pytest

from headwise.guidance import CONVENTIONS, Plan, Strength, pattern

TOKENS = {"delim": (0, 2), "period": (4,)}


def test_heads_get_patterns_in_the_order_of_the_published_code():
    plan = Plan(next=1, prev=1, first=2, delim=1, period=1, tokens=TOKENS)
    names = [aim.name for aim in plan.aims.values()]
    assert plan.heads == (0, 1, 2, 3, 4, 5)
    assert names == ["next", "prev", "first", "first", "delim", "period"]
    assert plan.aims[0].offset == 1 and plan.aims[1].offset == -1
    assert plan.aims[4].tokens == (0, 2) and plan.aims[2].tokens == ()


def test_a_plan_may_say_the_pattern_of_each_head():
    plan = Plan({5: pattern("tokens", tokens=[7]), 2: pattern("offset", offset=-3)})
    assert plan.heads == (2, 5) and plan.aims[2].offset == -3


@pytest.mark.parametrize(("share", "guided"), [(1 / 4, 3), (1 / 2, 6), (3 / 4, 9), (1, 12)])
def test_a_fraction_of_the_heads_is_one_next_one_prev_and_first(share, guided):
    assert Plan.fraction(share, heads=12) == Plan(next=1, prev=1, first=guided - 2)


def test_half_a_head_counts_as_one():
    assert [len(Plan.fraction(1 / 2, heads=heads).heads) for heads in (5, 7, 9)] == [3, 4, 5]


def test_a_plan_can_be_written_as_text():
    assert Plan.parse("next=1,prev=1,first=4") == Plan(next=1, prev=1, first=4)
    assert Plan.parse("period=2", tokens=TOKENS) == Plan(period=2, tokens=TOKENS)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pattern("frist"), "There is no pattern 'frist'. Did you mean 'first'?"),
        (lambda: pattern("period"), "'period' needs the numbers of its tokens as tokens="),
        (lambda: pattern("next", tokens=[3]), "'next' takes no tokens="),
        (lambda: pattern("offset"), "'offset' needs offset="),
        (lambda: pattern("first", offset=1), "'first' takes no offset="),
        (lambda: pattern("offset", offset=1.5), "whole number"),
        (lambda: pattern("tokens", tokens=["."]), "A token must be a whole number"),
        (lambda: pattern("tokens", tokens=[3, -1]), "must be a token's number, 0 or more, got -1"),
        (lambda: pattern("tokens", tokens=5), "tokens= takes the numbers of tokens"),
        (lambda: Plan(), "The plan guides no head"),
        (lambda: Plan({-1: pattern("next")}), "numbered from 0 on, got -1"),
        (lambda: Plan({0: pattern("next")}, prev=1), "not both"),
        (lambda: Plan(next=-1), "0 or more, got -1"),
        (lambda: Plan(delim=1), "needs the numbers of its tokens"),
        (lambda: Plan.fraction(0.0, heads=12), "at least one of 12 heads, got 0.0"),
        (lambda: Plan.fraction(1.5, heads=12), "at most 1"),
        (lambda: Plan.fraction("1/2", heads=12), "a number like 0.5, got '1/2'"),
        (lambda: Plan.fraction(1 / 2, heads="12"), "heads must be a whole number, an int, got '12"),
        (lambda: Plan.fraction(float("nan"), heads=12), "heads, got nan"),
        (lambda: Plan.parse("next:1"), "written like next=1,prev=1,first=4, got 'next:1'"),
        (lambda: Plan.parse("nxt=1"), "There is no pattern 'nxt'. Did you mean 'next'?"),
        (lambda: Plan.parse("next=1,next=2"), "says once how many heads get 'next'"),
        (lambda: Plan.parse("next=\u00b2"), "written like next=1,prev=1,first=4"),
        (lambda: Plan("next=1"), "got 'next=1'; text is read by Plan.parse"),
        (lambda: Plan({0: "next"}), "Head 0 gets what pattern("),
        (lambda: Plan({0: pattern("next")}, tokens=TOKENS), "have tokens of their own"),
        (lambda: Plan(next=1, tokens={"perid": (4,)}), "Did you mean 'period'?"),
        (lambda: Strength(1.0, "linear", steps=10.5), "steps must be a whole number"),
        (lambda: Strength(float("nan"), "linear"), "alpha must be a finite number"),
        (lambda: Strength("10", "linear"), "alpha must be a finite number of at least 0, got '10'"),
        (lambda: Strength(-1.0, "linear"), "at least 0, got -1.0"),
        (lambda: Strength(1.0, "linear", steps=0), "at least 1 update"),
        (lambda: Strength(1.0, "linear")(3), "give guide the number of updates as steps="),
        (lambda: Strength(1.0, "linear", steps=9)(-1), "updates done must be at least 0, got -1"),
        (lambda: Strength(1.0, "cosine"), "schedule must be one of 'linear'"),
        (lambda: Strength(1.0, "linear", constant_for=-1), "0 updates or more"),
        (
            lambda: Strength(1.0, "constant_then_linear", steps=20_000),
            "after 20000 updates, but there are 20000, so that it never would; make constant_for",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(make, said, unchecked):
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace("?", r"\?")):
        make()


def test_plans_of_the_same_patterns_are_the_same():
    assert len({Plan(next=1, first=2), Plan.parse("first=2,next=1"), Plan(next=2)}) == 2


def test_alpha_falls_as_the_paper_or_as_its_code_has_it():
    linear = Strength(10.0, "linear", steps=100)
    assert [linear(step) for step in (0, 50, 100, 120)] == [10.0, 5.0, 0.0, 0.0]
    later = Strength(10.0, "constant_then_linear", steps=50_000)
    assert [later(step) for step in (0, 19_999, 20_000, 35_000, 50_000)] == [10, 10, 10, 5, 0]
    assert Strength(10.0, "constant")(10**6) == 10.0


def test_conventions_bring_their_schedules():
    assert CONVENTIONS["paper"].schedule == CONVENTIONS["mean"].schedule == "linear"
    assert CONVENTIONS["reference_code"].schedule == "constant_then_linear"
