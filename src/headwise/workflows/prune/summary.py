"""What is printed at the end of a pruning."""

from pathlib import Path

from rich.table import Table

from headwise.json_files import check_shape
from headwise.pruning.comparing import speed_table
from headwise.recording import Run
from headwise.reporting import SPEED_SHAPE

__all__ = ["summary"]


def summary(run: Run, out: Path) -> list[Table | str]:
    """Quality before and after, the speed table, and where everything is; for Rich to print.

    Args:
        run: of a finished pruning.
        out: where the smaller model is.
    """
    figures = run.figures()
    names = [name.removesuffix("_before") for name in figures if name.endswith("_before")]
    afters = {name: "heads_kept" if name == "heads" else f"{name}_after" for name in names}
    numbers = [*afters.values(), *(f"{name}_before" for name in names)]
    shape = {**dict.fromkeys(numbers, float), "chosen_by": str}
    check_shape(figures, shape, name=str(run.path("figures.json")))
    table = Table("", "before", "after", box=None, header_style="bold", pad_edge=False)
    for name, after in afters.items():
        cells = [f"{value:,.6g}" for value in (figures[f"{name}_before"], figures[after])]
        table.add_row(name.replace("_", " "), *cells)
    parts: list[Table | str] = [table, figures["chosen_by"]]
    if run.has("trace/speed.json"):
        parts.append(speed_table(run.read_json("trace/speed.json", SPEED_SHAPE)))
    return [*parts, f"Model: {out}", f"Report: {run.path('report.html')}"]
