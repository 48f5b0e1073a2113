import pytest

from headwise.reporting.charts import MOST_POINTS, Curve, curves_of, histogram, nice_ticks, scatter


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
    assert len(curve.shown) == len(curve.chart.line) == len(curve.texts) == MOST_POINTS
    assert {value for _, value in curve.shown} == {0.5}


def test_a_larger_value_is_drawn_higher():
    chart = Curve("loss", ((0, 1.0), (10, 3.0))).chart
    (x0, y0), (x1, y1) = chart.line
    assert x0 < x1 and y1 < y0
    assert [(dot.x, dot.y) for dot in chart.dots] == [(x1, y1)]
    assert [text for _, text in chart.up.labels] == ["1.0", "1.5", "2.0", "2.5", "3.0"]


def test_one_point_is_still_drawn():
    for chart in (
        Curve("accuracy", ((5, 0.5),)).chart,
        scatter([(5, 0.5, "step 1")], title="heads kept", up="accuracy"),
    ):
        assert len(chart.dots) == len(chart.line) == 1


def test_bars_of_a_histogram_are_as_high_as_their_counts():
    bars = histogram([0.0, 0.01, 0.5, 1.0], title="P(open)").bars
    assert bars[0].tip == "2 between 0.00 and 0.05" and bars[-1].tip == "1 between 0.95 and 1.00"
    assert bars[0].height == pytest.approx(2 * bars[10].height, abs=0.2) and bars[1].height == 0
