"""Pictures of output_relevance/synclf."""

from collections.abc import Mapping

from torch import Tensor

from headwise.recording.run import Run
from headwise_papers.output_relevance._plots import ALPHA, BETA, OTHER, draw_curve, panels, save
from headwise_papers.output_relevance._table import Row

__all__ = ["draw_figure_2", "draw_uniform"]

Traces = Mapping[str, Tensor]


def draw_figure_2(
    step_E: Tensor, agreeing: Traces, on_one: Traces, run: Run, *, until: int
) -> None:
    """On the left as in the paper, up to an early update; on the right "on a 1"."""
    figure, (axes,) = panels(2, width=4.5)
    soon_E = step_E <= until
    for axis, curves, name in (
        (axes[0], agreeing, r"acc with $\alpha^{s*}$ of another run"),
        (axes[1], on_one, 'share of sequences, largest on a "1"'),
    ):
        for key, colour in (("alpha", ALPHA), ("beta", BETA)):
            label = rf"$\hat\{key}^s$"
            draw_curve(axis, step_E[soon_E], curves[key][soon_E], colour=colour, label=label)
        axis.set(xlabel="update s", ylabel=name, ylim=(0, 1.02))
        axis.legend(frameon=False, loc="lower right")
    save(figure, run, "fig2-beta-before-alpha")


def draw_uniform(step_E: Tensor, row: Row, run: Run) -> None:
    """hr of alpha* in beta_unif and in another run's attention through training."""
    figure, ((axis,),) = panels(1, width=5.0)
    draw_curve(axis, step_E, row.relevance, colour=BETA, label=r"$\beta_{unif}$")
    draw_curve(axis, step_E, row.attention, colour=ALPHA, label=r"$\hat\alpha$, another run")
    axis.axhline(row.floor.mean().item(), color=OTHER, linestyle="--", label="random baseline")
    axis.set(xlabel="update", ylabel=r"hr with $\alpha^{s*}$", ylim=(0, 1.02))
    axis.legend(frameon=False, fontsize=8)
    save(figure, run, "relevance-under-uniform-attention")
