"""Figures of guidance: every bar and map can be told from the others."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise_papers.attention_guidance import _maps, _probing
from headwise_papers.core import Result
from headwise_papers.core.record import recorded

ROOT = Path(__file__).parents[3]
PAGE_WIDTH = 1200  # pixels; what is wider cannot be read on a page


def _panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]


def test_probing_stacks_its_panels_and_shows_seeds() -> None:
    arms, sets = ["rule", "MLM", "guided"], ["litbank", "gap"]
    results = {
        f"{arm}: {name}: {what}": Result([0.2, 0.4])
        for arm in arms[1:]
        for name in sets
        for what in ("best", "best among words", "best among mentions")
    }
    del results["guided: gap: best"]
    figure = _probing.draw_scores(results | {"rule: litbank: sieve": Result([0.8])}, arms, sets)
    figure.draw_without_rendering()
    panels = _panels(figure)
    assert len({axes.get_position().x0 for axes in panels}) == 1  # below each other
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*arms, "one seed"]
    lines: list[Any] = [line for axes in panels for line in axes.lines]
    assert [len(line.get_xdata()) for line in lines] == [6, 8, 8]  # rules have no seeds
    bars: list[Any] = list(panels[0].patches)
    assert sum(math.isnan(bar.get_height()) for bar in bars) == 2  # nothing measured, no bar


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


def test_recorded_results_are_enough_to_draw_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    record = recorded("attention_guidance/probing")[""]
    arms = ["rule", "MLM", "random", "guided 1/2", "guided 1"]
    figure = _probing.draw_scores(record.results, arms, record.config["sets"])
    assert len(_panels(figure)[0].patches) == len(arms) * len(record.config["sets"])
    assert figure.get_figwidth() * 110 < PAGE_WIDTH
