import pytest

from headwise.reporting.curves import MOST_POINTS, Curve, curves_of, curves_section, nice_ticks


def test_metrics_logged_now_and_then_get_their_own_steps():
    loss, accuracy = curves_of(
        [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0, "accuracy": 0.5}]
    )
    assert loss == Curve("loss", ((1, 3.0), (2, 2.0)))
    assert accuracy == Curve("accuracy", ((2, 0.5),))


@pytest.mark.parametrize(
    ("low", "high"), [(0.1, 3.7), (-2, 2), (5, 5), (0, 0), (1e-7, 3e-7), (1e-20, 1e-20), (0, 1e6)]
)
def test_ticks_enclose_the_values_and_are_few(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low and high <= ticks[-1]
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))


def test_long_curves_are_thinned_to_means_that_keep_the_average():
    curve = Curve("loss", tuple((step, step % 2) for step in range(4 * MOST_POINTS)))
    assert len(curve.shown()) == MOST_POINTS
    assert {value for _, value in curve.shown()} == {0.5}
    assert "mean of neighbouring steps" in curves_section([curve])


def test_a_larger_value_is_drawn_higher():
    svg = curves_section([Curve("loss", ((0, 1.0), (10, 3.0)))])
    points = svg.split('points="')[1].split('"')[0].split()
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in points)
    assert x0 < x1 and y1 < y0


def test_one_point_is_still_drawn():
    assert "<circle" in curves_section([Curve("accuracy", ((5, 0.5),))])
