"""Table 8 as bars: the best head of each model, set by set."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from headwise.experiments.guidance._probing_scores import AMONG_MENTIONS, AMONG_WORDS, BEST, SIEVE
from headwise.experiments.guidance._subjects import RULE
from headwise.experiments.sparse._drawing import panels, save
from headwise.recording.run import Run

__all__ = ["draw_scores"]


def draw_scores(
    figures: Mapping[str, Sequence[float]], arms: Sequence[str], sets: Sequence[str], run: Run
) -> None:
    """Best heads among all tokens, among words alone, and among mentions alone.

    Args:
        figures: named `ARM: SET: best` and so on; of the rule `rule: SET: sieve`.
        arms: the rule and models.
        sets: of mentions.
        run: where the picture goes.
    """
    figure, (axes,) = panels(3, width=1.5 + 0.22 * len(sets) * (1 + len(arms)), height=3.4)
    width = 0.8 / len(arms)
    for axis, what in zip(axes, (BEST, AMONG_WORDS, AMONG_MENTIONS), strict=True):
        for index, arm in enumerate(arms):
            # the rule chooses among mentions, whatever heads choose among
            named = SIEVE if arm == RULE else what
            values = [figures.get(f"{arm}: {name}: {named}", ()) for name in sets]
            at = [place + width * (index + 0.5) - 0.4 for place in range(len(sets))]
            axis.bar(at, [fmean(several or (0.0,)) for several in values], width, label=arm)
        axis.set_xticks(range(len(sets)), sets, fontsize=7)
        axis.set_title(what.replace("best", "best head"), fontsize=9)
        axis.set(ylim=(0, 1), ylabel="mentions resolved")
    axes[0].legend(frameon=False, fontsize=7)
    save(figure, run, "table8")
