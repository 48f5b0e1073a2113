"""Pictures of pre-trainings: the loss of the task by update, a line a training (Fig. 3)."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from headwise.experiments.sparse._drawing import panels, save
from headwise.recording.run import Run

__all__ = ["draw_curves"]

COLUMNS = 3
Runs = Mapping[str, Sequence[Run]]  # of each arm, one a seed


def draw_curves(
    found: Mapping[str, Runs], run: Run, name: str, *, plateaus: Mapping[str, float]
) -> None:
    """A panel a part.

    Args:
        found: of each part the runs of its arms.
        run: where the picture goes.
        name: of the picture.
        plateaus: of a part the loss to draw as a dashed line, that of frequencies alone.
    """
    columns = min(COLUMNS, len(found))
    figure, axes = panels(columns, -(-len(found) // columns), height=2.8)
    places = [one for row in axes for one in row]
    for place, (part, runs) in zip(places, found.items(), strict=False):
        _lines(place, runs)
        if part in plateaus:
            place.axhline(plateaus[part], color="grey", linestyle="--", linewidth=0.8)
        place.set_title(part, fontsize=9)
        place.set_xlabel("updates", fontsize=8)
        place.set_ylabel("loss of the task", fontsize=8)
        place.legend(frameon=False, fontsize=7)
    for place in places[len(found) :]:
        place.set_visible(False)
    save(figure, run, name)


def _lines(axes: Axes, runs: Runs) -> None:
    for number, (arm, several) in enumerate(runs.items()):
        for seed, one in enumerate(several):
            rows = [row for row in one.metrics() if "task_loss" in row]
            axes.plot(
                [row["step"] for row in rows],
                [row["task_loss"] for row in rows],
                color=f"C{number}",
                linewidth=1.0,
                label=arm if not seed else None,
            )
