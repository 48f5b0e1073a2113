"""Pictures of pre-trainings: the loss of the task by update, a line a training (Fig. 3)."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwise.recording.run import Run
from headwise_papers.sparse_transformer._drawing import panels, save

__all__ = ["draw_curves"]

COLUMNS = 3
LEGEND_WIDTH = 2.0  # inches
PLATEAU = "best guess without context"
Runs = Mapping[str, Sequence[Run]]  # of each arm, one a seed


def draw_curves(
    found: Mapping[str, Runs], run: Run, name: str, *, plateaus: Mapping[str, float]
) -> None:
    """A panel a part.

    Args:
        found: of each part the runs of its arms.
        run: where the picture goes.
        name: of the picture.
        plateaus: of a part the loss of the best guess without context, drawn as a dashed line.
    """
    columns = min(COLUMNS, len(found))
    width = 4.0 if columns == 1 else 3.4
    figure, axes = panels(columns, -(-len(found) // columns), width=width, height=2.8)
    places = [one for row in axes for one in row]
    # an arm has the same colour in all parts, as there is one legend
    arms = dict.fromkeys(arm for runs in found.values() for arm in runs)
    colours = {arm: f"C{number}" for number, arm in enumerate(arms)}
    for place, (part, runs) in zip(places, found.items(), strict=False):
        _lines(place, runs, colours)
        if part in plateaus:
            place.axhline(
                plateaus[part], color="grey", linestyle="--", linewidth=1.0, label=PLATEAU
            )
        place.set_title(part, fontsize=9)
        place.set_xlabel("updates", fontsize=8)
        place.set_ylabel("training loss of the task", fontsize=8)
        place.tick_params(labelsize=8)
    for place in places[len(found) :]:
        place.set_visible(False)
    _legend_beside(figure, places)
    save(figure, run, name)


def _lines(axes: Axes, runs: Runs, colours: Mapping[str, str]) -> None:
    for arm, several in runs.items():
        for seed, one in enumerate(several):
            rows = [row for row in one.metrics() if "task_loss" in row]
            axes.plot(
                [row["step"] for row in rows],
                [row["task_loss"] for row in rows],
                color=colours[arm],
                linewidth=1.0,
                label=arm if not seed else None,
            )


def _legend_beside(figure: Figure, places: Sequence[Axes]) -> None:
    """One legend for all panels, to the right of them, where it covers no line."""
    known = {}
    for place in places:
        known |= dict(zip(*reversed(place.get_legend_handles_labels()), strict=True))
    last = {label: known.pop(label) for label in (PLATEAU,) if label in known}
    shown = known | last
    figure.set_figwidth(figure.get_figwidth() + LEGEND_WIDTH)
    figure.legend(
        shown.values(),
        shown.keys(),
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        title="a line a seed",
        title_fontsize=8,
        alignment="left",
    )
