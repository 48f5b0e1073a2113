"""Section of the report of a pruning, from the files of its trace.

    trace/pruning.json     {"shown": figure, "keep": {site: heads}, "before": {...}, "after": {...},
                           "functions": where functions of heads are from, a sentence}
    trace/gates/STEP.json  {"step": ..., "prob_open": {site: [...]}, "keep": {site: heads}}
    trace/speed.json       what `headwise.pruning.speed` measured, as JSON

A run with no `trace/pruning.json` is no pruning. The other files may be missing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headwise.recording import HeadTable, Run
from headwise.reporting.charts import histogram, scatter
from headwise.reporting.inspection import Cell, Matrix, read_object
from headwise.reporting.measures import rows_by_layer
from headwise.reporting.role_groups import colour_of, group_of, grouped, legend, short_name

MOST_COLUMNS = 12  # of a table over training
KINDS = {"encoder.self": "encoder", "decoder.self": "decoder", "decoder.cross": "decoder-encoder"}
Keep = Mapping[str, Sequence[int]]
# shapes of files, as in headwise.json_files
ABOUT = {"chosen_by": str, "shown": str, "before": {...: float}, "after": {...: float}}
_RATIO = dict.fromkeys(("median", "low", "high"), float)
SPEED_SHAPE = {  # of what `headwise.pruning.speed` measured
    "device": str,
    "quality": ([float], None),
    "verdicts": [str],
    "workloads": [
        {
            "backend": str,
            **dict.fromkeys(("batch", "length", "saved_flops"), float),
            "time": {"before": float, "after": float, "ratio": _RATIO},
            "memory": [float],
            "flops": [float],
        }
    ],
}
GATES = {"keep": {...: [int]}, "prob_open": {...: [float]}}


def pruning_section(run: Run, table: HeadTable) -> dict[str, Any] | None:
    """Compute what the section of a pruning shows; None when the run is no pruning."""
    if not run.has("trace/pruning.json"):
        return None
    about = run.read_json("trace/pruning.json", ABOUT)
    gates = [run.read_json(name, GATES) for name in run.names("trace/gates/*.json")]
    shown = about["shown"]
    points = [
        (row["open_heads"], row[shown], f"step {row['step']}")
        for row in run.metrics()
        if "open_heads" in row and shown in row
    ]
    last = gates[-1]["prob_open"].values() if gates else ()
    certainty = [value for heads in last for value in heads]
    return {
        "about": about,
        "quality": scatter(points, title="heads kept", up=shown) if points else None,
        "kept": _kept_by_layer(table) if "kept" in table.columns else None,
        "legend": _functions_kept(table) if {"kept", "role"} <= table.columns.keys() else None,
        "over_training": _over_training(table, [gate["keep"] for gate in gates]),
        "certainty": histogram(certainty, title="P(open)") if gates else None,
        "speed": read_object(run, "trace/speed.json", SPEED_SHAPE),
    }


def _kept_by_layer(table: HeadTable) -> list[Matrix]:
    """Return which heads of which layers stayed, and their functions if known (Fig. 8)."""
    roles = table.columns.get("role", (None,) * len(table))

    def cell(row: int) -> Cell:
        head, role = table.heads[row], str(roles[row] or "")
        tip = f"{head}\n{role.replace('_', ' ') or 'no role known'}"
        if not table["kept"][row]:
            return Cell("", "heat empty", tip, "0")
        look = f"heat {colour_of(group_of(role) if role else '')}"
        return Cell(str(head.index), look, tip, "0", small=short_name(role))

    return [Matrix.of(kind, layers, cell) for kind, layers in rows_by_layer(table).items()]


def _functions_kept(table: HeadTable) -> list[tuple[str, str]]:
    """Return how many heads of each function stayed, of how many there were."""
    kept = grouped(row["role"] for _, row in table if row["kept"])
    every = grouped(table["role"])
    return legend({group: f"{kept[group]} of {count} kept" for group, count in every.items()})


def _over_training(table: HeadTable, keeps: Sequence[Keep]) -> list[list[str]]:
    """Return what the open heads are while there are fewer of them (Fig. 8 and 9).

    The first row counts the open heads; a column is an evaluation.
    """
    chosen = keeps[:: -(-len(keeps) // MOST_COLUMNS)] if keeps else []
    heads = [[(site, head) for site in keep for head in keep[site]] for keep in chosen]
    rows = _counted([_kind(site) for site, _ in open_heads] for open_heads in heads)
    if "role" in table.columns:
        known = {(head.site, head.index): row["role"] for head, row in table}
        rows += _counted(
            [_function(known.get(head)) for head in open_heads] for open_heads in heads
        )
    return [["heads kept", *(str(len(open_heads)) for open_heads in heads)], *rows]


def _counted(columns: Iterable[Sequence[str]]) -> list[list[str]]:
    counts = [Counter(column) for column in columns]
    names = dict.fromkeys(name for count in counts for name in count)
    return [[name, *(str(count[name]) for count in counts)] for name in names]


def _kind(site: str) -> str:
    parts = site.split(".")
    return KINDS.get(f"{parts[0]}.{parts[-1]}", site)


def _function(role: object) -> str:
    return group_of(str(role)) if role else "no role found"
