"""Tables of docs/kernels.md, from what `python -m benchmarks` has written to benchmarks/results."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.encoder import THEIRS
from benchmarks.gpu_cases import Case, cases
from benchmarks.gpu_ops import NORMAL, SHAPES, TRAINED, judged_heads

BENCH = Path(__file__).parent / "results"
LENGTHS = tuple(shape.length for shape in SHAPES)
OURS, YARDSTICK = "headwise", "SDPA"
MISSING = "not measured yet"
EXCUSED = 0.01  # a larger share of rows that were not compared is told
RENAMED = {"top-k keep 8 masked": "top-k keep 8 lengths="}  # ops of older records

Row = dict[str, Any]


class Group(NamedTuple):
    """Contestants of one op that were timed together."""

    inputs: str
    n: int


@dataclass(frozen=True)
class Document:
    """One file of results."""

    path: Path
    environment: dict[str, Any]
    rows: list[Row]

    def groups(self, op: str) -> dict[Group, list[Row]]:
        """Rows of an op by what they were timed on."""
        found: dict[Group, list[Row]] = {}
        for row in self.rows:
            if row["op"] == op:
                found.setdefault(Group(row["inputs"], row["n"]), []).append(row)
        return found

    def made(self) -> str:
        """Command, commit, hardware and date, in a sentence."""
        about = self.environment
        versions = about["versions"]
        changed = " with changes" if about["dirty"] else ""
        return (
            f"`{' '.join(about['command'])}`, commit {str(about['commit'])[:10]}{changed}, "
            f"{about['gpu']}, torch {versions['torch']}, Triton {versions['triton']}, "
            f"{about['started'][:10]}: [{self.path.name}](../benchmarks/results/{self.path.name})."
        )


def documents(name: str, folder: Path = BENCH) -> list[Document]:
    """What was measured on a GPU, the newest first; of all of a benchmark, or of some parts."""
    read = [(path, json.loads(path.read_text())) for path in sorted(folder.glob(f"{name}-*-20*.json"))]
    found = [
        Document(path, content["environment"], [_renamed(row) for row in content["rows"]])
        for path, content in read
        if content["settings"]["device"] == "cuda"
    ]
    return sorted(found, key=lambda document: document.environment["started"], reverse=True)


def _renamed(row: Row) -> Row:
    return row | {"op": RENAMED[row["op"]]} if row.get("op") in RENAMED else row


def cases_at(length: int) -> list[Case]:
    """Every op of the benchmark."""
    shape = next(shape for shape in SHAPES if shape.length == length)
    return cases(shape, torch.device("cpu"))


def ours(found: list[Document], op: str, group: Group) -> Row | None:
    """Our newest row with a time, or None."""
    for document in found:
        for row in document.groups(op).get(group, []):
            if row["who"] == OURS and "forward_ms" in row:
                return row
    return None


def markdown(rows: Iterable[list[str]], *, text_columns: int) -> str:
    """A table, its first row the header; figures are aligned to the right."""
    header, *body = rows
    rule = ["---" if place < text_columns else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *body))


def overview(found: list[Document]) -> str:
    """Ours over SDPA at every length, with the aim in brackets; bold where it is missed."""
    header = ["ours / SDPA"]
    header += [f"n = {n:,} {name}" for n in LENGTHS for name in ("fwd", "fwd+bwd")]
    rows = [header]
    for case in cases_at(LENGTHS[0]):
        if case.ours is not None:
            cells = [_short(found, case, n) for n in LENGTHS]
            rows.append([case.name, *(cell for pair in cells for cell in pair)])
    return markdown(rows, text_columns=1)


def _aims(op: str, length: int) -> tuple[float | None, float | None]:
    return next(case.aims for case in cases_at(length) if case.name == op)


def _short(found: list[Document], case: Case, length: int) -> list[str]:
    row = ours(found, case.name, Group(NORMAL, length))
    cells: list[str] = []
    for name, aim in zip(_passes(case), _aims(case.name, length), strict=False):
        figure = MISSING if row is None else f"{row[f'{name}_ratio']:.2f}"
        if row is not None and aim is not None and row[f"{name}_ratio"] > aim:
            figure = f"**{figure}**"
        cells.append(figure if aim is None else f"{figure} (aim {aim:g})")
    return cells if len(cells) == 2 else [*cells, ""]


def _passes(case: Case) -> tuple[str, ...]:
    """What is timed of an op."""
    return ("forward", "both") if case.question.leaves else ("forward",)


def verdict(found: list[Document]) -> str:
    """How many aims are met; the overview shows which."""
    met = missed = waiting = 0
    for op, length, name, aim in _all_aims():
        row = ours(found, op, Group(NORMAL, length))
        if row is None:
            waiting += 1
        elif row[f"{name}_ratio"] <= aim:
            met += 1
        else:
            missed += 1
    counts = f"{met} are met, {missed} are missed (bold), {waiting} are {MISSING}"
    return f"Of {met + missed + waiting} aims, judged on inputs from {NORMAL} only, {counts}."


def _all_aims() -> Iterator[tuple[str, int, str, float]]:
    for case in cases_at(LENGTHS[0]):
        for length in LENGTHS:
            for name, aim in zip(("forward", "both"), _aims(case.name, length), strict=True):
                if aim is not None:
                    yield case.name, length, name, aim


HEADER = [
    *("inputs", "n", "who", "fwd ms", "ratio", "aim", "fwd+bwd ms", "ratio", "aim"),
    *("host ms", "flagged"),
]


def part_tables(found: list[Document], part: str) -> str:
    """All tables of the ops of a part, and which heads were judged."""
    chosen = [case for case in cases_at(LENGTHS[0]) if case.part == part]
    return "\n\n".join([*(_op_tables(found, case) for case in chosen), _judged(chosen)])


def _judged(chosen: list[Case]) -> str:
    """Which heads were compared with the definition, in a sentence."""
    lengths: dict[tuple[int, ...], list[str]] = {}
    for shape in SHAPES:
        heads = tuple(judged_heads(chosen[0].part, shape.heads, shape.length))
        lengths.setdefault(heads, []).append(f"{shape.length:,}")
    told = [
        f"{'heads' if len(heads) > 1 else 'head'} {_listed(map(str, heads))} of {SHAPES[0].heads} "
        f"at n = {_listed(at)}"
        for heads, at in lengths.items()
    ]
    sums = " With dropout there is nothing to compare with: sums over all heads are judged."
    dropped = any(case.dropout for case in chosen)
    return f"Judged by the definition were {'; '.join(told)}.{sums if dropped else ''}"


def _listed(words: Iterable[str]) -> str:
    """With "and" before the last.

    >>> _listed(["0", "5", "10"])
    '0, 5 and 10'
    """
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def _op_tables(found: list[Document], case: Case) -> str:
    """Of each document what no newer one has; then what none has."""
    pieces: list[str] = []
    timed: dict[Group, set[str]] = {}
    who = OURS if case.ours is not None else YARDSTICK
    missing = [
        _missing(case, group, who) for group in _wanted(case) if not _has(found, case, group)
    ]
    for document in found:
        shown: list[Row] = []
        for group, rows in document.groups(case.name).items():
            names = {row["who"] for row in rows if "forward_ms" in row}
            if names - timed.get(group, set()):
                shown += rows
                timed[group] = timed.get(group, set()) | names
        if shown:
            shown.sort(key=lambda row: (row["inputs"], row["n"]))
            cells = [_cells(row) for row in shown if "forward_ms" in row]
            table = markdown([HEADER, *cells, *missing], text_columns=3)
            left_out = _left_out(shown + _failed_blocks(document, case))
            pieces += [table, *left_out, *_excused(shown, case), document.made()]
            missing = []
    if missing:
        pieces.append(markdown([HEADER, *missing], text_columns=3))
    return "\n\n".join([f"**{case.name}**", *pieces])


def _has(found: list[Document], case: Case, group: Group) -> bool:
    who = OURS if case.ours is not None else YARDSTICK
    return any(
        row["who"] == who and "forward_ms" in row
        for document in found
        for row in document.groups(case.name).get(group, [])
    )


def _missing(case: Case, group: Group, who: str) -> list[str]:
    inputs, length = group
    forward, both = ("" if aim is None else f"{aim:g}" for aim in _aims(case.name, length))
    backward = MISSING if case.question.leaves else ""
    return [inputs, f"{length:,}", who, MISSING, "", forward, backward, "", both, "", ""]


def _wanted(case: Case) -> list[Group]:
    kinds = (NORMAL, TRAINED) if case.on_trained else (NORMAL,)
    return [Group(kind, length) for kind in kinds for length in LENGTHS]


def _cells(row: Row) -> list[str]:
    aims = row.get("aims") or [None, None]
    cells = [row["inputs"], f"{row['n']:,}", row["who"]]
    for name, aim in zip(("forward", "both"), aims, strict=True):
        timed = f"{name}_ms" in row  # not both where there is no backward pass
        cells += [
            f"{row[f'{name}_ms']:.3f}" if timed else "",
            f"{row[f'{name}_ratio']:.2f}" if timed else "",
            "" if aim is None else f"{aim:g}",
        ]
    host = f"{row['both_host_ms']:.2f}" if "both_host_ms" in row else ""
    flagged = f"{row['flagged_blocks']:.2%}" if "flagged_blocks" in row else ""
    return [*cells, host, flagged]


def _left_out(rows: list[Row]) -> list[str]:
    """Who was not timed, and why, in a paragraph; nothing where everybody was."""
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        reason = f"wrong: {row['wrong']}" if "wrong" in row else row.get("reason")
        if reason:
            at = f"{row['inputs']} {row['n']:,}" if "n" in row else row["inputs"]
            why.setdefault((row["who"] or "everybody", reason.rstrip(".")), []).append(at)
    told = [f"{who} ({', '.join(at)}): {reason}" for (who, reason), at in why.items()]
    return [f"Not timed: {'; '.join(told)}."] if told else []


def _excused(rows: list[Row], case: Case) -> list[str]:
    """Of whom more than a few rows were not compared, in a paragraph; nothing where of nobody."""
    shares: dict[str, list[str]] = {}
    for row in rows:
        share = row.get("excused_rows", 0.0)
        if share > EXCUSED and "forward_ms" in row:
            told = f"{100 * share:.{0 if share >= 0.1 else 1}f} % ({row['inputs']} {row['n']:,})"
            shares.setdefault(row["who"], []).append(told)
    if not shares:
        return []
    # where only a gradient jumps, outputs are compared in every row
    what = "whose gradients" if case.question.jumps else "that"
    told = "; ".join(f"{who}: {', '.join(each)}" for who, each in shares.items())
    why = "as scores rounded like the contestant's leave open there which keys have weight"
    return [f"Rows {what} were not compared, {why}. {told}."]


def _failed_blocks(document: Document, case: Case) -> list[Row]:
    """Rows of no op, which say why a kind of inputs was left out, if this op had been for it."""
    kinds = {group.inputs for group in _wanted(case)}
    return [row for row in document.rows if not row["op"] and row["inputs"] in kinds]


def _newest(
    found: list[Document], key: Callable[[Row], object]
) -> Iterator[tuple[Document, list[Row]]]:
    """Of each document the rows that no newer one has, where it has any."""
    seen: set[object] = set()
    for document in found:
        rows = [row for row in document.rows if key(row) not in seen]
        seen |= {key(row) for row in rows}
        if rows:
            yield document, rows


STEP = ["who", "step ms", "tokens/s", "peak GiB", "ratio to plain", "aim"]
STEP_FIELDS = ("step_ms", "tokens_per_s", "peak_gib", "ratio", "aim")


def step_table(found: list[Document], aim: float) -> str:
    """The newest training steps with and without guidance."""
    if not found:
        return markdown([STEP, ["guided", MISSING, "", "", "", f"{aim:g}"]], text_columns=1)
    pieces: list[str] = []
    whole = [replace(document, rows=[*filter(_told, document.rows)]) for document in found]
    for document, rows in _newest(whole, lambda row: row["who"]):
        table = [STEP]
        reasons: list[str] = []
        for row in rows:
            table.append([row["who"], *(_figure(row.get(name)) for name in STEP_FIELDS)])
            reason = f"wrong: {row['wrong']}" if "wrong" in row else row.get("reason")
            reasons += [f"{row['who']}: {reason}"] if reason else []
        told = [f"Not timed: {'; '.join(reasons)}."] if reasons else []
        pieces += [markdown(table, text_columns=1), *told, document.made()]
    return "\n\n".join(pieces)


def _told(row: Row) -> bool:
    """Whether a step was timed, or is said not to be; one that was cut off is neither."""
    return any(name in row for name in ("step_ms", "wrong", "reason"))


MLM = ["who", "tokens/s", "step ms", "utilisation", "peak GiB", "over the best RoBERTa", "aim"]
MLM_FIELDS = ("tokens_per_second", "ms", "utilisation", "peak_gib")


def mlm_table(found: list[Document], aims: Mapping[str, float]) -> str:
    """The newest trainings of an encoder by masked language modelling."""
    if not found:
        rows = [[who, MISSING, *[""] * 4, f"{aim:g}"] for who, aim in aims.items()]
        return markdown([MLM, *rows], text_columns=1)
    able = [row for row in found[0].rows if "reason" not in row and not row.get("wrong")]
    theirs = [row["tokens_per_second"] for row in able if row["contestant"].startswith(THEIRS)]
    rows = [
        [
            row["contestant"],
            *(_figure(row.get(name)) for name in MLM_FIELDS),
            f"{row['tokens_per_second'] / max(theirs):.2f}" if theirs else "",
            _figure(row.get("aim")),
        ]
        for row in able
    ]
    told = [*_why_not(found[0].rows, able), *_few_turns(able)]
    return "\n\n".join([markdown([MLM, *rows], text_columns=1), *told, found[0].made()])


def _few_turns(rows: list[Row]) -> list[str]:
    fewest = min((row["turns"] for row in rows), default=0)
    return [] if fewest > 1 else ["This run was cut short: each has had one turn alone."]


TRANSLATION = ["what", "who", "words/s", "ms"]
TRANSLATION += ["over softmax", "over Marian", "over its Trainer", "aims"]
TRANSLATION_FIELDS = ("over softmax", "over Marian", "over Marian with its Trainer")


def translation_table(found: list[Document]) -> str:
    """The newest trainings and beam searches of Transformer-base."""
    if not found:
        return f"Trainings and beam search against Marian: {MISSING}."
    pieces: list[str] = []
    for document, rows in _newest(found, lambda row: (row["what"], row["contestant"])):
        able = [row for row in rows if "reason" not in row and not row.get("wrong")]
        table = [TRANSLATION]
        for row in able:
            speed = f"{row['tokens_per_second']:,}", f"{row['ms']:.1f}"
            ratios = [f"{row[name]:.2f}" if name in row else "" for name in TRANSLATION_FIELDS]
            aims = [f"{name} {row[name]:.2f} (aim {aim:.2f})" for name, aim in row["aims"].items()]
            table.append([row["what"], row["contestant"], *speed, *ratios, "; ".join(aims)])
        pieces += [markdown(table, text_columns=2), *_why_not(rows, able), document.made()]
    return "\n\n".join(pieces)


def _why_not(rows: list[Row], able: list[Row]) -> list[str]:
    """Who was not timed, and why, in a paragraph; nothing where everybody was."""
    left = [f"{row['contestant']}: {row.get('reason', 'wrong')}" for row in rows if row not in able]
    return [f"Not timed: {'; '.join(left)}."] if left else []


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,}"
