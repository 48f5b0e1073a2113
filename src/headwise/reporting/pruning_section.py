"""The sections that a report has when its run is a pruning, from the files of its trace.

    trace/pruning.json     {"shown": figure, "keep": {site: heads}, "before": {...}, "after": {...},
                           "functions": where functions of heads are from, a sentence}
    trace/gates/STEP.json  {"step": ..., "prob_open": {site: [...]}, "keep": {site: heads}}
    trace/speed.json       what `headwise.pruning.speed` measured, as JSON

A run with no `trace/pruning.json` is no pruning. The other files may be missing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.recording import HeadTable, Run
from headwise.reporting.by_heads_kept import histogram, scatter
from headwise.reporting.by_layer import class_of, grouped, legend
from headwise.reporting.markup import Html, element, join
from headwise.reporting.measures import rows_by_layer
from headwise.reporting.role_groups import group_of, short_name

MOST_COLUMNS = 12  # of a table over training
KINDS = {"encoder.self": "encoder", "decoder.self": "decoder", "decoder.cross": "decoder-encoder"}
Keep = Mapping[str, Sequence[int]]
Trace = Mapping[str, Any]
SPEED = "trace/speed.json"
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


def is_pruning(run: Run) -> bool:
    """Whether the run is a pruning."""
    return run.has("trace/pruning.json")


def pruning_section(run: Run, table: HeadTable) -> Html:
    """Quality against heads kept, which heads these are, how sure gates were, and speed."""
    about: Trace = run.read_json("trace/pruning.json", ABOUT)
    gates: list[Trace] = [run.read_json(name, GATES) for name in run.names("trace/gates/*.json")]
    parts = [
        element("h2", "What was pruned"),
        element("p", str(about["chosen_by"]), attributes={"class": "hint"}),
        _before_and_after(about),
        _quality(run, about),
        _kept_by_layer(table, str(about.get("functions", ""))),
        _over_training(table, gates),
        _certainty(gates),
        _speed(run.read_json(SPEED, SPEED_SHAPE)) if run.has(SPEED) else Html(""),
    ]
    return element("section", *parts, attributes={"id": "pruning"})


def _before_and_after(about: Trace) -> Html:
    before, after = about["before"], about["after"]
    rows = [[name, f"{before[name]:.4g}", f"{after[name]:.4g}"] for name in before if name in after]
    return _plain(["figure", "before", "after"], rows)


def _quality(run: Run, about: Trace) -> Html:
    """What it costs to keep fewer heads, as Fig. 7 of Voita et al. (2019), but of one training."""
    shown = str(about["shown"])
    points = [
        (row["open_heads"], row[shown], f"step {row['step']}")
        for row in run.metrics()
        if "open_heads" in row and shown in row
    ]
    if not points:
        return Html("")
    caption = element("figcaption", f"{shown} on the dev set against heads kept, during training")
    figure = element("figure", caption, scatter(points, across="heads kept", up=shown))
    hint = (
        "The way of one training: a point is an evaluation while heads go, so those with few heads "
        "were trained longer. For a model of each size, prune once for each."
    )
    return join(
        [
            element("div", figure, attributes={"class": "charts"}),
            element("p", hint, attributes={"class": "hint"}),
        ]
    )


def _kept_by_layer(table: HeadTable, note: str) -> Html:
    """Fig. 8 at the end: which heads of which layers stayed, and their functions if known."""
    if "kept" not in table.columns:
        return Html("")
    kept = table["kept"]
    roles = table.columns.get("role", (None,) * len(table))
    figures: list[Html] = []
    for kind, layers in rows_by_layer(table).items():
        lines: list[Html] = []
        for layer, rows in layers.items():
            cells = [_cell(table, row, kept[row], roles[row]) for row in rows if row is not None]
            lines.append(element("tr", element("th", str(layer)), *cells))
        grid = element("table", element("tbody", *lines), attributes={"class": "map"})
        figures.append(element("figure", element("figcaption", kind), grid))
    hint = "A row is a layer; numbers are heads that stayed, hatched cells are heads that went."
    return join(
        [
            element("h3", "Heads kept by layer"),
            element("p", f"{hint} {note}".strip(), attributes={"class": "hint"}),
            _functions_kept(table) if "role" in table.columns else Html(""),
            element("div", *figures, attributes={"class": "panels"}),
        ]
    )


def _functions_kept(table: HeadTable) -> Html:
    """Of each function, how many heads stayed of how many there were."""
    rows = list(zip(table["role"], table["kept"], strict=True))
    every, kept = grouped(role for role, _ in rows), grouped(role for role, stays in rows if stays)
    return legend({group: f"{kept[group]} of {count} kept" for group, count in every.items()})


def _cell(table: HeadTable, row: int, kept: object, role: object) -> Html:
    head = table.heads[row]
    colour = f"heat {class_of(group_of(str(role)) if role else '')}" if kept else "heat empty"
    tip = f"{head}\n{str(role).replace('_', ' ') if role else 'no role known'}"
    shown = [str(head.index)] if kept else []
    shown += [element("small", short_name(str(role)))] if kept and role else []
    return element("td", *shown, attributes={"class": colour, "style": "--t:0", "title": tip})


def _over_training(table: HeadTable, gates: Sequence[Trace]) -> Html:
    """Fig. 8 and 9: what the heads are that are open, while fewer of them are."""
    if not gates:
        return Html("")
    places = range(0, len(gates), -(-len(gates) // MOST_COLUMNS))
    chosen = [gates[place] for place in places]
    header = ["heads kept", *(str(sum(map(len, one["keep"].values()))) for one in chosen)]
    kinds = [Counter(_kind(site) for site in _listed(one["keep"])) for one in chosen]
    rows = _counted(kinds)
    if "role" in table.columns:
        known = {str(head): row["role"] for head, row in table}
        functions = [Counter(_function(known, one["keep"])) for one in chosen]
        rows += _counted(functions)
    return join([element("h3", "What the open heads are, over training"), _plain(header, rows)])


def _counted(counts: Sequence[Counter[str]]) -> list[list[str]]:
    names = dict.fromkeys(name for count in counts for name in count)
    return [[name, *(str(count[name]) for count in counts)] for name in names]


def _listed(keep: Keep) -> list[str]:
    """The site of each head that is kept."""
    return [site for site, heads in keep.items() for _ in heads]


def _kind(site: str) -> str:
    parts = site.split(".")
    return KINDS.get(f"{parts[0]}.{parts[-1]}", site)


def _function(known: Mapping[str, object], keep: Keep) -> list[str]:
    roles = [known.get(f"{site}.{head}") for site, heads in keep.items() for head in heads]
    return [group_of(str(role)) if role else "no role found" for role in roles]


def _certainty(gates: Sequence[Trace]) -> Html:
    """How sure gates were at the end: bimodal or not."""
    if not gates:
        return Html("")
    values = [value for heads in gates[-1]["prob_open"].values() for value in heads]
    text = "P(open) of all gates at the last evaluation, or when they were settled"
    figure = element("figure", element("figcaption", text), histogram(values))
    return element("div", figure, attributes={"class": "charts"})


def _speed(measured: Trace) -> Html:
    rows: list[list[str]] = []
    for work in measured["workloads"]:
        time, ratio = work["time"], work["time"]["ratio"]
        seconds = [time[name] for name in ("before", "after")]
        rows.append(
            [
                work["backend"],
                f"{work['batch']} x {work['length']}",
                *(f"{1000 * each:.2f}" for each in seconds),
                f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
                *(f"{work['batch'] * work['length'] / each:,.0f}" for each in seconds),
                f"{100 * work['saved_flops']:.1f} %",
                *(f"{held / 1e6:.1f}" for held in work["memory"]),
            ]
        )
    header = ["backend", "batch x length", "ms before", "ms after", "times faster"]
    header += ["tokens/s before", "tokens/s after", "FLOPs saved", "MB before", "MB after"]
    said = [element("p", text) for text in (*_quality_said(measured), *measured["verdicts"])]
    title = element("h3", f"Speed of one forward pass on {measured['device']}")
    return join([title, _plain(header, rows) if rows else Html(""), *said])


def _plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    top = element("tr", *(element("th", name) for name in header))
    body = [
        element("tr", element("th", row[0]), *(element("td", cell) for cell in row[1:]))
        for row in rows
    ]
    grid = element("table", element("thead", top), element("tbody", *body))
    return element("div", grid, attributes={"class": "plain scroll"})


def _quality_said(measured: Mapping[str, Any]) -> list[str]:
    """Quality before and after, where it was measured."""
    quality = measured["quality"]
    return [f"Quality: {' > '.join(f'{value:.4g}' for value in quality)}."] if quality else []
