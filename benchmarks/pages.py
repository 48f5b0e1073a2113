"""docs/kernels.md, from its text in kernels.md beside this file and the figures in benchmarks/results.

python -m benchmarks.pages
"""

import re
from importlib import import_module
from math import comb
from pathlib import Path

from benchmarks import encoder
from benchmarks.guided_step import AIM
from benchmarks.kernel_pictures import draw_all
from benchmarks.kernel_tables import (
    BENCH,
    documents,
    mlm_table,
    overview,
    part_tables,
    step_table,
    translation_table,
    verdict,
)
from headwise.ops.entmax import LEAST_KERNEL_ALPHA
from headwise.ops.scores import WIDEST_HEAD
from headwise.ops.topk import MOST_KEPT
from headwise.recording.files import write_text

ROOT = Path(__file__).parent.parent
TEXT = Path(__file__).parent / "kernels.md"
PAGE = ROOT / "docs" / "kernels.md"
PICTURES = ROOT / "docs" / "pictures" / "kernels"
PLACE = re.compile(r"\{\{([^}]+)\}\}")


def page(folder: Path = BENCH) -> str:
    """The text with its places filled: constants from the code, tables from a folder of results."""
    ops = documents("ops", folder)
    made = [document.made() for document in ops]
    known = _constants() | {
        "overview": overview(ops),
        "made": "\n\n".join(made) or "Nothing has been measured yet.",
        "verdict": verdict(ops),
        "step": step_table(documents("guided-step", folder), AIM),
        "mlm": mlm_table(documents("mlm", folder), encoder.AIM),
        "translation": translation_table(documents("translation", folder)),
    }

    def fill(place: re.Match[str]) -> str:
        kind, _, part = place[1].partition(" ")
        return part_tables(ops, part) if kind == "tables" else known[place[1]]

    return PLACE.sub(fill, TEXT.read_text())


def _constants() -> dict[str, str]:
    """Numbers of the kernels that the text speaks of. Their modules import Triton."""
    topk, selection, lists, ranking, entmax = (
        import_module(f"headwise.ops.{name}.{part}")
        for name, part in (
            ("topk", "triton"),
            ("topk", "selection"),
            ("topk", "lists"),
            ("topk", "ranking"),
            ("entmax", "triton"),
        )
    )
    levels = [f"{levels} for keep up to {keep}" for keep, levels in selection.LEVELS.items()]
    few, many = lists.EXTRA.values()
    tile, deep = topk.HALF.select.keys, selection.LEVELS[8]
    numbers: dict[str, float] = {
        "example_keep": 8,
        "topk_resident": topk.MOST_KEYS[2],
        "topk_resident_float": topk.MOST_KEYS[4],
        "gather_keys": topk.GATHER_KEYS,
        "gather_before": topk.GATHER_KEYS - 1,
        "gather_keep": topk.GATHER_KEEP,
        "tile": tile,
        "chance": round(tile ** (deep - 1) / comb(8, deep), -2),
        "flag_rows": selection.FLAGGED.rows,
        "cell": lists.CELL,
        "part": ranking.PART,
        "long_flag_rows": ranking.DOUBTFUL.rows,
        "entmax_resident": entmax.NARROW.resident[-1].keys,
        "entmax_resident_wide": entmax.WIDE.resident[-1].keys,
        "least_width": entmax.LEAST_RESIDENT_WIDTH,
        "widest": WIDEST_HEAD,
        "most_kept": MOST_KEPT,
    }
    return {name: f"{number:,.0f}" for name, number in numbers.items()} | {
        "levels": f"{', '.join(levels[:-1])} and {levels[-1]}",
        "extra": f"{few} or {many}",
        "least_alpha": f"{LEAST_KERNEL_ALPHA:g}",
    }


def main() -> None:
    """Write the page and its pictures."""
    write_text(PAGE, page())
    draw_all(PICTURES, documents("ops"))


if __name__ == "__main__":
    main()
