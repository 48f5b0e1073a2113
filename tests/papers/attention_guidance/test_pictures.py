"""Pictures of guidance: every line and dot can be told from the others."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.recording.run import Run
from headwise_papers.attention_guidance import _maps, _probing_plots
from headwise_papers.attention_guidance.probing import Config
from headwise_papers.core.results import kept

ROOT = Path(__file__).parents[3]
PAGE_WIDTH = 1200  # pixels; what is wider cannot be read on a page
CONFIG = Config()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures in place of files, laid out as they would be written."""
    found: list[Figure] = []

    def take(figure: Figure, *_: object) -> None:
        figure.set_dpi(110)
        figure.draw_without_rendering()
        found.append(figure)

    for module in (_probing_plots,):
        monkeypatch.setattr(module, "save", take)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "picture", CONFIG)


def _width(figure: Figure) -> float:
    return figure.get_figwidth() * 110


def _panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]


def _legend(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def _covered(figure: Figure) -> list[Axes]:
    """Panels that the legend lies on."""
    (legend,) = figure.legends
    place = legend.get_window_extent()
    return [axes for axes in _panels(figure) if place.overlaps(axes.get_window_extent())]


def _data(values: Any) -> Sequence[float]:
    return list(values)


def test_probing_stacks_its_panels_and_shows_seeds(drawn: list[Figure], run: Run) -> None:
    arms = ["rule", "MLM", "guided"]
    sets = ["litbank", "gap"]
    figures = {
        f"{arm}: {name}: {what}": [0.2, 0.4]
        for arm in arms[1:]
        for name in sets
        for what in ("best", "best among words", "best among mentions")
    }
    del figures["guided: gap: best"]
    _probing_plots.draw_scores(figures | {"rule: litbank: sieve": [0.8]}, arms, sets, run)
    (figure,) = drawn
    panels = _panels(figure)
    assert len({axes.get_position().x0 for axes in panels}) == 1  # below each other
    assert _legend(figure) == [*arms, "a seed"]
    dots = [len(_data(line.get_xdata())) for axes in panels for line in axes.lines]
    assert dots == [6, 8, 8]  # those of rules have no seeds
    heights = [bar.get_height() for bar in panels[0].patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert sum(map(math.isnan, heights)) == 2  # no bar where nothing was measured, not one of 0


@pytest.mark.parametrize(("heads", "named"), [(6, True), (12, False)])
def test_heads_have_a_colour_scale_and_names_of_tokens_where_there_is_room(
    heads: int, named: bool
) -> None:
    tokens = ["<s>", "Welcome", "</s>"]
    maps = {"MLM": {moment: torch.rand(2, heads, 3, 3) for moment in ("0 %", "100 %")}}
    figure = _maps.draw_heads(maps, tokens, 1)
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_label() == "<colorbar>"] == [
        "attention weight, a row sums to 1"
    ]
    panels = _panels(figure)
    keys = [[label.get_text() for label in axes.get_xticklabels()] for axes in panels]
    assert keys[-heads:] == [tokens if named else []] * heads
    queries = [label.get_text() for label in panels[0].get_yticklabels()]
    assert queries == (tokens if named else [])


def test_recorded_figures_are_enough_to_draw_again(
    drawn: list[Figure], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    probed = kept("attention_guidance/probing")
    assert probed is not None
    figures = {metric: got.values for metric, got in probed.figures.items()}
    arms = ["rule", "MLM", "random", "guided 1/2", "guided 1"]
    _probing_plots.draw_scores(figures, arms, probed.config["sets"], run)
    (figure,) = drawn
    assert len(_panels(figure)[0].patches) == len(arms) * len(probed.config["sets"])
    assert _width(figure) < PAGE_WIDTH
