"""Rows of the GPU benchmark for the eye."""

from typing import Any

import torch
from rich.table import Table

from benchmarks import name_of

Row = dict[str, Any]


def table_of(rows: list[Row], device: torch.device) -> Table:
    """Times in ms and ratios to SDPA, each with the aim beside it; lower is better."""
    table = Table(title=f"Attention ops, {name_of(device)}; ratios are to SDPA's time")
    for name in ("inputs", "op", "n", "who"):
        table.add_column(name, no_wrap=True)
    for name in ("fwd ms", "ratio", "aim", "f+b ms", "ratio", "aim", "blocks swept again"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("not timed, because")
    for row in _ordered(rows):
        table.add_row(*_cells(row))
    return table


def _ordered(rows: list[Row]) -> list[Row]:
    """By block, op and length; peers that came later join the others of their op."""
    blocks, ops = (list(dict.fromkeys(row[name] for row in rows)) for name in ("inputs", "op"))
    return sorted(
        rows, key=lambda row: (blocks.index(row["inputs"]), ops.index(row["op"]), row.get("n", 0))
    )


def _cells(row: Row) -> list[str]:
    aims = row.get("aims") or [None, None]
    return [
        row["inputs"],
        row["op"],
        str(row.get("n", "")),
        row["who"],
        *_figures(row, "forward", aims[0]),
        *_figures(row, "both", aims[1]),
        _certificate(row),
        f"wrong: {row['wrong']}" if "wrong" in row else row.get("reason", ""),
    ]


def _figures(row: Row, name: str, aim: float | None) -> list[str]:
    ms, ratio = row.get(f"{name}_ms"), row.get(f"{name}_ratio")
    return [
        "" if ms is None else f"{ms:.3f}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if aim is None else f"{aim:g}",
    ]


def _certificate(row: Row) -> str:
    if "flagged_blocks" not in row:
        return row.get("flagged", "")
    blocks = f"{row['flagged_blocks']:.2%}"
    return f"{blocks} ({row['flagged_rows']:.3%} of rows)" if "flagged_rows" in row else blocks
