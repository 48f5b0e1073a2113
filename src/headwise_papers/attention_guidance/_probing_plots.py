"""Table 8 as bars: the best head of each model, set by set."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes

from headwise.recording.run import Run
from headwise_papers.attention_guidance._probing_scores import (
    AMONG_MENTIONS,
    AMONG_WORDS,
    BEST,
    SIEVE,
)
from headwise_papers.attention_guidance._subjects import RULE
from headwise_papers.sparse_transformer._drawing import panels, save

__all__ = ["draw_scores"]

TITLES = {
    BEST: "best head among all tokens",
    AMONG_WORDS: "best head among words",
    AMONG_MENTIONS: "best head among mentions",
}
SEED = "a seed"
Figures = Mapping[str, Sequence[float]]


def draw_scores(figures: Figures, arms: Sequence[str], sets: Sequence[str], run: Run) -> None:
    """Best heads among all tokens, among words alone, and among mentions alone, below each other.

    Args:
        figures: named `ARM: SET: best` and so on, with a value a seed; of the rule
            `rule: SET: sieve`. Those of a recorded result do, so the picture can be drawn again.
        arms: the rule and models.
        sets: of mentions.
        run: where the picture goes.
    """
    width = max(5.0, 0.5 + 0.22 * len(sets) * (1 + len(arms)))
    figure, axes = panels(1, len(TITLES), width=width, height=2.2)
    for (panel,), (what, title) in zip(axes, TITLES.items(), strict=True):
        _bars(panel, figures, arms, sets, what)
        panel.set_title(title, fontsize=9)
        panel.set_xticks(range(len(sets)), sets, fontsize=8)
        panel.tick_params(axis="y", labelsize=8)
        panel.set(ylim=(0, 1.02), xlim=(-0.5, len(sets) - 0.5))
        panel.set_ylabel("mentions resolved", fontsize=8)
    known = dict(zip(*reversed(axes[0][0].get_legend_handles_labels()), strict=True))
    shown = [name for name in (*arms, SEED) if name in known]
    figure.legend(
        [known[name] for name in shown],
        shown,
        loc="outside upper center",
        ncols=len(shown),
        frameon=False,
        fontsize=8,
    )
    save(figure, run, "table8")


def _bars(
    axes: Axes, figures: Figures, arms: Sequence[str], sets: Sequence[str], what: str
) -> None:
    """Means, and each seed as a dot; what was not measured has no bar."""
    width = 0.8 / len(arms)
    dots: list[tuple[float, float]] = []
    for index, arm in enumerate(arms):
        # the rule chooses among mentions, whatever heads choose among
        named = SIEVE if arm == RULE else what
        found = [figures.get(f"{arm}: {name}: {named}", ()) for name in sets]
        at = [place + width * (index + 0.5) - 0.4 for place in range(len(sets))]
        heights = [fmean(values) if values else float("nan") for values in found]
        axes.bar(at, heights, width, color=f"C{index}", label=arm)
        for place, values in zip(at, found, strict=True):
            dots += [(place, value) for value in values if len(values) > 1]
    if dots:
        axes.plot(*zip(*dots, strict=True), ".", color="black", markersize=3, label=SEED)
