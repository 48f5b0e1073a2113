"""The rule that judges claims, in all its cases, and the intervals it reads."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from headwise_papers.core import Claim, Result, minus, share, verdict

# bad values must reach our own messages, so shapes and types are not checked here
pytestmark = pytest.mark.usefixtures("unchecked")


def difference(*values: float) -> Result:
    return Result(values, "difference")


def test_the_interval_of_a_mean_is_students() -> None:
    result = Result([1.0, 2.0, 3.0, 4.0])  # standard deviation 1.2910, t(3) = 3.1824
    assert result.mean == 2.5
    assert result.high == pytest.approx(2.5 + 3.18245 * 1.2909944 / 2, rel=1e-5)
    assert result.low == pytest.approx(5.0 - result.high)


def test_one_value_has_no_width() -> None:
    for kind in ("mean", "difference", "share"):
        result = Result([1.0], kind)
        assert result.low == result.mean == result.high == 1.0


def test_the_interval_of_a_share_is_wilsons() -> None:
    """11 of 20: 0.342 to 0.742, as in tables; 20 of 20 is no certainty."""
    some, every = share([True] * 11 + [False] * 9), share([True] * 20)
    assert (some.low, some.high) == pytest.approx((0.342, 0.742), abs=1e-3)
    assert (every.low, every.high) == pytest.approx((0.839, 1.0), abs=1e-3)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_a_result_needs_finite_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="one finite value or more"):
        Result(values)


def test_trials_of_a_share_are_0_or_1() -> None:
    with pytest.raises(ValueError, match="0 or 1"):
        Result([0.5, 1.0], "share")


@pytest.mark.parametrize("kind", ["mean", "difference", "share"])
def test_a_result_survives_json_with_its_kind(kind: str) -> None:
    result = Result([1.0, 0.0, 1.0], kind)
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_results_are_made_without_scipy() -> None:
    """Training processes never pay for importing it."""
    code = (
        "import sys; from headwise_papers.core import Result, minus; "
        "minus(Result([2.0, 3.0]), Result([1.0, 1.0])); "
        "sys.exit(any(name.split('.')[0] in ('scipy', 'matplotlib') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


ABOVE = Claim.direction("a - b")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([0.5, 0.6, 0.7], "reproduced"),
        ([-0.5, -0.6, -0.7], "not"),
        ([0.9, -0.2, 0.8], "undecided"),  # the mean alone is on the paper's side
        ([-0.9, 0.2, -0.8], "undecided"),
        ([0.5, 0.6], "undecided"),  # two seeds
        ([0.0, 0.0, 0.0], "undecided"),
        ([0.5, 0.5, 0.5], "undecided"),
        ([2 / 12 - 1 / 12, 3 / 12 - 2 / 12, 4 / 12 - 3 / 12], "undecided"),  # equal but rounding
    ],
)
def test_a_direction_needs_an_interval_on_one_side_of_0(values: list[float], found: str) -> None:
    assert verdict(ABOVE, difference(*values)) == found
    mirrored = difference(*(-value for value in values))
    assert verdict(replace(ABOVE, sign=-1), mirrored) == found


def test_a_number_needs_its_whole_interval_within_the_margin() -> None:
    claim = Claim.value("ratio", 2.2, margin=0.9)
    assert verdict(claim, Result([2.1, 2.2, 2.3])) == "reproduced"
    assert verdict(claim, Result([0.9, 1.0, 1.1])) == "not"
    assert verdict(claim, Result([1.2, 1.4, 1.6])) == "undecided"
    assert verdict(claim, Result([2.2])) == "undecided"  # one seed says nothing of chance
    assert verdict(claim, Result([2.2, 2.2])) == "reproduced"
    assert verdict(claim, difference(2.1, 2.2, 2.3)) == "reproduced"


def test_one_exact_measurement_decides_a_number_where_the_claim_says_so() -> None:
    claim = Claim.value("parameters", 8_049_216, margin=0, exact=True)
    assert verdict(claim, Result([8_049_216])) == "reproduced"
    assert verdict(claim, Result([8_049_217])) == "not"


def test_comparable_means_the_whole_interval_is_near_0() -> None:
    claim = Claim.comparable("a - b", margin=0.05)
    assert verdict(claim, difference(0.01, -0.02, 0.0)) == "reproduced"
    assert verdict(claim, difference(0.2, -0.3, 0.1)) == "undecided"
    assert verdict(claim, difference(-0.2, -0.21, -0.22)) == "not"


@pytest.mark.parametrize(
    ("successes", "trials", "found"),
    [(20, 20, "reproduced"), (10, 20, "not"), (17, 20, "undecided"), (1, 1, "undecided")],
)
def test_a_share_is_judged_by_the_end_of_its_interval(
    successes: int, trials: int, found: str
) -> None:
    result = share([True] * successes + [False] * (trials - successes))
    assert verdict(Claim.share("runs that succeed", threshold=0.8), result) == found


def test_what_was_not_measured_has_no_other_verdict() -> None:
    assert verdict(ABOVE, None) == "not measured"


# Faults of earlier rules, by their numbers in the list of claims.


def test_fault_1_the_sign_of_a_mean_over_three_seeds_decides_nothing() -> None:
    assert verdict(ABOVE, difference(0.62, -0.55, -0.01)) == "undecided"
    assert verdict(Claim.direction("a - b", sign=-1), difference(0.6, -0.5, 0.0)) == "undecided"


def test_fault_2_a_wide_interval_never_earns_a_better_verdict() -> None:
    claim = Claim.value("speed-up", 2.2, margin=0.5)
    wide, narrow = Result([1.05, 1.42, 1.70]), Result([1.20, 1.24, 1.27])
    assert wide.high > 2.1 and narrow.high < 1.4
    assert verdict(claim, wide) == "undecided"
    assert verdict(claim, narrow) == "not"


def test_fault_3_the_kind_is_said_and_never_read_from_a_name() -> None:
    named = Claim.direction("a less b")
    assert verdict(named, difference(0.5, 0.6, 0.7)) == "reproduced"
    with pytest.raises(ValueError, match="'a less b' is of kind mean"):
        verdict(named, Result([0.5, 0.6, 0.7]))
    with pytest.raises(ValueError, match="needs a result of kind mean or difference"):
        verdict(Claim.value("a", 1.0, margin=0.1), share([True, False]))
    with pytest.raises(ValueError, match="needs a result of kind share"):
        verdict(Claim.share("a", threshold=0.5), Result([1.0, 1.0]))


def test_fault_4_a_criterion_can_fail_and_can_hold() -> None:
    for threshold in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match="above 0 and below 1"):
            Claim.share("runs", threshold=threshold)
    with pytest.raises(ValueError, match="margin is finite"):
        Claim.value("steps", 10, margin=float("inf"))
    identity = difference(*[5000 / 8 - 100] * 5)  # every seed gives the same, whatever is trained
    assert verdict(ABOVE, identity) == "undecided"


def test_fault_5_a_direction_is_judged_against_a_control_with_the_same_seeds() -> None:
    pruned, control = Result([27.0, 27.5, 26.9]), Result([27.9, 28.3, 27.7])
    assert verdict(ABOVE, minus(pruned, control)) == "not"
    with pytest.raises(ValueError, match="paired by seed, got 3 and 2"):
        minus(pruned, Result([27.9, 28.3]))
    with pytest.raises(ValueError, match="kind difference"):
        verdict(ABOVE, pruned)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"rule": "sign"}, "a rule is"),
        ({"rule": "number"}, "needs the paper's number"),
        ({"rule": "direction", "sign": 0}, "sign is 1 or -1"),
        ({"rule": "direction", "number": 167}, "from 1 to 166"),
        ({"rule": "direction", "paper": float("nan")}, "finite"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Claim("a - b", **fields)
