"""Generated documents: docs/speed.md, and the table of columns in docs/inspect.md.

    python -m benchmarks.pages

The text of docs/speed.md is speed.md next to this file, its tables come from benchmarks/results.
"""

import re
from importlib import import_module
from pathlib import Path

from benchmarks.speed_figures import draw_all
from benchmarks.speed_tables import (
    BENCH,
    cpu_table,
    documents,
    mlm_table,
    op_tables,
    step_table,
    translation_table,
)
from headwise.ops.entmax import LEAST_KERNEL_ALPHA
from headwise.ops.scores import WIDEST_HEAD
from headwise.ops.topk import MOST_KEPT
from headwise.recording.columns import COLUMNS
from headwise.recording.files import write_text

ROOT = Path(__file__).parent.parent
TEXT = Path(__file__).parent / "speed.md"
PAGE = ROOT / "docs" / "speed.md"
FIGURES = ROOT / "docs" / "figures"
INSPECT = ROOT / "docs" / "inspect.md"
TABLE = re.compile(r"(?<=\| column \| meaning \|\n\| --- \| --- \|\n)(\|.*\n)+")
PLACE = re.compile(r"\{\{([^}]+)\}\}")


def page(folder: Path = BENCH) -> str:
    """Fill the places of the text: constants from the code, tables from a folder of results."""
    known = _constants() | op_tables(documents("ops", folder))
    known |= {
        "step": step_table(documents("guided-step", folder)),
        "mlm": mlm_table(documents("mlm", folder)),
        "translation": translation_table(documents("translation", folder)),
        "cpu": cpu_table(folder),
    }
    return PLACE.sub(lambda place: known[place[1]], TEXT.read_text())


def _constants() -> dict[str, str]:
    """Limits of the kernels. Their module imports Triton."""
    topk = import_module("headwise.ops.topk.triton")
    numbers: dict[str, float] = {
        "resident": topk.MOST_KEYS[2],
        "resident_float": topk.MOST_KEYS[4],
        "gather_keys": topk.GATHER_KEYS,
        "gather_before": topk.GATHER_KEYS - 1,
        "gather_keep": topk.GATHER_KEEP,
        "widest": WIDEST_HEAD,
        "most_kept": MOST_KEPT,
    }
    limits = {name: f"{number:,.0f}" for name, number in numbers.items()}
    return limits | {"least_alpha": f"{LEAST_KERNEL_ALPHA:g}"}


def inspect_page() -> str:
    """Return docs/inspect.md with the columns that the code knows."""
    columns = [column for column in COLUMNS if column.group not in ("name", "quality")]
    rows = [f"| `{column.name}` | {column.meaning} |\n" for column in columns]
    return TABLE.sub(lambda _: "".join(rows), INSPECT.read_text())


def main() -> None:
    """Write the pages and their figures."""
    write_text(PAGE, page())
    write_text(INSPECT, inspect_page())
    draw_all(FIGURES, documents("ops"))


if __name__ == "__main__":
    main()
