"""Tables of docs/speed.md, from what `python -m benchmarks` has written to benchmarks/results."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import torch

from benchmarks.encoder import THEIRS
from benchmarks.gpu_cases import Case, cases
from benchmarks.gpu_ops import NORMAL, SHAPES, TRAINED

BENCH = Path(__file__).parent / "results"
LENGTHS = tuple(shape.length for shape in SHAPES)
OURS, YARDSTICK = "headwise", "SDPA"
MISSING = "not measured yet"
LESS = re.compile("float32|k=None")  # slower variants of a peer, which are left out
ALSO_TRAINED = ("top-k keep 8", "entmax-1.5", "sparsemax")  # shown for trained heads too
CPU_PEERS = {  # the columns of the table of a CPU: op and peer, as its records name them
    "top-8 / SDPA": ("topk keep=8", "sdpa"),
    "top-8 / masked dense": ("topk keep=8", "masked dense"),
    "sparsemax / `entmax` package": ("sparsemax", "entmax.sparsemax k=16"),
    "entmax-1.5 / `entmax` package": ("entmax 1.5", "entmax.entmax15 k=32"),
    "statistics / materialised matrix": ("row statistics", "materialised"),
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """One file of results."""

    path: Path
    environment: dict[str, Any]
    rows: list[Row]

    def made(self) -> str:
        """Return command, commit, hardware and date as a paragraph."""
        about = self.environment
        versions = about["versions"]
        changed = " with changes" if about["dirty"] else ""
        text = (
            f"`{' '.join(about['command'])}`, commit {str(about['commit'])[:10]}{changed}, "
            f"{about['gpu']}, torch {versions['torch']}, Triton {versions['triton']}, "
            f"{about['started'][:10]}: [JSON](../benchmarks/results/{self.path.name})."
        )
        return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def documents(name: str, folder: Path = BENCH) -> list[Document]:
    """Read what was measured on a GPU, the newest first."""
    read = [
        (path, json.loads(path.read_text())) for path in sorted(folder.glob(f"{name}-*-20*.json"))
    ]
    found = [
        Document(path, content["environment"], content["rows"])
        for path, content in read
        if content["settings"]["device"] == "cuda"
    ]
    return sorted(found, key=lambda document: document.environment["started"], reverse=True)


def cases_at(length: int) -> list[Case]:
    """Return every op of the benchmark."""
    shape = next(shape for shape in SHAPES if shape.length == length)
    return cases(shape, torch.device("cpu"))


def newest(
    found: list[Document], op: str, length: int, who: str = OURS, inputs: str = NORMAL
) -> tuple[Document, Row] | None:
    """Find the newest row with a time, and its document."""
    for document in found:
        for row in document.rows:
            about = (row["op"], row.get("n"), row["who"], row["inputs"])
            if about == (op, length, who, inputs) and "forward_ms" in row:
                return document, row
    return None


def markdown(rows: Iterable[list[str]], *, text_columns: int) -> str:
    """Return a table, its first row the header; numbers are aligned to the right."""
    header, *body = rows
    rule = ["---" if place < text_columns else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *body))


def op_tables(found: list[Document]) -> dict[str, str]:
    """Return ours over SDPA, milliseconds of the peers, and where both come from."""
    used: list[Document] = []
    overview = _overview(found, used)
    peers = _peers(found, used)
    made = [document.made() for document in found if document in used]
    return {
        "overview": overview,
        "peers": peers,
        "made": "\n\n".join(made) or "Nothing has been measured yet.",
    }


def _overview(found: list[Document], used: list[Document]) -> str:
    rows = [["ours / SDPA", *(f"n = {length:,}" for length in LENGTHS)]]
    for case in cases_at(LENGTHS[0]):
        kinds = (NORMAL, TRAINED) if case.name in ALSO_TRAINED else (NORMAL,)
        for inputs in kinds if case.ours is not None else ():
            picked = [newest(found, case.name, n, inputs=inputs) for n in LENGTHS]
            used += [pair[0] for pair in picked if pair]
            name = case.name if inputs == NORMAL else f"{case.name}, {inputs}"
            rows.append([name, *(_ratios(pair and pair[1]) for pair in picked)])
    return markdown(rows, text_columns=1)


def _ratios(row: Row | None) -> str:
    """Return forward / forward and backward; the first alone where there is no gradient."""
    if row is None:
        return MISSING
    ratios = [row[name] for name in ("forward_ratio", "both_ratio") if name in row]
    return " / ".join(f"{ratio:.2f}" for ratio in ratios)


def _peers(found: list[Document], used: list[Document]) -> str:
    rows = [["op", "who", *(f"n = {length:,}" for length in LENGTHS)]]
    for case in cases_at(LENGTHS[0]):
        contestants = _contestants(found, case.name)
        for who in contestants if len(contestants) > 1 else ():
            picked = [newest(found, case.name, n, who) for n in LENGTHS]
            used += [pair[0] for pair in picked if pair]
            cells = [f"{pair[1]['both_ms']:.2f}" if pair else "" for pair in picked]
            rows.append([case.name if who == OURS else "", who, *cells])
    return markdown(rows, text_columns=2)


def _contestants(found: list[Document], op: str) -> list[str]:
    """Return who was timed forward and backward; ours first, without SDPA and slower variants."""
    names = dict.fromkeys(
        row["who"]
        for document in found
        for row in document.rows
        if row["op"] == op and row["inputs"] == NORMAL and "both_ms" in row
    )
    others = [who for who in names if who not in (OURS, YARDSTICK) and not LESS.search(who)]
    return [OURS, *others] if OURS in names else []


def _newest(
    found: list[Document], key: Callable[[Row], object]
) -> Iterator[tuple[Document, list[Row]]]:
    """Yield of each document the rows that no newer one has, where it has any."""
    seen: set[object] = set()
    for document in found:
        rows = [row for row in document.rows if key(row) not in seen]
        seen |= {key(row) for row in rows}
        if rows:
            yield document, rows


STEP = {"step_ms": "step ms", "peak_gib": "peak GiB", "ratio": "ratio"}


def step_table(found: list[Document]) -> str:
    """Return the newest training steps with and without guidance."""
    return _contest(found, "who", STEP, lambda row: row["who"])


MLM = {
    "tokens_per_second": "tokens/s",
    "ms": "step ms",
    "utilisation": "utilisation",
    "over": "over the best RoBERTa",
}


def mlm_table(found: list[Document]) -> str:
    """Return the newest trainings of an encoder by masked language modelling."""
    for document in found:
        theirs = [
            row["tokens_per_second"]
            for row in document.rows
            if _able(row) and row["contestant"].startswith(THEIRS)
        ]
        for row in document.rows:
            if theirs and _able(row):
                row["over"] = round(row["tokens_per_second"] / max(theirs), 2)
    return _contest(found[:1], "contestant", MLM, lambda row: row["contestant"])


TRANSLATION = {
    "tokens_per_second": "tokens/s",
    "ms": "ms",
    "over Marian": "over Marian",
    "over Marian with its Trainer": "over its Trainer",
}


def translation_table(found: list[Document]) -> str:
    """Return the newest trainings and beam searches of Transformer-base."""
    for document in found:
        for row in document.rows:
            row["who"] = f"{row['what']}, {row['contestant']}"
    return _contest(found, "who", TRANSLATION, lambda row: row["who"])


def _contest(
    found: list[Document], name: str, columns: dict[str, str], key: Callable[[Row], object]
) -> str:
    """Return one row per contestant that was right and timed, and who was not."""
    pieces: list[str] = []
    for document, rows in _newest(found, key):
        able = [row for row in rows if _able(row)]
        cells = [[row[name], *(_number(row.get(column)) for column in columns)] for row in able]
        out = [f"{row[name]}: {_why(row)}" for row in rows if not _able(row) and _why(row)]
        table = markdown([["who", *columns.values()], *cells], text_columns=1)
        pieces += [table, *([f"Not timed: {'; '.join(out)}."] if out else []), document.made()]
    return "\n\n".join(pieces) or f"This is {MISSING}."


def _able(row: Row) -> bool:
    return ("step_ms" in row or "ms" in row) and not row.get("wrong") and "reason" not in row


def _why(row: Row) -> str:
    """Return why a contestant has no time; nothing where it was merely cut off."""
    if wrong := row.get("wrong"):
        return f"wrong: {wrong}" if isinstance(wrong, str) else "wrong"
    return row.get("reason", "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def cpu_table(folder: Path = BENCH) -> str:
    """Return our times over theirs on a CPU, one row per number of keys."""
    path = folder / "ops-cpu.json"
    if not path.exists():
        return f"This is {MISSING}."
    times = {
        (row["op"], row["shape"][2]): row["forward_backward_ms"]
        for row in json.loads(path.read_text())["rows"]
    }
    rows = [["keys", *CPU_PEERS]]
    for length in sorted({length for _, length in times}):
        cells = [
            f"{times[op, length][OURS] / times[op, length][peer]:.2f}"
            for op, peer in CPU_PEERS.values()
        ]
        rows.append([f"{length:,}", *cells])
    return markdown(rows, text_columns=0)
